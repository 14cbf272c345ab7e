"""Histograms: how they are counted, and what can be said of values of which only the bucket is known."""

from __future__ import annotations

import bisect
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool import measures

BOUNDS = (0.5, 1, 2.5, 1024)
VALUES = st.lists(st.sampled_from([0.0, *map(float, BOUNDS)]) | st.floats(0, 2000))


def measured(values: list[float]) -> measures.Distribution:
    histogram = measures.Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    return histogram.read()


@given(VALUES)
def test_many_values_at_once_are_counted_as_one_by_one(values: list[float]) -> None:
    histogram = measures.Histogram(BOUNDS)
    histogram.observe_all(values)
    assert histogram.read().counts == measured(values).counts
    assert histogram.read().sum == pytest.approx(sum(values))


@given(VALUES, st.floats(0, 1e6))
def test_times_since_some_moments_are_counted_as_their_differences(ages: list[float], now: float) -> None:
    histogram = measures.Histogram(BOUNDS)
    moments = [now - age for age in ages]
    histogram.observe_since(moments, now)
    waits = [now - moment for moment in moments]
    assert histogram.read().counts == measured(waits).counts
    assert histogram.read().sum == pytest.approx(sum(waits), abs=1e-6)


def test_what_was_read_stays_as_it_was() -> None:
    histogram = measures.Histogram(BOUNDS)
    histogram.observe(1)
    read = histogram.read()
    histogram.observe(2)
    assert (read.count, read.sum, histogram.read().count) == (1, 1, 2)
    histogram.reset()
    assert histogram.read() == measures.Distribution.empty(BOUNDS)


@given(VALUES.filter(bool), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    bucket = bisect.bisect_left(BOUNDS, true)
    lower, upper = [0.0, *BOUNDS, math.inf][bucket : bucket + 2]
    assert lower <= measured(values).quantile(share) <= upper


@given(VALUES)
def test_quantiles_rise_and_stay_below_the_ceiling(values: list[float]) -> None:
    found = measured(values)
    quantiles = [found.quantile(share / 10) for share in range(11)]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] == found.ceiling
    assert all(value <= found.ceiling for value in values)


def test_a_quantile_is_as_prometheus_would_estimate_it() -> None:
    found = measured([0.7] * 40 + [2.0] * 60)
    assert found.p50 == pytest.approx(1 + 1.5 * 10 / 60)
    assert found.mean == pytest.approx(1.48)


def test_nothing_is_claimed_of_values_above_all_bounds() -> None:
    found = measured([1.0, 5000.0])
    assert (found.p99, found.ceiling, found.mean) == (math.inf, math.inf, 2500.5)


def test_without_values_everything_is_0() -> None:
    empty = measures.Distribution.empty(BOUNDS)
    assert (empty.count, empty.mean, empty.p50, empty.p99, empty.ceiling) == (0, 0, 0, 0, 0)


def test_a_share_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not 99"):
        measured([1.0]).quantile(99)


@given(VALUES, VALUES)
def test_distributions_add_up(some: list[float], others: list[float]) -> None:
    both = measured(some) + measured(others)
    assert both.counts == measured(some + others).counts
    assert both.sum == pytest.approx(sum(some + others))


def test_distributions_of_different_bounds_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="cannot be added up"):
        measured([1]) + measures.Distribution.empty((1, 2))


def test_a_distribution_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(measured([1, 2]))) == measured([1, 2])


def test_what_came_since_is_the_difference_of_two_readings():
    histogram = measures.Histogram((1, 2))
    histogram.observe_all([0.5, 1.5])
    before = histogram.read()
    histogram.observe_all([1.5, 3.0])
    since = histogram.read().since(before)
    assert (since.counts, since.sum) == ((0, 1, 1), 4.5)
    with pytest.raises(ValueError, match="cannot be compared"):
        since.since(measures.Distribution.empty((1,)))
