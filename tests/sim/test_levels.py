"""What interactive callers have of a level of their own, in simulated time."""

from __future__ import annotations

import pytest

from benchmarks.sim import levels


@pytest.mark.parametrize("name", levels.SYSTEMS)
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_interactive_callers_wait_at_most_twice_as_long_in_a_flood_of_bulk_as_alone(name, share):
    system = levels.SYSTEMS[name]
    seconds = 3.0 if system.own.batch else 10.0
    alone = levels.run(system, share, 0.0, 1, seconds)
    beside = levels.run(system, share, levels.OVERLOAD, 1, seconds)
    assert beside.refused == 0
    assert beside.p99 <= 2 * alone.p99
    assert beside.rate >= 0.6 * system.possible
