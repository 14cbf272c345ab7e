"""Asks the predictor of its models, over the v2 protocol's HTTP."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import yarl

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.upstream import aiohttp_client, model_answers

TIMEOUT = 5.0
"""Seconds for one question: requests wait for the answer when a model is first used."""

MOST_BYTES = 4 * 1024 * 1024
"""Of an answer; a model's configuration takes some kilobytes."""

_PATH = re.compile(r"[^\x00-\x20\x7f?#]*")

# How servers without an extension refuse it; Triton says 400 to models that it does not have.
_NOT_OFFERED = frozenset({400, 404, 405, 501})
_NOT_READY = _NOT_OFFERED | {503}


class HttpQuestions:
    """Questions to the predictor at `base`, its scheme, host and port; none takes longer than `timeout` seconds.

    All raise `errors.UpstreamError` if the predictor cannot be reached, refuses (`errors.UpstreamStatus`) or does not
    answer as the protocol has it, and `errors.BadRequest` for a name that no URL can have.
    """

    # State: the session, from the first question on.
    def __init__(self, base: str, timeout: float = TIMEOUT) -> None:
        self._base = yarl.URL(base)
        self._patience = timeout
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def model_info(self, name: models.ModelName) -> models.ModelInfo:
        """What is told of a model, by its metadata and, where the predictor has that, Triton's configuration."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._model_info(name)
        except TimeoutError:
            raise errors.UpstreamTimeout from None

    async def _model_info(self, name: models.ModelName) -> models.ModelInfo:
        metadata = await self._get(name.path)
        config: bytes | None = None
        try:
            config = await self._get(f"{name.path}/config")
        except errors.UpstreamStatus as error:
            if error.status not in _NOT_OFFERED:
                raise
        return model_answers.model_info(metadata, config)

    async def model_ready(self, name: models.ModelName) -> bool:
        """Whether a model takes requests now; no, too, if there is no such model."""
        try:
            await self._get(f"{name.path}/ready")
        except errors.UpstreamStatus as error:
            if error.status not in _NOT_READY:
                raise
            return False
        return True

    async def models(self) -> list[str]:
        """Names of the models that the predictor has ready.

        By Triton's model repository extension, which MLServer has as well, or else by KServe's `GET /v2/models`.
        """
        try:
            return model_answers.indexed_models(await self._request("POST", "/v2/repository/index", b'{"ready":true}'))
        except errors.UpstreamStatus as error:
            if error.status not in _NOT_OFFERED:
                raise
        return model_answers.listed_models(await self._get("/v2/models"))

    async def close(self) -> None:
        """Close the connections; questions that are out fail."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, path: str) -> bytes:
        return await self._request("GET", path)

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        if not _PATH.fullmatch(path):
            raise errors.BadRequest("the model's name has characters that a URL does not allow there")
        url = aiohttp_client.address(self._base, path)
        with aiohttp_client.translated():
            async with self._client().request(method, url, data=body, allow_redirects=False) as response:
                answer = await _read(response)
                if 200 <= response.status < 300:
                    return answer
                raise errors.UpstreamStatus(response.status, answer, _telling(response))

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "carpool"}
            self._session = aiohttp_client.open_session(timeout=self._timeout, headers=headers, auto_decompress=False)
        return self._session


async def _read(response: aiohttp.ClientResponse) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MOST_BYTES:
            raise errors.UpstreamBroken(f"the predictor's answer is larger than {MOST_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _telling(response: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    content_type = response.headers.get("Content-Type", "")
    return (("Content-Type", content_type),) if content_type else ()
