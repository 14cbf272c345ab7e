"""Fixtures for tests of the core, which need no event loop."""

from __future__ import annotations

import pytest

from tests.scheduling.driven import DrivenScheduler


@pytest.fixture
def driven_of():
    return DrivenScheduler


@pytest.fixture
def driven() -> DrivenScheduler:
    """Batches of 4, half a second, one in flight."""
    return DrivenScheduler(max_batch_size=4, max_latency=0.5)
