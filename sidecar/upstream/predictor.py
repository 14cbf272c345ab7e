"""Batches over HTTP/1.1 to the predictor beside us."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import multidict
import yarl

from sidecar import calls, errors
from sidecar.upstream import body as body_
from sidecar.upstream import translation

# Headers of a predictor's refusal that mean something to the caller; the rest speaks of the batch's connection.
_TELLING = ("Content-Type", "Retry-After", "Location", "WWW-Authenticate", "Allow")

# uvicorn, and so most model servers, closes idle connections after 5 s; letting go first avoids that race.
_IDLE_SECONDS = 4.0


class HttpPredictor:
    """Posts merged bodies, over kept-alive connections of its own, to the same path the callers used."""

    def __init__(self, base: str, connect_timeout: float) -> None:
        self._base = base.rstrip("/")
        self._connect_timeout = connect_timeout
        self._session: aiohttp.ClientSession | None = None

    async def predict(self, target: str, headers: calls.Headers, body: bytes, timeout: float) -> bytes:
        """Post a body and return the answer's body.

        Raises `errors.UpstreamStatus` for any status but 2xx, and the other `errors.UpstreamError` classes when the
        predictor cannot be reached, breaks off, or takes more than `timeout` seconds.
        """
        async with self._post(target, headers, body, timeout) as response:
            answer = await response.read()
        if 200 <= response.status < 300:
            return answer
        told = tuple((name, value) for name in _TELLING if (value := response.headers.get(name)) is not None)
        raise errors.UpstreamStatus(response.status, answer, told)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _post(
        self, target: str, headers: calls.Headers, body: bytes, timeout: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(self._connect_timeout, timeout))
        with translation.translated():
            async with self._open_session().post(
                yarl.URL(self._base + target, encoded=True),
                data=body_.SlicedBody(body),
                headers=multidict.CIMultiDict(headers),
                timeout=limits,
                allow_redirects=False,
            ) as response:
                yield response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Its own limit would make batches wait here, unseen; the core limits what is in flight.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent",),
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            )
        return self._session
