"""A whole sidecar on loopback sockets, in front of a fake predictor, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from carpool_sidecar import config
from carpool_sidecar.app import wiring
from carpool_sidecar.upstream import probes
from tests import loopback
from tests.app.fake_predictor import FakePredictor

PREDICT = "/v1/models/m:predict"


class Bench:
    """The sidecar under test with its predictor and a client."""

    def __init__(self, sidecar: wiring.Sidecar, predictor: FakePredictor, client: aiohttp.ClientSession) -> None:
        self.sidecar = sidecar
        self.predictor = predictor
        self.client = client
        self.url = f"http://127.0.0.1:{sidecar.settings.port}"
        self.admin = f"http://127.0.0.1:{sidecar.settings.admin_port}"

    async def post(self, body: bytes | str, path: str = PREDICT, **options: Any) -> tuple[int, bytes, Any]:
        """Status, body and headers of one POST, of JSON unless the options say otherwise."""
        if "headers" not in options:
            options["headers"] = {"Content-Type": "application/json"}
        async with self.client.post(self.url + path, data=body, **options) as response:
            return response.status, await response.read(), response.headers

    async def raw(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | str = "",
        body: bytes = b"",
        *,
        may_reset: bool = False,
    ) -> bytes:
        """The bytes answered to a request with these very headers (a mapping or lines), closed after the answer.

        A lone surrogate stands for a byte that is not UTF-8 (PEP 383). A reset raises ConnectionResetError unless it
        may be: a server that refuses a request need not read it to its end.
        """
        lines = headers if isinstance(headers, str) else "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {target} HTTP/1.1\r\nHost: h\r\n{lines}{length}Connection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.sidecar.settings.port)
        writer.write(head.encode(errors="surrogateescape") + body)
        answer = b""
        expected = contextlib.suppress(*[ConnectionResetError] * may_reset)
        with expected:
            while piece := await reader.read(64 * 1024):
                answer += piece
        writer.close()
        with expected:
            await writer.wait_closed()
        return answer

    async def post_all(self, *bodies: str, **options: Any) -> list[tuple[int, bytes, Any]]:
        """Post all at once; they arrive in this order."""
        tasks = []
        for body in bodies:
            tasks.append(asyncio.ensure_future(self.post(body, **options)))
            await self.queued(len(tasks))
        return await asyncio.gather(*tasks)

    async def queued(self, count: int) -> None:
        """Wait until the sidecar has taken so many requests (or already answered)."""
        for _ in range(1000):
            if self.sidecar.core._sequence >= count:
                return
            await asyncio.sleep(0)

    async def get(self, url: str, **options: Any) -> tuple[int, str, Any]:
        async with self.client.get(url, **options) as response:
            return response.status, await response.text(), response.headers

    async def metric(self, name: str) -> float:
        """One line of /metrics, named with its labels."""
        _, text, _ = await self.get(self.admin + "/metrics")
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


@pytest.fixture
async def predictor() -> AsyncIterator[FakePredictor]:
    fake = FakePredictor()
    yield fake
    fake.gate.set()


@pytest.fixture
async def sidecar_of(predictor: FakePredictor) -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    """Start a sidecar with the given settings."""
    stoppers: list[Callable[[], Awaitable[None]]] = []

    async def start(**chosen: Any) -> Bench:
        server = web.ServerRunner(web.Server(predictor.handle), shutdown_timeout=0.1)
        await server.setup()
        stoppers.append(server.cleanup)
        port, admin_port, component_port = loopback.free_ports(3)
        await web.TCPSite(server, "127.0.0.1", component_port).start()
        settings = config.Settings(
            **{
                "host": "127.0.0.1", "admin_host": "127.0.0.1", "port": port, "admin_port": admin_port,
                "component_port": component_port, "quiet_period": 0.0, "policy": "window", **chosen,
            }
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        # Where the loop's time is simulated, work takes none of it, and so the processor is not to tell of any.
        probe = probes.tcp_probe(settings.component_port)
        sidecar = wiring.Sidecar(settings, (probe,), loop.time, cpu_clock=lambda: 0.0)
        stoppers.append(sidecar.stop)
        await sidecar.start()
        client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        stoppers.append(client.close)
        return Bench(sidecar, predictor, client)

    yield start
    for stop in reversed(stoppers):
        await stop()


@pytest.fixture
async def bench(sidecar_of: Callable[..., Awaitable[Bench]]) -> Bench:
    """Batches of 4, half a second of patience."""
    return await sidecar_of(max_batch_size=4, max_latency=500)
