"""A whole sidecar on loopback sockets in front of the fake v2 server, in real time: gRPC's core keeps its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio

from carpool_sidecar import config
from carpool_sidecar.app import wiring
from carpool_sidecar.upstream import probes
from e2e.triton import http_requests
from tests import loopback
from tests.fakes import fake_v2, v2_json

_TURNS = 5000  # of the loop, that a request gets to arrive


class Answer(NamedTuple):
    status: int
    json: Any
    binary: bytes
    headers: Mapping[str, str]


class Bench:
    """The sidecar under test, the server behind it, and clients of both protocols."""

    def __init__(self, sidecar: wiring.Sidecar, fake: fake_v2.FakeV2, session: aiohttp.ClientSession) -> None:
        self.sidecar = sidecar
        self.fake = fake
        self._session = session
        self.http = f"127.0.0.1:{sidecar.settings.port}"
        self.rpc = tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{sidecar.settings.grpc_port}")

    async def ask(self, request: http_requests.InferRequest, host: str = "", in_pieces: bool = False) -> Answer:
        """The answer to a request over HTTP, from the sidecar or from `host`; the body may come in pieces."""
        headers = {"Content-Type": "application/json", **request.headers}
        return await self.post(f"/v2/models/{request.model}/infer", request.body, headers, host, in_pieces)

    async def post(
        self,
        path: str,
        body: object,
        headers: dict[str, str] | None = None,
        host: str = "",
        in_pieces: bool = False,
    ) -> Answer:
        """The answer to any POST; what are no bytes goes as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = _pieces(data) if in_pieces else data
        async with self._session.post(f"http://{host or self.http}{path}", data=sent, headers=headers) as answer:
            found = await answer.read()
            size = int(answer.headers.get(http_requests.JSON_SIZE, len(found)))
            return Answer(answer.status, v2_json.load(found[:size]), found[size:], answer.headers)

    async def infer(self, model: str, *arrays: tuple[str, Any], **options: Any) -> Any:
        """tritonclient's answer over gRPC; arrays are FP32."""
        inputs = []
        for name, values in arrays:
            array = np.array(values, np.float32)
            inputs.append(tritonclient.grpc.InferInput(name, list(array.shape), "FP32").set_data_from_numpy(array))
        return await self.rpc.infer(model, inputs, **options)

    async def metric(self, name: str) -> float:
        """One sample, named with its labels."""
        async with self._session.get(f"http://127.0.0.1:{self.sidecar.settings.admin_port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)

    async def queued(self, requests: int) -> None:
        """Return once the core has taken so many requests since it was made."""
        for _ in range(_TURNS):
            if self.sidecar.core._sequence >= requests:
                return
            await asyncio.sleep(0.001)
        raise TimeoutError(f"{self.sidecar.core._sequence} of {requests} requests arrived")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    """A body of chunks, of which the second comes later."""
    middle = len(data) // 2
    yield data[:middle]
    await asyncio.sleep(0.01)
    yield data[middle:]


@contextlib.asynccontextmanager
async def running(**chosen: Any) -> AsyncIterator[Bench]:
    """With these settings; a batch waits for the one before it, and else for 5 ms."""
    async with fake_v2.running() as fake, aiohttp.ClientSession() as session:
        ports = dict(zip(("port", "admin_port", "grpc_port"), loopback.free_ports(3), strict=True))
        settings = config.Settings(
            **{
                "host": "127.0.0.1", "admin_host": "127.0.0.1", "component_port": fake.http_port,
                "component_grpc_port": fake.grpc_port, "quiet_period": 0.0, "policy": "window", "max_latency": 5,
                "retry_budget": 100, **ports, **chosen,
            }
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        sidecar = wiring.Sidecar(settings, (probes.tcp_probe(settings.component_port),), loop.time)
        await sidecar.start()
        bench = Bench(sidecar, fake, session)
        try:
            yield bench
        finally:
            fake.gate.set()
            await bench.rpc.close()
            await sidecar.stop()
