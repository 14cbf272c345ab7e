"""Batches over HTTP/1.1 to the predictor beside us."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import multidict
import yarl

from sidecar import calls, errors
from sidecar.upstream import body as body_
from sidecar.upstream import session, translation

# Headers of a predictor's refusal that mean something to the caller; the rest speaks of the batch's connection.
_TELLING = ("Content-Type", "Retry-After", "Location", "WWW-Authenticate", "Allow")

_NO_LIMIT = sys.maxsize


class HttpPredictor:
    """Posts merged bodies, over kept-alive connections of its own, to the same path the callers used.

    `base` is the predictor's scheme, host and port, `connect_timeout` is in seconds. An answer of more than
    `max_answer_bytes` is broken off.
    """

    def __init__(self, base: str, connect_timeout: float, max_answer_bytes: int = _NO_LIMIT) -> None:
        self._base = yarl.URL(base)
        self._connect_timeout = connect_timeout
        self._max_answer_bytes = max_answer_bytes
        self._session: aiohttp.ClientSession | None = None

    async def predict(self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float) -> bytes:
        """Post a body to `target`, a path with its query, and return the answer's body.

        Raises `errors.UpstreamStatus` for any status but 2xx, and the other `errors.UpstreamError` classes when the
        predictor cannot be reached, breaks off, or takes more than `timeout` seconds.
        """
        async with self._post(target, headers, body, timeout) as response:
            answer = await self._read(response)
        if 200 <= response.status < 300:
            return answer
        if not 300 <= response.status < 600:
            raise errors.UpstreamBroken(f"the predictor's answer has the status {response.status}")
        named = ((name, response.headers.get(name)) for name in _TELLING)
        told = tuple((name, value) for name, value in named if value is not None and value.isprintable())
        raise errors.UpstreamStatus(response.status, answer, told)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if (response.content_length or 0) > self._max_answer_bytes:
            raise errors.UpstreamBroken(f"the predictor's answer is larger than {self._max_answer_bytes} bytes")
        if response.content_length is not None:
            return await response.read()
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._max_answer_bytes:
                raise errors.UpstreamBroken(f"the predictor's answer is larger than {self._max_answer_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _post(
        self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(self._connect_timeout, timeout))
        with translation.translated():
            async with self._open_session().post(
                session.address(self._base, target),
                data=body_.PiecewiseBody(body),
                headers=multidict.CIMultiDict(headers),
                timeout=limits,
                allow_redirects=False,
            ) as response:
                yield response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = session.open_session(
                skip_auto_headers=("User-Agent",),
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            )
        return self._session
