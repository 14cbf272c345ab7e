"""The data port on a socket, with whoever is to answer behind it: a handler of a test's own, or the relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from carpool.scheduling import ledger
from carpool_sidecar import config, drain, metrics
from carpool_sidecar.server import listening, predict
from carpool_sidecar.server.http1 import bodies, exchange, handler, messages, relay, requests
from carpool_sidecar.server.http1 import server as http1
from carpool_sidecar.upstream import connection, predictor, readiness
from tests import loopback
from tests.server import connection_bench


def rules_of(settings: config.Settings, memory: ledger.Ledger) -> predict.PredictRules:
    """The rules of predict requests where nobody is to make any."""
    of_bodies = bodies.Limits(settings.max_body_bytes, memory, settings.timeout)
    life = drain.Lifecycle(memory)
    limits = settings.scheduler_limits
    return predict.PredictRules(settings, limits, of_bodies, connection_bench.V1_ROUTES, life, metrics.Metrics())


@asynccontextmanager
async def serving(
    answering: handler.Handler, memory: ledger.Ledger, **chosen: Any
) -> AsyncIterator[tuple[http1.Server, int]]:
    """A server that batches nothing, and its port."""
    settings = config.Settings(policy="window", enable_batcher=False, **chosen)
    clock = asyncio.get_running_loop().time
    plain = requests.PlainRequests(rules_of(settings, memory), connection_bench.Driver(memory), clock)
    limit = listening.ConnectionLimit(1000, lambda: None)
    server = http1.Server(settings, plain, answering, limit)
    port = loopback.free_port()
    await server.listen("127.0.0.1", port, 100)
    try:
        yield server, port
    finally:
        await server.close(0)
        await asyncio.sleep(0)


class Front:
    """A relay to a predictor."""

    def __init__(self, predictor_port: int) -> None:
        self.settings = config.Settings(policy="window", enable_batcher=False)
        self.memory = ledger.Ledger(self.settings.max_queue_bytes)
        self._streams = predictor.Pool(f"http://127.0.0.1:{predictor_port}", 5.0, connection.LenientReader)
        self.relays = relay.Relays(self._streams, lambda: False, lambda status: None)
        nobody = cast(readiness.Readiness, None)  # whom nobody asks
        self.rules = rules_of(self.settings, self.memory)
        self.handler = handler.Handler(self.rules, None, self.relays, nobody)

    @property
    def tunnels(self) -> int:
        """So many are open."""
        return len(self.relays.tunnels)

    async def close(self) -> None:
        """As a sidecar does in the end; returns when all tunnels are gone."""
        self.relays.close_tunnels()
        while self.relays.tunnels:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await self._streams.close()


class ReadingFirst(handler.Handler):
    """Passes requests on with bodies that were read before."""

    def __init__(self, relays: relay.Relays, limits: bodies.Limits) -> None:
        self._relays = relays
        self._limits = limits

    def read_head(self, text: bytes) -> messages.RequestHead:
        return messages.read_head(text)

    def begin(self, asked: exchange.Exchange) -> None:
        asked.cancel = asyncio.get_running_loop().create_task(self._read_first(asked)).cancel

    async def _read_first(self, asked: exchange.Exchange) -> None:
        body = await handler.read_body(asked, self._limits)
        relay.Relay(self._relays, asked, lambda error: None, body).start()


@asynccontextmanager
async def relaying(predictor_port: int, reads_first: bool = False, **chosen: Any) -> AsyncIterator[tuple[Front, int]]:
    """A relay to a predictor, and the port in front of it."""
    front = Front(predictor_port)
    answering = ReadingFirst(front.relays, front.rules.bodies) if reads_first else front.handler
    async with serving(answering, front.memory, **chosen) as (_, port):
        yield front, port
        await front.close()
