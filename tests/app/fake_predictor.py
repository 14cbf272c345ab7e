"""A predictor under the test's thumb: echoes instances, holds, refuses, breaks off or miscounts on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDictProxy

from carpool_sidecar.protocols import v1


@dataclass
class Seen:
    """One request as it reached the predictor."""

    method: str
    target: str
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def rows(self) -> list[bytes]:
        return [bytes(row) for row in v1.parse_request(self.body).rows]


Behaviour = Callable[[Seen, web.BaseRequest], web.StreamResponse | None]


class FakePredictor:
    """`seen` is every request; `behave` may answer instead of the echo; while `gate` is clear, answers wait.

    `handling` counts the requests that have come and are not answered yet. `service` gives the seconds that so many
    instances take, one batch at a time. `handle_stream` answers GET /events.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.handling = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.behave: Behaviour = lambda seen, request: None
        self.service: Callable[[int], float] | None = None
        self.handle_stream: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] | None = None
        self._device = asyncio.Lock()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.handling += 1
        try:
            return await self._answer(request)
        finally:
            self.handling -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/events" and self.handle_stream is not None:
            return await self.handle_stream(request)
        try:
            body = await request.content.read()
        except ConnectionError as error:
            error.with_traceback(None)  # its reader keeps it, and it the frames with the body
            return web.Response()
        seen = Seen(request.method, request.raw_path, request.headers, body)
        self.seen.append(seen)
        self.arrived.set()
        await self.gate.wait()
        if self.service is not None and request.method == "POST":
            async with self._device:
                await asyncio.sleep(self.service(len(seen.rows)))
        special = self.behave(seen, request)
        if special is not None:
            return special
        if request.method != "POST" or not request.path.endswith(":predict"):
            return web.Response(body=b"passed:" + seen.body, headers={"X-From": "predictor"})
        return web.Response(body=b'{"predictions":[' + b",".join(seen.rows) + b"]}", content_type="application/json")

    async def received(self, count: int) -> None:
        """Wait until so many requests have arrived in all."""
        while len(self.seen) < count:
            self.arrived.clear()
            await self.arrived.wait()

    @property
    def batches(self) -> list[list[bytes]]:
        return [seen.rows for seen in self.seen]


def refuse(status: int, body: bytes = b'{"error":"no"}', **headers: str) -> Behaviour:
    return lambda seen, request: web.Response(
        status=status, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def refuse_poison(status: int, poison: bytes) -> Behaviour:
    """Refuses every batch with that row in it, as a model server that validates its input does."""

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        if seen.body and poison in seen.rows:
            return web.Response(status=status, body=b'{"error":"poison"}', content_type="application/json")
        return None

    return behave


def hang_up(times: int) -> Behaviour:
    """Closes the connection without an answer, so many times."""
    left = times

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        nonlocal left
        if left:
            left -= 1
            assert request.transport is not None
            request.transport.close()
        return None

    return behave
