"""The benchmark of the sidecar's own code: each protocol's request goes all the way, in one batch."""

from __future__ import annotations

import pytest

from benchmarks import own


@pytest.mark.parametrize("cell", own.CELLS)
async def test_every_cell_measures_requests_that_share_a_batch(cell: str) -> None:
    before, after = await own.microseconds(cell, tries=1, turns=2)
    assert before > 0
    assert after > 0
