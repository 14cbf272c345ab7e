"""A small server of the v2 protocol in this process, over HTTP and gRPC, that answers as Triton 2.51 does.

    async with fake_v2.running() as fake: ...

Its models are in `v2_models`. It keeps what it was asked, can be made to wait or to be slow, and can go away and
come back on the same ports.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import grpc
from aiohttp import web

from tests.fakes import v2_grpc, v2_http, v2_models

HOST = "127.0.0.1"


class Received(NamedTuple):
    """One call as it came: `path` is HTTP's or gRPC's, `headers` have names in lower case."""

    path: str
    headers: Mapping[str, str | bytes]
    body: bytes


class FakeV2:
    """See the module; `http` and `grpc` are `host:port`. A port of 0 is a free one, from the start on."""

    def __init__(self, host: str = HOST, http_port: int = 0, grpc_port: int = 0) -> None:
        self.host, self.http_port, self.grpc_port = host, http_port, grpc_port
        self.received: list[Received] = []
        self.questions: list[v2_models.Question] = []  # those that a model answered
        self.seconds = 0.0  # that each inference takes
        self.gate = asyncio.Event()  # clear it, and inferences wait until it is set
        self.gate.set()
        self.busy = 0  # inferences at work now
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def http(self) -> str:
        return f"{self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    @property
    def batches(self) -> list[int]:
        """Rows of each call that a model answered."""
        return [question.rows for question in self.questions]

    async def start(self) -> None:
        """Listen, the second time where it did the first time."""
        self._runner = web.AppRunner(v2_http.application(self), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.http_port)
        await site.start()
        self.http_port = self._runner.addresses[0][1]
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        v2_grpc.add_to(self._server, self)
        self.grpc_port = self._server.add_insecure_port(self.grpc)
        await self._server.start()

    async def stop(self) -> None:
        """Go away at once; calls in work are broken off."""
        if self._server is not None:
            await self._server.stop(None)
        if self._runner is not None:
            await self._runner.cleanup()

    async def infer(self, question: v2_models.Question) -> list[v2_models.Tensor]:
        """The answer of a model. Raises `v2_models.Refused`."""
        answer = v2_models.find(question.model, question.version).answer(question)
        self.questions.append(question)
        await self._count(+1)
        try:
            await self.gate.wait()
            await asyncio.sleep(self.seconds)
        finally:
            await self._count(-1)
        return answer

    async def at_work(self, inferences: int) -> None:
        """Return once so many are at work at the same time."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.busy >= inferences)

    async def _count(self, change: int) -> None:
        async with self._changed:
            self.busy += change
            self._changed.notify_all()


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[FakeV2]:
    """One that listens for the length of a block."""
    fake = FakeV2()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
