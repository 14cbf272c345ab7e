"""The gRPC port, put together: an HTTP/2 server, the service that takes its calls, and the way to the predictor.

Imported only where gRPC is asked for, as it needs packages that a plain installation lacks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from carpool.program import logs
from carpool.runtime import driver
from carpool.scheduling import limits
from carpool_sidecar import config, drain, metrics, turns
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.server import listening
from carpool_sidecar.server.grpc import arrivals, passthrough, service
from carpool_sidecar.server.http2 import limits as http2_limits
from carpool_sidecar.server.http2 import server
from carpool_sidecar.upstream import grpc_predictor

log = logging.getLogger("carpool.sidecar.server")


def bug_report(counters: metrics.Metrics, where: metrics.Place = "rpc") -> arrivals.Report:
    """Logs each bug that was caught while a call was handled, with its traceback, and counts it."""
    count = counters.internal_errors.labels(where)

    def report(error: Exception) -> None:
        log.error("a call failed for a reason that is a bug", exc_info=error, extra=logs.facts(where=where))
        count.inc()

    return report


class GrpcPort:
    """All that serves gRPC, until `close()`; `server` listens. `models` is None when batching is off.

    `timings` go with answers, if there are any. `clock` is the sidecar's.
    """

    def __init__(
        self,
        chosen: config.Settings,
        bounds: limits.Limits,
        models: routes.Models | None,
        upstream: grpc_predictor.GrpcPredictor,
        calls_driver: driver.Driver,
        life: drain.Lifecycle,
        counters: metrics.Metrics,
        bodies: arrivals.MessageLimits,
        connection_limit: listening.ConnectionLimit,
        timings: calls.ServerTimings | None = None,
        clock: Callable[[], float] = time.monotonic,
        worked: turns.Turns | None = None,
    ) -> None:
        report = bug_report(counters)
        self._passthrough = passthrough.Passthrough(upstream.channel, report)
        self._service = service.GrpcService(
            models, self._passthrough, calls_driver, life, counters, bodies, report,
            lambda: int(bounds.max_queue_instances), chosen.key_headers, timings, clock, worked,
            chosen.forwarded, chosen.priority_header,
        )  # fmt: skip
        self.server = server.Server(
            self._service,
            http2_limits.Limits(keep_alive=chosen.keep_alive, handshake=chosen.head_timeout),
            bug_report(counters, "http2"),
            bodies.memory,
            connection_limit,
            lambda: bounds.timeout,
        )

    async def close(self, patience: float) -> None:
        """Accept no more connections; calls have `patience` seconds to end."""
        await self.server.close(patience)
        await self._passthrough.close()
        self._service.close()
