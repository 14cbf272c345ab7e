"""A sidecar's gRPC side in front of a fake predictor."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from tests.fakes import fake_v2
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import Site


@pytest.fixture
async def fake() -> AsyncIterator[fake_v2.FakeV2]:
    async with fake_v2.running() as running:
        yield running


@pytest.fixture
async def site(fake: fake_v2.FakeV2) -> AsyncIterator[Site]:
    made = Site(fake)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def peer_site(fake: fake_v2.FakeV2, peer: Peer) -> AsyncIterator[Site]:
    """One whose predictor is `peer`."""
    made = Site(fake)
    await made.start(peer.address)
    yield made
    await made.stop()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
