"""How many batches the window policy has at the predictor where nobody said: as many as pay, found out by itself."""

from __future__ import annotations

import pytest

from carpool import errors
from carpool.scheduling import limits as core_limits
from carpool.scheduling import tuning
from carpool.scheduling.window import Window
from tests.scheduling.driven import DrivenScheduler


@pytest.fixture
def driven(driven_of):
    """Batches of 4 that wait 5 ms for company."""
    return driven_of(Window, max_batch_size=4, max_latency=0.005, max_in_flight=8, learns_in_flight=True)


def teach(driven: DrivenScheduler, overhead: float = 0.004) -> DrivenScheduler:
    """It knows a serial predictor of 10 ms and 1 ms a row."""
    driven.policy.predictor.hint_overhead(overhead)
    for number, size in enumerate((1, 2, 3, 1, 2, 3)):
        driven.submit(f"lesson-{number}", rows=size)
        driven.pass_time(0.005)
        driven.pass_time(overhead + 0.010 + 0.001 * size)
        driven.answer()
        driven.pass_time(0.5)
    driven.policy.predictor._judged = tuning.JUDGED_ENOUGH
    driven.sent.clear()
    return driven


def test_one_that_is_due_and_not_full_fills_until_it_would_arrive_as_the_predictor_is_done(driven):
    teach(driven)
    driven.submit("a")
    driven.pass_time(0.005)
    started = driven.now
    driven.submit("b")
    driven.pass_time(0.006)
    driven.submit("c")
    assert driven.sizes == [1]
    driven.pass_time(0.02)
    assert driven.sizes == [1, 2]
    assert driven.sent[1].dispatched == pytest.approx(started + 0.011, abs=0.0005)


def test_a_full_one_goes_beside_another_and_a_third_waits(driven):
    teach(driven)
    for number in range(14):
        driven.submit(f"r{number}")
    assert driven.sizes == [4, 4]
    driven.answer()
    assert driven.sizes == [4, 4, 4]


def test_while_the_way_there_is_unknown_only_a_full_one_goes_beside_another(driven):
    driven.submit("a")
    driven.pass_time(0.005)
    driven.submit("b")
    driven.pass_time(0.1)
    assert driven.sizes == [1]
    driven.answer()
    assert driven.sizes == [1, 1]


def test_after_so_many_lone_ones_one_goes_beside_another_to_show_how_their_times_overlap(driven):
    for number in range(tuning.PROBE_EVERY - 1):
        driven.submit(f"lone-{number}")
        driven.pass_time(0.015)
        driven.answer()
    driven.sent.clear()
    driven.submit("a")
    driven.pass_time(0.005)
    driven.submit("b")
    driven.pass_time(0.004)
    assert driven.sizes == [1]
    driven.pass_time(0.002)
    assert driven.sizes == [1, 1]
    driven.submit("c")
    driven.pass_time(0.006)
    assert driven.sizes == [1, 1]


def test_nothing_is_due_earlier_than_without_learning(driven):
    teach(driven)
    driven.submit("a")
    driven.pass_time(0.0049)
    assert driven.sizes == []
    driven.pass_time(0.0002)
    assert driven.reasons == ["due"]


def test_a_number_that_is_given_later_holds_at_once_and_so_does_its_removal(driven):
    teach(driven)
    driven.change(max_in_flight=1, learns_in_flight=False)
    for number in range(8):
        driven.submit(f"r{number}")
    assert driven.sizes == [4]
    driven.change(max_in_flight=8, learns_in_flight=True)
    driven.answer_all()
    driven.pass_time(0.1)
    assert driven.sizes == [4, 4]
    driven.answer_all()
    assert len(driven.answers) == 14


def test_a_batch_that_failed_is_not_waited_for(driven):
    teach(driven)
    driven.submit("a")
    driven.pass_time(0.005)
    driven.submit("b")
    driven.fail(errors.CarpoolError())
    driven.pass_time(0.005)
    assert driven.sizes == [1, 1]


def test_when_to_try_again_rests_on_how_many_are_really_out(driven_of):
    """Eight may be out, two are: the queue drains at the pace of two."""
    driven = driven_of(
        Window, max_batch_size=1, max_latency=0.0, max_in_flight=8, learns_in_flight=True, max_queue_instances=5
    )
    driven.policy.predictor._judged = tuning.JUDGED_ENOUGH
    for number in range(60):
        driven.submit(f"r{number}")
        if number % 2:
            driven.pass_time(4.0)
            driven.answer()
    driven.answer_all()
    for number in range(20):
        driven.submit(f"then-{number}")
    refusal = driven.refusals["then-19"]
    assert isinstance(refusal, errors.Overloaded)
    assert refusal.retry_after >= 5  # and not the 3 of eight at once


def test_a_given_number_is_obeyed_and_nothing_is_learned(driven_of):
    driven = driven_of(Window, max_batch_size=4, max_latency=0.0, max_in_flight=3)
    for number in range(6):
        driven.submit(f"r{number}")
    assert driven.sizes == [1, 1, 1]
    driven.answer_all()
    assert not driven.policy.predictor.is_known
    assert core_limits.Limits().learns_in_flight is False
