"""Sentences share passes so that the total cost is the least possible."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from carpool_predictor.models import bucketing

LENGTHS = st.lists(st.integers(1, 256), max_size=60)


@given(LENGTHS, st.integers(0, 500), st.integers(1, 4000))
def test_every_sentence_is_in_one_pass_and_passes_are_sorted(lengths: list[int], overhead: int, most: int) -> None:
    order = [index for group in bucketing.plan(lengths, overhead, most) for index in group]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths)


@given(LENGTHS, st.integers(0, 500), st.integers(1, 4000))
def test_passes_stay_within_their_bound_unless_one_sentence_exceeds_it(
    lengths: list[int], overhead: int, most: int
) -> None:
    for group in bucketing.plan(lengths, overhead, most):
        assert len(group) == 1 or len(group) * lengths[group[-1]] <= most


@given(
    st.lists(st.integers(1, 32).map(lambda steps: steps * bucketing.STEP), min_size=1, max_size=9), st.integers(0, 500)
)
def test_no_partition_of_the_sorted_lengths_costs_less(lengths: list[int], overhead: int) -> None:
    def cost(groups: list[list[int]]) -> int:
        return sum(overhead + max(group) * len(group) for group in groups)

    ordered = sorted(lengths)
    places = range(1, len(ordered))
    partitions = (
        [ordered[a:b] for a, b in itertools.pairwise((0, *cuts, len(ordered)))]
        for count in range(len(ordered))
        for cuts in itertools.combinations(places, count)
    )
    planned = [[lengths[index] for index in group] for group in bucketing.plan(lengths, overhead, 10**9)]
    assert cost(planned) == min(map(cost, partitions))
