"""What batching itself takes, learned from totals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import tuning
from carpool.scheduling.own_time import OwnTime, OwnTimeModel


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
