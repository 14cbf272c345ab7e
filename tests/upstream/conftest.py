"""A predictor on a loopback socket, and the client that talks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sidecar.upstream import predictor as predictors
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
