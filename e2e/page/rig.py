"""A sidecar that has something to show: the real program, in front of a predictor that takes its time, under load.

Predictor and callers run in the event loop of whoever starts the rig; the sidecar is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Sequence

import aiohttp
from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.protocols import v1
from tests import loopback

PATHS = ("/v1/models/sentiment:predict", "/v1/models/ranking:predict")
_READY_SECONDS = 20.0


class Predictor:
    """Works on one batch at a time, for `fixed` seconds and `each` more an instance. An instance of `"bad"` is 400."""

    def __init__(self, fixed: float = 0.018, each: float = 0.0006) -> None:
        self.fixed, self.each = fixed, each
        self._device = asyncio.Lock()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Echo the instances."""
        if request.method != "POST":
            return web.Response(text="ready\n")
        try:
            rows = [bytes(row) for row in v1.parse_request(await request.content.read()).rows]
        except (errors.CarpoolError, errors.Unbatchable) as error:
            return web.json_response({"error": str(error)}, status=400)
        async with self._device:
            await asyncio.sleep((self.fixed + self.each * len(rows)) * random.lognormvariate(0, 0.06))
        if b'"bad"' in rows:
            return web.json_response({"error": "an instance is bad"}, status=400)
        return web.Response(body=b'{"predictions":[' + b",".join(rows) + b"]}", content_type="application/json")


class Rig:
    """The running whole. After `stop`, `start` starts another sidecar on the same ports."""

    def __init__(self, ports: Sequence[int], settings: Sequence[str]) -> None:
        self.port, self.admin_port, self._component_port = ports
        self._settings = settings
        self._sidecar: asyncio.subprocess.Process | None = None
        self.url = f"http://127.0.0.1:{self.admin_port}"
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def start(self) -> None:
        """Start the sidecar; returns once it serves."""
        ports = {"port": self.port, "admin-port": self.admin_port, "component-port": self._component_port}
        flags = [f"--{name}={value}" for name, value in ports.items()]
        hosts = ("--host=127.0.0.1", "--admin-host=127.0.0.1", "--quiet-period=0", "--log-level=error")
        program = (sys.executable, "-m", "carpool_sidecar", *flags, *hosts, *self._settings)
        self._sidecar = await asyncio.create_subprocess_exec(*program)
        async with asyncio.timeout(_READY_SECONDS):
            while not await self._is_ready():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """End the sidecar as Kubernetes does."""
        if self._sidecar is not None:
            self._sidecar.terminate()
            await self._sidecar.wait()
            self._sidecar = None

    async def post(self, path: str = PATHS[0], rows: int = 1, request_id: str | None = None, body: str = "") -> int:
        """One predict request; returns its status."""
        headers = {"Content-Type": "application/json"}
        if request_id is not None:
            headers["X-Request-ID"] = request_id
        text = body or f'{{"instances":[{",".join("1" * rows)}]}}'
        async with self.session.post(f"http://127.0.0.1:{self.port}{path}", data=text, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def load(self, rate: float, seconds: float = float("inf"), seed: int = 1) -> None:
        """Callers that come at random, so many a second, mostly with one instance; a few send what is not batched."""
        chance = random.Random(seed)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        tasks: set[asyncio.Task[int]] = set()
        number = 0
        try:
            while loop.time() < until:
                await asyncio.sleep(chance.expovariate(rate))
                number += 1
                path = PATHS[chance.random() < 0.25]
                rows = 1 if chance.random() < 0.85 else chance.randint(2, 6)
                task = asyncio.create_task(self.post(path, rows, f"req-{number:06d}"))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(_forget)
        finally:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def metric(self, name: str) -> float:
        """The sum of the samples of /metrics whose names begin so."""
        async with self.session.get(self.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    async def _is_ready(self) -> bool:
        try:
            async with self.session.get(self.url + "/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


def _forget(task: asyncio.Task[int]) -> None:
    """A call fails while the sidecar restarts, which is nobody's trouble here."""
    if not task.cancelled():
        task.exception()


@contextlib.asynccontextmanager
async def running(*settings: str, predictor: Predictor | None = None) -> AsyncIterator[Rig]:
    """A rig with these flags of the sidecar."""
    server = web.ServerRunner(web.Server((predictor or Predictor()).handle), shutdown_timeout=0.1)
    await server.setup()
    ports = loopback.free_ports(3)
    await web.TCPSite(server, "127.0.0.1", ports[2]).start()
    rig = Rig(ports, settings)
    try:
        await rig.start()
        yield rig
    finally:
        await rig.stop()
        await rig.session.close()
        await server.cleanup()
