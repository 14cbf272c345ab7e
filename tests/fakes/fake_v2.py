"""A small server of the v2 protocol in this process, over HTTP and gRPC, that answers as Triton 2.51 does.

    async with fake_v2.running() as fake: ...

Its models are in `v2_models`. It keeps what it was asked, can be made to wait or to be slow, and can go away and
come back on the same ports.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc
from aiohttp import web

from tests.fakes import v2_calls, v2_grpc, v2_http

HOST = "127.0.0.1"


class FakeV2(v2_calls.Calls):
    """See the module; `http` and `grpc` are `host:port`.

    A port of 0 is a free one, from the start on. A host of "" is all addresses, of IPv6 and IPv4.
    """

    def __init__(self, host: str = HOST, http_port: int = 0, grpc_port: int = 0) -> None:
        super().__init__()
        self.host, self.http_port, self.grpc_port = host, http_port, grpc_port
        self._runner: web.AppRunner | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def http(self) -> str:
        return f"{self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    async def start(self) -> None:
        """Listen, the second time where it did the first time."""
        self._runner = web.AppRunner(v2_http.application(self), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.http_port)
        await site.start()
        self.http_port = self._runner.addresses[0][1]
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        v2_grpc.add_to(self._server, self)
        self.grpc_port = self._server.add_insecure_port(self.grpc if self.host else f"[::]:{self.grpc_port}")
        await self._server.start()

    async def stop(self) -> None:
        """Go away at once; calls in work are broken off."""
        if self._server is not None:
            await self._server.stop(None)
        if self._runner is not None:
            await self._runner.cleanup()


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[FakeV2]:
    """One that listens for the length of a block."""
    fake = FakeV2()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
