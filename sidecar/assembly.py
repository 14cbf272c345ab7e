"""One running sidecar: the only place where the parts are joined."""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Sequence

import yarl
from aiohttp import web

from sidecar import config, driver, lifecycle, logs, metrics
from sidecar.core import policies, scheduler
from sidecar.http import admin, front, intake, passthrough, predict
from sidecar.upstream import predictor, probes, readiness

log = logging.getLogger("carpool")

_MAX_HEAD_FIELD = 64 * 1024
_BACKLOG = 4096
# Connections that are still busy when everything accepted has been answered belong to tunnels and streams.
_CLOSING_SECONDS = 1.0


class Sidecar:
    """Listens from `start()` to `stop()`; in between, `drain()` leads the way out.

    `wanted` are the probes that decide whether the predictor is ready. `clock` returns seconds and never goes back.
    """

    def __init__(
        self, chosen: config.Settings, wanted: Sequence[probes.Probe], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = chosen
        self.metrics = metrics.Metrics()
        self.life = lifecycle.Lifecycle()
        self.ready = readiness.Readiness(wanted, clock)
        self.limits = chosen.core_limits()
        self.core = scheduler.Scheduler(self.limits, policies.Window(self.limits), clock, _new_batch_id)
        self._base = yarl.URL.build(scheme="http", host=probes.LOOPBACK, port=chosen.component_port)
        self.predictor = predictor.HttpPredictor(str(self._base), chosen.connect_timeout)
        self.driver = driver.Driver(self.core, self.predictor, self.metrics, clock)
        self.bodies = intake.Intake(
            chosen.max_body_bytes, chosen.max_queue_bytes, chosen.timeout, lambda: self.core.admission.held
        )
        self._relay: passthrough.PassThrough | None = None
        self._runners: list[web.BaseRunner] = []
        self._watch()

    async def start(self) -> None:
        """Listen on both ports; raises `OSError` if one is taken."""
        await self._listen(self._admin_runner(), self.settings.admin_host, self.settings.admin_port)
        await self._listen(self._data_runner(), self.settings.host, self.settings.port)
        log.info("serving", extra=logs.facts(**self._summary()))

    async def drain(self) -> None:
        """Announce the end, keep serving for the quiet period, then answer what was accepted."""
        self.metrics.draining.set(1)
        await self.life.drain(self.driver, self.settings.quiet_period)

    async def stop(self) -> None:
        """Close everything; callers that are still waiting get 503."""
        await self.driver.close()
        if self._relay is not None:
            await self._relay.close()
        for runner in reversed(self._runners):
            await runner.cleanup()
        await self.predictor.close()
        await self.ready.close()

    def apply(self, changed: config.Settings) -> None:
        """Put changed live settings in force."""
        self.settings = changed
        limits = changed.core_limits()
        for field in dataclasses.fields(limits):
            setattr(self.limits, field.name, getattr(limits, field.name))
        self.bodies.max_body_bytes = changed.max_body_bytes
        self.bodies.max_buffered_bytes = changed.max_queue_bytes
        self.bodies.read_timeout = changed.timeout
        logging.getLogger().setLevel(changed.log_level.upper())
        self.driver.limits_changed()
        log.info("settings changed", extra=logs.facts(**{name: getattr(changed, name) for name in changed.live}))

    # --- parts -------------------------------------------------------------------------------------------------

    def _data_runner(self) -> web.ServerRunner:
        relay = self._relay = passthrough.PassThrough(self._base, connect_timeout=self.settings.connect_timeout)
        self.metrics.watch(self.metrics.tunnels, lambda: relay.tunnels)
        lane = predict.PredictLane(lambda: self.settings, self.bodies, self.driver)
        door = front.Front(lane if self.settings.enable_batcher else None, relay, self.ready, self.life, self.metrics)
        server = web.Server(
            door.handle,
            handler_cancellation=True,  # a caller that leaves is taken out of the queue
            auto_decompress=False,  # pass-through keeps bodies as they are, and the intake has its own limits
            access_log=None,
            keepalive_timeout=self.settings.keep_alive,
            max_line_size=_MAX_HEAD_FIELD,
            max_field_size=_MAX_HEAD_FIELD,
        )
        return web.ServerRunner(server, shutdown_timeout=_CLOSING_SECONDS)

    def _admin_runner(self) -> web.AppRunner:
        office = admin.Admin(lambda: self.settings, self.apply, self.drain, self.life, self.ready, self.metrics)
        return web.AppRunner(office.application(), access_log=None, shutdown_timeout=_CLOSING_SECONDS)

    async def _listen(self, runner: web.BaseRunner, host: str, port: int) -> None:
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()

    def _watch(self) -> None:
        watch, core = self.metrics.watch, self.core
        watch(self.metrics.in_flight, lambda: len(core.in_flight))
        watch(self.metrics.queued_instances, lambda: core.backlog.rows)
        watch(self.metrics.queued_bytes, lambda: core.backlog.size)
        watch(self.metrics.queues, lambda: len(core.backlog))
        watch(self.metrics.held_bytes, lambda: core.admission.held + self.bodies.buffered_bytes)

    def _summary(self) -> dict[str, object]:
        chosen = self.settings
        return {
            "port": chosen.port,
            "admin_port": chosen.admin_port,
            "predictor": str(self._base),
            "batching": chosen.enable_batcher,
            "max_batch_size": chosen.max_batch_size,
            "max_latency_ms": chosen.max_latency,
        }


def _new_batch_id() -> str:
    return str(uuid.uuid4())
