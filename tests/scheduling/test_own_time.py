"""What batching itself takes, learned from totals, and how far apart batches are to be because of it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import tuning
from carpool.scheduling.own_time import OwnTime, OwnTimeModel, Pace


def taught(own: OwnTime, sizes: list[int], batches: int = 32, noise: float = 0.0) -> OwnTime:
    """What is known after so many batches of each of these sizes, one after the other."""
    model, chance = OwnTimeModel(), random.Random(1)
    for size in sizes:
        seconds = batches * own.of(size) * (1 + noise * chance.uniform(-1, 1))
        model.observe(seconds, batches, batches * size)
    return model.now


def test_batches_of_several_sizes_tell_what_a_batch_takes_and_what_a_request_does():
    found = taught(OwnTime(0.0002, 0.00002), [4, 9, 16, 30, 7] * 20, noise=0.1)
    assert found.batch == pytest.approx(0.0002, rel=0.15)
    assert found.request == pytest.approx(0.00002, rel=0.15)


def test_batches_of_one_size_are_right_for_that_size_and_shared_out_as_usual():
    found = taught(OwnTime(0.0001, 0.00003), [16] * 50)
    assert found.of(16) == pytest.approx(0.0001 + 16 * 0.00003, rel=0.02)
    assert found.batch == pytest.approx(tuning.BATCH_IN_REQUESTS * found.request, rel=0.3)


def test_what_comes_later_counts_more():
    model = OwnTimeModel()
    for seconds in (0.001, 0.002):
        for size in [4, 16, 32] * 50:
            model.observe(seconds, 1, size)
    assert model.now.of(16) == pytest.approx(0.002, rel=0.05)


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.integers(1, 1000), st.integers(1, 100)).map(
            lambda drawn: (drawn[0], drawn[1], drawn[1] * drawn[2])
        ),
        min_size=1,
        max_size=50,
    )
)
def test_nothing_takes_less_than_no_time(samples):
    model = OwnTimeModel()
    for sample in samples:
        model.observe(*sample)
        assert min(model.now) >= 0


OWN = OwnTime(0.0001, 0.00001)


def paced(requests: int, apart: float, longest: float = 1.0, batches: int = 200) -> tuple[Pace, float]:
    """After so many batches of so many requests, one as long after the other; and when the last one left."""
    model = OwnTimeModel()
    for size in [4, 9, 16, 30, 7] * 20:
        model.observe(OWN.of(size), 1, size)
    pace, now = Pace(model), 1000.0
    for _ in range(batches):
        now += apart
        pace.sent(requests, now, longest)
    return pace, now


def test_batches_are_not_kept_apart_while_the_core_has_time_to_spare():
    pace, now = paced(10, 0.0003)  # at work for two thirds of the time
    assert pace.next_at <= now


def test_a_busy_core_has_batches_as_far_apart_as_makes_requests_wait_least():
    pace, now = paced(10, 0.0002)
    left = 1 - 10 * OWN.request / 0.0002
    # It was 0.2 ms until now: less than wanted, by as much as each was early.
    assert pace.next_at - now == pytest.approx(OWN.batch * (1 + math.sqrt(left)) / left, rel=0.1)


def test_a_batch_that_was_late_lets_the_next_one_leave_as_much_earlier():
    pace, now = paced(10, 0.00018)
    wanted = pace.next_at - now
    pace.sent(10, pace.next_at + wanted / 4, 1.0)
    assert pace.next_at - now == pytest.approx(2 * wanted, rel=0.05)


def test_requests_that_are_too_many_for_the_core_wait_no_longer_than_they_may():
    pace, now = paced(50, 0.0002, longest=0.003)
    assert pace.next_at == pytest.approx(now + 0.003)


def test_nothing_is_kept_apart_before_anybody_has_measured():
    pace = Pace(OwnTimeModel())
    for step in range(100):
        pace.sent(10, step * 1e-6, 1.0)
        assert pace.next_at <= step * 1e-6


@given(
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 100)), min_size=1, max_size=100),
    st.floats(0, 1),
)
def test_no_batch_is_put_off_for_longer_than_allowed(own, sent, longest):
    model = OwnTimeModel()
    for size in range(1, 20):
        model.observe(OwnTime(*own).of(size), 1, size)
    pace, now = Pace(model), 0.0
    for requests, apart in sent:
        now += apart
        pace.sent(requests, now, longest)
        assert now <= pace.next_at <= now + longest
