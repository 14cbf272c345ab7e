"""What rows of like length in a batch are worth, in simulated time."""

from __future__ import annotations

import pytest

from benchmarks.sim import lengths


@pytest.mark.parametrize("policy", ["adaptive", "window"])
def test_sixty_four_callers_get_far_more_from_a_model_that_pads_and_wait_no_longer(policy):
    plain = lengths.run(64, 30.0, groups=False, policy=policy)
    grouped = lengths.run(64, 30.0, groups=True, policy=policy)
    assert grouped.rate >= 1.5 * plain.rate
    assert grouped.p99 <= 1.02 * plain.p99


def test_where_padding_costs_next_to_nothing_nothing_changes():
    predictor = lengths.Padding(call=0.010, token=1e-7)
    plain = lengths.run(64, 5.0, groups=False, predictor=predictor)
    grouped = lengths.run(64, 5.0, groups=True, predictor=predictor)
    assert grouped.rate >= 0.98 * plain.rate
    assert grouped.p99 <= 1.05 * plain.p99
