"""A batch's way to the model and back: what is made of the times of its callers."""

from __future__ import annotations

import json

import pytest

from benchmarks import cycle
from carpool_predictor import model
from carpool_predictor.models import echo


def seen(number: int, sent: list[float]) -> list[cycle.Seen]:
    """A batch that is at the model 10 to 20 ms after `number` hundredths of a second, and back 1 ms later and more."""
    start = number / 100
    return [
        cycle.Seen(start + each, start + 0.010, start + 0.020, start + 0.021 + place / 1000)
        for place, each in enumerate(sent)
    ]


def test_a_batchs_steps_add_up_to_the_time_between_its_last_callers_requests_and_the_nexts() -> None:
    (found,) = cycle.steps([*seen(0, [0.003, 0.009]), *seen(3, [0.001, 0.002])], 2)
    assert found == pytest.approx((0.001, 0.010, 0.001, 0.002, 0.010))
    assert found.all == pytest.approx(0.032 - 0.009)


def test_batches_that_lacked_a_caller_are_left_out_with_those_before_them() -> None:
    batches = [seen(0, [0.0, 0.0]), seen(3, [0.0, 0.0]), seen(6, [0.0]), seen(9, [0.0, 0.0]), seen(12, [0.0, 0.0])]
    found = list(cycle.steps([each for batch in batches for each in batch], 2))
    assert len(found) == 2


def test_who_was_left_out_of_a_batch_is_told_from_who_waited_for_somebody_else() -> None:
    usual = [each for number in range(0, 300, 3) for each in seen(number, [0.008, 0.009])]
    alone = [cycle.Seen(3.0095, 3.030, 3.040, 3.041)]  # its batch had to wait for the one that left at 3.01
    late = seen(306, [0.0, 0.009])
    found = list(cycle.slowest([*usual, *seen(300, [0.008, 0.009]), *alone, *late], 0.01))
    assert [(each.why, round(each.beyond, 4)) for each in found] == [
        ("another caller of its batch, who sent later", 0.009),
        (cycle.LEFT_OUT, 0.0105),
    ]


def test_nothing_is_slow_where_nothing_was_seen() -> None:
    assert not list(cycle.slowest([]))


def test_the_model_answers_each_row_with_when_its_batch_came_and_when_it_was_done() -> None:
    stamping = cycle.Stamping(echo.ServiceTime(0.0, 0.0))
    assert isinstance(stamping, model.StagedModel)
    answers = [json.loads(bytes(row)) for row in stamping.finish(stamping.compute(stamping.prepare([b"1", b"2"])))]
    assert answers[0] == answers[1]
    came, left = answers[0]
    assert 0 <= left - came < 60
