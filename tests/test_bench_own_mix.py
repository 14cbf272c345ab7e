"""The benchmark of the mix's own code: each kind of request is answered, over connections that go nowhere."""

from __future__ import annotations

import pytest
import uvloop

from benchmarks import own_mix


@pytest.mark.parametrize("cell", own_mix.CELLS)
def test_every_cell_measures_requests_that_are_answered(cell: str) -> None:
    assert uvloop.run(own_mix.microseconds(cell, tries=1, turns=2), loop_factory=own_mix.Loop) > 0
