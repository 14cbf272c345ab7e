"""The gRPC side of a sidecar with everything real: the server, the core, and a channel to a fake predictor."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import grpc.aio

from carpool.program import allocator
from carpool.runtime import driver as drivers
from carpool.scheduling import ledger, scheduler, window
from carpool.scheduling import limits as core_limits
from carpool_sidecar import drain, metrics
from carpool_sidecar.batching import executor, model_registry, routes
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_grpc import codec
from carpool_sidecar.server.grpc import passthrough, service
from carpool_sidecar.server.grpc import server as port
from carpool_sidecar.server.http2 import server
from carpool_sidecar.upstream import grpc_predictor
from tests.fakes import fake_v2

INFER = "/inference.GRPCInferenceService/ModelInfer"


class Memory(ledger.Ledger):
    """One that can be told to fail when it is asked whether there is room, as a bug would."""

    bug: Exception | None = None

    def check_room(self, size: float) -> None:
        if self.bug is not None:
            raise self.bug
        super().check_room(size)


class Bodies:
    """Limits of what is on its way in (`arrivals.MessageLimits`); `large` counts the large messages released."""

    def __init__(self) -> None:
        self.memory = Memory(64 * 1024 * 1024)
        self.memory.large, self.memory.on_large = allocator.LARGE, self._on_large
        self.max_body_bytes = 4 * 1024 * 1024
        self.read_timeout = 5.0
        self.large = 0

    def _on_large(self) -> None:
        self.large += 1


class Site:
    """Start it, talk to `channel`, look at `fake`; `upstream` stands for the fake's address if given."""

    def __init__(self, fake: fake_v2.FakeV2, **limits: Any) -> None:
        self.fake = fake
        self.limits = core_limits.Limits(**{"max_latency": 0.02, "max_batch_size": 64, **limits})
        self.bodies = Bodies()
        self.life = drain.Lifecycle(self.bodies.memory)
        self.counters = metrics.Metrics()
        self.max_rows: Callable[[], int] = lambda: int(self.limits.max_queue_instances)

    async def start(self, upstream: str = "") -> None:
        numbers = itertools.count(1)
        clock = time.monotonic
        core = scheduler.Scheduler(self.limits, window.Window(self.limits), clock, lambda: f"batch-{next(numbers)}")
        self.driver = drivers.Driver(
            core, executor.Executor(clock=clock), executor.Observer(self.counters, clock), clock
        )
        self.predictor = grpc_predictor.GrpcPredictor(upstream or self.fake.grpc, 5.0, 2**31 - 1)
        self.registry = model_registry.ModelRegistry(self.predictor.model_info, self._make_codec, True, clock)
        self.passthrough = passthrough.Passthrough(self.predictor.channel, port.bug_report(self.counters))
        known = routes.Models(self.registry, self.predictor, is_http=False)
        self.service = service.GrpcService(
            known, self.passthrough, self.driver, self.life, self.counters, self.bodies, port.bug_report(self.counters),
            lambda: self.max_rows(), ("authorization", "content-type"),
        )  # fmt: skip
        self.server = server.Server(self.service, report=port.bug_report(self.counters, "http2"))
        await self.server.listen("127.0.0.1", 0)
        self.channel = grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def stop(self) -> None:
        await self.channel.close()
        self.driver.close()
        await self.passthrough.close()
        await self.server.close(0.2)
        self.service.close()
        await self.registry.close()
        await self.predictor.close()

    def _make_codec(self, model: model_registry.Model) -> codec.Codec:
        return codec.Codec(models.ModelInfo(), model.avoid)

    async def infer(self, message: bytes, **options: Any) -> bytes:
        return await self.channel.unary_unary(INFER)(message, timeout=options.pop("timeout", 5), **options)

    def counted(self, lane: str, code: str) -> float:
        wanted = f'carpool_rpc_requests_total{{code="{code}",lane="{lane}"}}'
        for line in self.counters.render().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if sorted(name) == sorted(wanted):
                return float(value)
        return 0.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process brings about."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
