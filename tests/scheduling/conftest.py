"""Fixtures for tests of the core, which need no event loop."""

from __future__ import annotations

import pytest

from tests.scheduling.desk import Desk


@pytest.fixture
def desk_of():
    return Desk


@pytest.fixture
def desk() -> Desk:
    """Batches of 4, half a second, one in flight."""
    return Desk(max_batch_size=4, max_latency=0.5)
