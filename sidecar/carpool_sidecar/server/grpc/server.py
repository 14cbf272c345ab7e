"""The gRPC port, put together: a server, the door that takes its calls, and the way through for those not batched."""

from __future__ import annotations

from typing import Protocol

from carpool.runtime import driver
from carpool.scheduling import limits
from carpool_sidecar import config, drain, metrics
from carpool_sidecar.server.grpc import bugs, parts, passthrough, service
from carpool_sidecar.server.http2 import limits as http2_limits
from carpool_sidecar.server.http2 import server, unread
from carpool_sidecar.upstream import grpc_predictor


class Bodies(parts.Room, unread.Memory, Protocol):
    """The memory for requests and answers."""


class GrpcPort:
    """Listens from `listen()` to `close()`. `models` is None when batching is off."""

    def __init__(
        self,
        chosen: config.Settings,
        bounds: limits.Limits,
        models: parts.Models | None,
        upstream: grpc_predictor.GrpcPredictor,
        calls_driver: driver.Driver,
        life: drain.Lifecycle,
        counters: metrics.Metrics,
        bodies: Bodies,
        connection_limit: server.ConnectionLimit,
    ) -> None:
        self._relay = passthrough.Relay(upstream.channel, bugs.Bugs(counters).report)
        self._door = service.Door(
            models, self._relay, calls_driver, life, counters, bodies, lambda: bounds.max_queue_instances,
            chosen.key_headers,
        )  # fmt: skip
        self._server = server.Server(
            self._door,
            http2_limits.Limits(keep_alive=chosen.keep_alive, handshake=chosen.head_timeout),
            bugs.Bugs(counters, "http2").report,
            bodies,
            connection_limit,
        )

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Accept connections; raises `OSError` if the port is taken."""
        await self._server.listen(host, port, backlog)

    def goaway(self) -> None:
        """Tell clients to open new connections, which other pods may get."""
        self._server.goaway()

    async def turn_away(self) -> None:
        """Accept no more connections; returns when no more calls come on those there are, or within two seconds."""
        await self._server.turn_away()

    async def close(self, patience: float) -> None:
        """Accept nothing more; calls have `patience` seconds to end."""
        await self._server.close(patience)
        await self._relay.close()
        self._door.close()
