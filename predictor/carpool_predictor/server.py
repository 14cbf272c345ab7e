"""The v1 protocol and OpenAI's embeddings over HTTP: finds the model and carries bytes between callers and workers.

Format of v1: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol. Built on aiohttp's
low-level server: six paths need no router, and without one about a quarter more requests fit into a core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from carpool_predictor import embeddings, errors, served_model, v1

log = logging.getLogger("carpool.predictor.server")

READ_BUFFER = 1024 * 1024
"""Bytes aiohttp may read ahead of the handler; its default of 64 KiB pauses a large body very often."""

_MODELS = "/v1/models"
_PREDICT = ":predict"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Answer = tuple[int, Any]


class Handler:
    """Answers every request. `draining` may be set to make readiness fail while requests are still served, `parting` to
    have connections close behind their answers, which say so.

    `unassigned` bounds the requests that name their model in a body which is still on its way.
    """

    def __init__(
        self,
        models: Mapping[str, served_model.ServedModel],
        max_body: int,
        body_timeout: float,
        unassigned: served_model.WaitingLimit,
    ) -> None:
        self.draining = self.parting = False
        self._active = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._models = models
        self._unassigned = unassigned
        self._max_body = max_body
        self._body_timeout = body_timeout
        self._predicts = {f"{_MODELS}/{name}{_PREDICT}": model for name, model in models.items()}
        self._gets: dict[str, Callable[[], Answer]] = {
            "/": lambda: (200, {"status": "alive"}),
            "/livez": lambda: (200, {"status": "alive"}),
            "/readyz": self._readiness,
            "/healthz": self._readiness,
            _MODELS: lambda: (200, {"models": list(self._models)}),
        }

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self._active += 1
        self._is_idle.clear()
        try:
            response = await self._answer(request)
        finally:
            self._active -= 1
            if not self._active:
                self._is_idle.set()
        if self.parting:
            response.force_close()
        return response

    async def until_idle(self) -> None:
        """Return once no request is being answered."""
        await self._is_idle.wait()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            model = self._predicts.get(request.path)
            if model is not None and request.method == "POST":
                return await self._predict(request, model)
            if request.path == embeddings.PATH and request.method == "POST":
                return await self._embed(request)
            status, facts = self._describe(request.method, request.path)
            return _json(status, msgspec.json.encode(facts))
        except errors.Refusal as error:
            return _refusal(error, request.path)
        except ConnectionError:
            raise  # the caller left; aiohttp knows what to do
        except Exception:
            log.exception("a request failed unexpectedly")
            return _refusal(errors.Refusal(), request.path)

    async def _predict(self, request: web.BaseRequest, model: served_model.ServedModel) -> web.StreamResponse:
        if not model.is_ready:  # before its body is read
            raise errors.NotReady(f"model {model.name} is not ready; try again later")
        with model.limit.claim() as claim:
            reply = await model.predict(await self._read(request, claim))
        return _json(reply.status, reply.body)

    async def _embed(self, request: web.BaseRequest) -> web.StreamResponse:
        with self._unassigned.claim() as claim:
            body = await self._read(request, claim)
        asked = embeddings.parse(body)
        model = self._models.get(asked.model)
        if model is None:
            raise errors.UnknownModel(self._no_model(asked.model))
        with model.limit.claim() as claim:
            claim.grow(len(body))
            reply = await model.embed(asked)
        return _json(reply.status, reply.body)

    async def _read(self, request: web.BaseRequest, claim: served_model.Claim) -> bytes:
        """The request body. Raises 400, 408, 413 and 503 errors."""
        if (request.content_length or 0) > self._max_body:
            raise self._too_large()
        content = request.content
        if content.is_eof() and content.exception() is None:  # a small one came with its head: nothing to wait for
            body = content.read_nowait()
            if len(body) > self._max_body:
                raise self._too_large()
            claim.grow(len(body))
            return body
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
        pieces: list[bytes] = []
        length = 0
        try:
            async with asyncio.timeout(self._body_timeout):
                while piece := await request.content.readany():
                    length += len(piece)
                    if length > self._max_body:
                        raise self._too_large()
                    claim.grow(len(piece))
                    pieces.append(piece)
        except TimeoutError:
            raise errors.BodyTooLate from None
        except web.RequestPayloadError as error:
            request.content.feed_eof()  # else aiohttp reads on, meets the same error and reports it as unhandled
            raise errors.UnreadableBody(f"the body cannot be read: {error}") from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_large(self) -> errors.Refusal:
        return errors.PayloadTooLarge(f"the request body is over the limit of {self._max_body} bytes")

    def _describe(self, method: str, path: str) -> Answer:
        """What a request other than a proper predict is answered."""
        if path in self._gets:
            _allow(method, "GET, HEAD")
            return self._gets[path]()
        if path == embeddings.PATH:
            _allow(method, "POST")
        parent, _, last = path.rpartition("/")
        name = last.removesuffix(_PREDICT)
        if parent != _MODELS or not name:
            raise errors.NotFound(f"no such path: {path}; see GET {_MODELS}")
        if name not in self._models:
            raise errors.NotFound(self._no_model(name))
        _allow(method, "GET, HEAD" if last == name else "POST")
        is_ready = self._models[name].is_ready
        return (200 if is_ready else 503), {"name": name, "ready": is_ready}

    def _no_model(self, name: str) -> str:
        return f"no model {name!r}; there are: {', '.join(self._models)}"

    def _readiness(self) -> Answer:
        waiting = [model.name for model in self._models.values() if not model.is_ready]
        if self.draining:
            return 503, {"error": "the predictor is shutting down"}
        if waiting:
            return 503, {"error": f"not ready: {', '.join(waiting)}"}
        return 200, {"status": "ready"}


def _allow(method: str, allowed: str) -> None:
    if method not in allowed.split(", "):
        raise errors.MethodNotAllowed(method, allowed)


def _json(status: int, body: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


def _refusal(error: errors.Refusal, path: str) -> web.Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, errors.MethodNotAllowed):
        headers["Allow"] = error.allowed
    body = embeddings.render_error(error) if path == embeddings.PATH else v1.render_error(str(error))
    response = _json(error.status, body, headers)
    if error.close:
        response.force_close()
    return response
