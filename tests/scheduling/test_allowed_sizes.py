"""Batch sizes the predictor computes with: what is sent, what is padded, what is left for the next batch."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool.scheduling import backlog, limits, messages, packing

POWERS = (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    ("text", "expected"), [("", ()), (" ", ()), ("8", (8,)), ("1,2,4", (1, 2, 4)), (" 1, 3 ,100 ", (1, 3, 100))]
)
def test_sizes_are_read_as_written(text, expected):
    assert packing.parse_sizes(text) == expected


@pytest.mark.parametrize("text", ["0,1", "4,2", "2,2", "1,,2", "1,2,", "-1", "1.5", "many", "1;2", "1" * 5000, "٣"])
def test_sizes_that_make_no_sense_are_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match="is not a list of ascending whole numbers from 1, like 1,2,4,8"):
        packing.parse_sizes(text)


@pytest.mark.parametrize(
    ("n", "down", "up"), [(1, 1, 1), (3, 2, 4), (8, 8, 8), (31, 16, 32), (32, 32, 32), (40, 32, 40)]
)
def test_between_two_sizes_one_is_filled_and_the_other_padded(n, down, up):
    assert (packing.usable(n, POWERS), packing.padded(n, POWERS)) == (down, up)


def test_fewer_than_the_smallest_size_are_sent_padded():
    assert packing.best_size(3, (4, 8)) == 3


def test_any_number_is_sent_if_any_size_is_allowed():
    assert packing.best_size(13, (), lambda size: 1 / size) == 13


@pytest.mark.parametrize(
    ("fixed", "n", "sent"),
    [
        (0.0, 5, 4),  # a predictor without fixed time: padding is as dear as work
        (20.0, 5, 5),  # (20 + 8) / 5 beats (20 + 4) / 4: one call for all is cheaper
        (2.0, 9, 8),  # (2 + 16) / 9 does not beat (2 + 8) / 8
    ],
)
def test_the_size_that_costs_least_per_instance_wins(fixed, n, sent):
    assert packing.best_size(n, POWERS, lambda size: fixed + size) == sent


def test_a_tie_sends_all():
    assert packing.best_size(3, POWERS, lambda size: {2: 2.0, 4: 3.0}[size]) == 3


SIZES = st.sets(st.integers(1, 60), max_size=6).map(lambda found: tuple(sorted(found)))


@given(n=st.integers(1, 80), allowed=SIZES, fixed=st.floats(0, 100), slope=st.floats(0.001, 10))
def test_no_choice_is_cheaper_per_instance_than_the_best_size(n, allowed, fixed, slope):
    def price(sent):
        return (fixed + slope * packing.padded(sent, allowed)) / sent

    sent = packing.best_size(n, allowed, lambda size: fixed + slope * size)
    most = min(n, allowed[-1]) if allowed else n
    down = [size for size in allowed if size <= most]
    assert sent == most or sent in down
    assert all(price(sent) <= price(other) * (1 + 1e-9) for other in [most, *down])


@given(n=st.integers(1, 80), allowed=SIZES)
def test_without_a_known_price_nothing_is_padded_if_it_can_be_helped(n, allowed):
    sent = packing.best_size(n, allowed)
    assert not allowed or sent in allowed or n < allowed[0]


def take(rows, bound, size=32):
    waiting = backlog.Backlog(limits.Limits(max_batch_size=size))
    for sequence, count in enumerate(rows):
        request = messages.Request("key", count)
        request.sequence, request.goal = sequence, math.inf
        waiting.add(request)
    queue = waiting.oldest()
    parts = waiting.take(queue, bound)
    assert waiting.rows == queue.rows == sum(rows) - sum(stop - start for _, start, stop in parts)
    return [stop - start for _, start, stop in parts]


@pytest.mark.parametrize(
    ("rows", "bound", "expected"),
    [
        ([1] * 6, 4, [1, 1, 1, 1]),
        ([3, 3], 4, [3]),  # no cut for the sake of a size
        ([5, 1], 4, [5]),  # the first one always travels
        ([1, 5], 4, [1]),
        ([40], 4, [4]),  # larger than a batch: cut anyway
        ([3, 40], 4, [3, 1]),
        ([1] * 40, None, [1] * 32),
        ([1] * 40, 50, [1] * 32),
        ([2], 0, [2]),
    ],
)
def test_fewer_rows_can_be_asked_for_and_requests_are_still_not_cut_without_need(rows, bound, expected):
    assert take(rows, bound) == expected
