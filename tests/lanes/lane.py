"""A sidecar in front of a recording predictor, in which plain requests take a short way, or that of any other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from aiohttp import web

from carpool_sidecar import config
from carpool_sidecar.app import wiring
from carpool_sidecar.upstream import probes
from tests import loopback
from tests.lanes import exchange, recorder

# Short where a test waits in virtual time, different where it matters which of them it was.
TIMES = {"timeout": 10.0, "head_timeout": 15.0, "keep_alive": 40.0, "connect_timeout": 5.0}
PATIENCE = 500.0  # seconds; longer than anything the server may take
# Every request finds a free place at the predictor: batches hold what one client sent at once, and nobody waits.
ALONE = {"policy": "window", "max_latency": 0.0, "max_in_flight": 1000, "max_batch_size": 8, "retry_budget": 100.0}
LIMITS = {"max_body_bytes": 400_000, "max_queue_instances": 64, "max_queue_bytes": 1 << 30}

_COUNTED = (
    "carpool_requests_total",
    "carpool_refused_total",
    "carpool_abandoned_total",
    "carpool_unbatched_total",
    "carpool_request_seconds_count",
)
_NOTHING_LEFT = (
    "carpool_batches_in_flight", "carpool_queued_instances", "carpool_queued_bytes", "carpool_held_bytes",
    "carpool_queues", "carpool_tunnels",
)  # fmt: skip


class Lane:
    """The sidecar, its predictor, and what both did. Start and use it in one event loop."""

    def __init__(self, fast: str, **chosen: Any) -> None:
        self.name = f"short way {fast}"
        self._fast = fast
        self.predictor = recorder.Recorder()
        self._runner = web.ServerRunner(self.predictor.server, shutdown_timeout=0.1)
        self._chosen = {**TIMES, **ALONE, **LIMITS, "quiet_period": 0.0, **chosen}

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        port, admin_port, self.component_port = loopback.free_ports(3)
        await web.TCPSite(self._runner, "127.0.0.1", self.component_port, backlog=1024).start()
        ports = {"port": port, "admin_port": admin_port, "component_port": self.component_port}
        settings = config.Settings(host="127.0.0.1", admin_host="127.0.0.1", **ports, **self._chosen)
        clock = asyncio.get_running_loop().time
        self.sidecar = wiring.Sidecar(settings, (probes.tcp_probe(self.component_port),), clock)
        await self.sidecar.start()
        if self._fast == "off" and self.sidecar._http is not None:
            self.sidecar._http.reader = None  # as where nothing is batched: no request is a plain one

    async def stop(self) -> None:
        """Close everything."""
        self.predictor.gate.set()
        await self.sidecar.stop()
        await self._runner.cleanup()

    async def converse(
        self, steps: list[exchange.Step], patience: float = PATIENCE, receive_buffer: int | None = None
    ) -> exchange.Transcript:
        """One client's connection to this sidecar."""
        return await exchange.Client(self.sidecar.settings.port, patience, receive_buffer).converse(steps)

    def counts(self) -> Counter[str]:
        """What was counted so far, by metric and labels."""
        return Counter({name: round(value) for name, value in self._samples(_COUNTED).items()})

    def leftovers(self) -> dict[str, float]:
        """Gauges that should be 0 when nobody is there, and are not; so too requests that never ended."""
        left = {name: value for name, value in self._samples(_NOTHING_LEFT).items() if value}
        if self.sidecar.life.active:
            left["requests being handled"] = self.sidecar.life.active
        return left

    def _samples(self, names: tuple[str, ...]) -> dict[str, float]:
        families = self.sidecar.metrics.registry.restricted_registry(names).collect()
        found = (sample for family in families for sample in family.samples if sample.name in names)
        return {f"{sample.name}{sorted(sample.labels.values())}": sample.value for sample in found}
