"""Inputs share passes so that the total cost is the least possible, in any shape or in those that were measured."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from carpool_predictor.models import bucketing

LENGTHS = st.lists(st.integers(1, 256), max_size=60)
ANY = st.builds(bucketing.AnyShape, st.integers(0, 500), st.integers(1, 4000))


@st.composite
def buckets(draw: st.DrawFn) -> tuple[dict[bucketing.Bucket, float], bucketing.Buckets]:
    """Costs of some shapes, each width with one row and maybe more, and the buckets that are made of them."""
    costs: dict[bucketing.Bucket, float] = {}
    for width in draw(st.sets(st.integers(1, 256), max_size=4)):
        for rows in draw(st.sets(st.integers(2, 9), max_size=3)) | {1}:
            costs[bucketing.Bucket(rows, width)] = draw(st.integers(1, 50))
    return costs, bucketing.Buckets(costs, bucketing.AnyShape(10, 500))


SHAPES = st.one_of(ANY, buckets().map(lambda made: made[1]))


@given(LENGTHS, SHAPES)
def test_every_input_is_in_one_pass_and_passes_are_sorted(lengths: list[int], shapes: bucketing.Shapes) -> None:
    order = [index for each in bucketing.plan(lengths, shapes) for index in each.indices]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths)


@given(LENGTHS, SHAPES)
def test_every_pass_has_room_for_its_inputs(lengths: list[int], shapes: bucketing.Shapes) -> None:
    for each in bucketing.plan(lengths, shapes):
        assert 1 <= len(each.indices) <= each.rows
        assert max(lengths[index] for index in each.indices) <= each.width


@given(LENGTHS, st.integers(0, 500), st.integers(1, 4000))
def test_passes_of_any_shape_stay_within_their_bound_unless_one_input_exceeds_it(
    lengths: list[int], overhead: int, most: int
) -> None:
    for each in bucketing.plan(lengths, bucketing.AnyShape(overhead, most)):
        assert each.rows == len(each.indices)
        assert each.rows == 1 or each.rows * each.width <= most


@given(LENGTHS, buckets())
def test_a_pass_that_is_no_bucket_is_wider_than_all_of_them(
    lengths: list[int], made: tuple[dict[bucketing.Bucket, float], bucketing.Buckets]
) -> None:
    costs, shapes = made
    for each in bucketing.plan(lengths, shapes):
        is_wider = each.width > max((bucket.width for bucket in costs), default=0)
        assert is_wider or bucketing.Bucket(each.rows, each.width) in costs


def partitions(ordered: list[int]) -> list[list[list[int]]]:
    """All ways to cut a list."""
    places = range(1, len(ordered))
    return [
        [ordered[a:b] for a, b in itertools.pairwise((0, *cuts, len(ordered)))]
        for count in range(len(ordered))
        for cuts in itertools.combinations(places, count)
    ]


@given(
    st.lists(st.integers(1, 32).map(lambda steps: steps * bucketing.STEP), min_size=1, max_size=9), st.integers(0, 500)
)
def test_no_partition_of_the_sorted_lengths_costs_less_in_any_shape(lengths: list[int], overhead: int) -> None:
    def cost(groups: list[list[int]]) -> int:
        return sum(overhead + max(group) * len(group) for group in groups)

    passes = bucketing.plan(lengths, bucketing.AnyShape(overhead, 10**9))
    planned = [[lengths[index] for index in each.indices] for each in passes]
    assert cost(planned) == min(map(cost, partitions(sorted(lengths))))


@given(st.lists(st.integers(1, 256), min_size=1, max_size=7), buckets())
def test_no_way_to_cut_between_widths_and_to_fill_buckets_costs_less(
    lengths: list[int], made: tuple[dict[bucketing.Bucket, float], bucketing.Buckets]
) -> None:
    costs, _ = made
    costs |= {bucketing.Bucket(1, 256): 60.0}  # so that everything fits into some bucket
    costs |= {bucketing.Bucket(9, width): 70.0 for width in {bucket.width for bucket in costs}}
    shapes = bucketing.Buckets(costs, bucketing.AnyShape(0, 1))

    def width(length: int) -> int:
        return min(bucket.width for bucket in costs if bucket.width >= length)

    def cheapest(count: int, width: int) -> float:
        of_width = [(bucket.rows, cost) for bucket, cost in costs.items() if bucket.width == width]
        return min(cost + cheapest(count - rows, width) for rows, cost in of_width) if count > 0 else 0.0

    planned = sum(costs[bucketing.Bucket(each.rows, each.width)] for each in bucketing.plan(lengths, shapes))
    possible = [
        sum(cheapest(len(group), width(group[-1])) for group in groups)
        for groups in partitions(sorted(lengths))
        if all(width(one[-1]) != width(other[0]) for one, other in itertools.pairwise(groups))
    ]
    assert planned == min(possible)


def test_the_largest_bucket_comes_first_and_none_is_over_the_bound() -> None:
    made = bucketing.grid((1, 4, 16), (8, 32), 256)
    assert math.prod(made[0]) == max(map(math.prod, made))
    assert set(made) == {bucketing.Bucket(*each) for each in [(1, 8), (4, 8), (16, 8), (1, 32), (4, 32)]}
