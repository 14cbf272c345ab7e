"""A predictor on a loopback socket, the client that talks to it, and the probes that ask whether it is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carpool_sidecar.batching import model_registry
from carpool_sidecar.upstream import predictor as predictors
from carpool_sidecar.upstream import probes, readiness
from tests.upstream.known_models import Codec, Make, Teller
from tests.upstream.probed import Clock, Predictor, Ready
from tests.upstream.wire import Wire


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    made = Wire()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def predictor(wire: Wire) -> AsyncIterator[predictors.HttpPredictor]:
    client = predictors.HttpPredictor(f"http://127.0.0.1:{wire.port}", 5.0)
    yield client
    await client.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def probed_predictor(aiohttp_raw_server: Any) -> AsyncIterator[Predictor]:
    predictor = Predictor()
    server = await aiohttp_raw_server(predictor.handle)
    predictor.port = server.port
    yield predictor
    predictor.gate.set()


@pytest.fixture
async def ready_if(clock: Clock) -> AsyncIterator[Ready]:
    made = []

    def make(*wanted: probes.Probe) -> readiness.Readiness:
        made.append(readiness.Readiness(wanted, clock))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture
def teller() -> Teller:
    return Teller()


@pytest.fixture
async def make_registry(teller: Teller) -> AsyncIterator[Make]:
    made = []

    def make_one(batches_unknown: bool = True, **options: Any) -> model_registry.ModelRegistry:
        clock = asyncio.get_running_loop().time
        made.append(model_registry.ModelRegistry(teller.ask, Codec, batches_unknown, clock, **options))
        return made[-1]

    yield make_one
    for each in made:
        await each.close()


@pytest.fixture
async def registry(make_registry: Make) -> model_registry.ModelRegistry:
    return make_registry()
