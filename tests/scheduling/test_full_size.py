"""How large a batch counts as full: the size at which a predictor is measured to do most rows a second."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from carpool.scheduling import limits, messages, tuning
from carpool.scheduling.full_size import FullSize
from carpool.scheduling.predictor_model import PredictorModel

MOST = 128


def affine(rows: float) -> float:
    return 0.008 + 0.0001 * rows


def bent(rows: float) -> float:
    """As a model on a GPU: 96 rows are served at a higher rate than 128."""
    return 0.0008 + 0.000023 * rows + max(0.0, rows - 96) * 0.00005


class Saturated:
    """Full batches one after another at a serial predictor."""

    def __init__(self, seconds: Callable[[float], float], noise: float = 0.05) -> None:
        self.full_size = FullSize()
        self.predictor = PredictorModel(limits.Limits(max_batch_size=MOST))
        self.seconds = seconds
        self.noise = noise
        self.chance = random.Random(3)
        self.spent = self.rows = 0.0

    def teach(self, *sizes: int) -> Saturated:
        """Lone batches before."""
        for number, size in enumerate(sizes):
            batch = messages.Batch(
                "id", "key", [messages.Part(messages.Request("key", size), 0, size)], messages.Reason.FULL
            )
            self.predictor.sent(batch, float(number))
            self.predictor.completed(batch, number + self.seconds(size))
        return self

    def run(self, batches: int) -> list[int]:
        """The sizes of so many batches."""
        sizes = []
        for _ in range(batches):
            size = int(self.full_size.of(MOST))
            sizes.append(size)
            took = self.seconds(size) * self.chance.lognormvariate(0, self.noise)
            self.full_size.sent(MOST, self.predictor)
            self.full_size.completed(size, MOST, took)
            self.spent += took
            self.rows += size
        return sizes

    @property
    def settled(self) -> float:
        return self.full_size.settled(MOST)


def test_before_anything_is_known_a_full_batch_is_the_largest():
    assert FullSize().of(MOST) == MOST


def test_a_predictor_that_does_more_in_smaller_batches_gets_them():
    saturated = Saturated(bent)
    saturated.run(200)
    assert saturated.settled == 96


def test_a_predictor_whose_time_grows_in_a_line_keeps_the_largest_and_loses_next_to_nothing_by_trials():
    saturated = Saturated(affine)
    saturated.run(2000)
    assert saturated.settled == MOST
    assert saturated.rows / saturated.spent >= 0.99 * MOST / affine(MOST)


def test_nothing_is_tried_that_costs_far_more_for_each_row_by_what_is_known():
    saturated = Saturated(affine).teach(1, 16, 32, 64, 96, 128)
    assert set(saturated.run(2000)) == {MOST}


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_noise_makes_no_batches_much_smaller(noise):
    saturated = Saturated(lambda rows: 0.0005 * rows**0.9, noise)
    saturated.run(1000)
    later = saturated.run(2000)
    assert sum(later) >= 0.7 * MOST * len(later)


def test_a_predictor_that_changes_gets_the_largest_again():
    saturated = Saturated(bent)
    saturated.run(200)
    saturated.seconds = affine
    saturated.run(4 * tuning.TRIAL_SELDOM)
    assert saturated.settled == MOST


def test_batches_that_do_not_follow_each_other_tell_nothing():
    saturated = Saturated(bent)
    for _ in range(300):
        saturated.run(1)
        saturated.full_size.interrupted()
    assert saturated.settled == MOST
