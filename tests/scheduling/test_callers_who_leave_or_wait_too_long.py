"""Cancellation and deadlines: whoever goes, the others notice nothing."""

import pytest

from carpool import errors


def test_cancelled_request_is_never_dispatched(driven):
    driven.submit("gone")
    driven.submit("stays")
    driven.cancel("gone")
    driven.pass_time(0.5)
    assert driven.members(driven.sent[0]) == ["stays"]


def test_batch_of_only_cancelled_requests_is_not_sent(driven):
    driven.submit("a")
    driven.submit("b")
    driven.cancel("a")
    driven.cancel("b")
    driven.pass_time(60)
    assert driven.sent == []
    assert driven.core.idle
    assert driven.core.next_deadline() is None


def test_cancelled_caller_does_not_disturb_its_batch_mates(driven):
    for name in "abcd":
        driven.submit(name, rows=1)
    driven.cancel("b")
    driven.answer()
    assert driven.answers == {"a": ["a/0"], "c": ["c/0"], "d": ["d/0"]}
    assert driven.refusals == {}


def test_a_batch_that_nobody_waits_for_any_more_gives_its_slot_to_those_who_do(driven):
    for name in "abcd":
        driven.submit(name)
    driven.submit("next", key="other")
    for name in "abc":
        driven.cancel(name)
    assert driven.abandoned == []
    driven.cancel("d")
    assert driven.abandoned == [driven.sent[0]]
    driven.pass_time(0.5)
    assert driven.members(driven.out[0]) == ["next"]


def test_cancelling_the_oldest_moves_the_deadline_to_the_next_one(driven):
    driven.submit("old")
    driven.pass_time(0.3)
    driven.submit("young")
    driven.cancel("old")
    driven.pass_time(0.2)
    assert driven.sent == []
    driven.pass_time(0.3)
    assert driven.members(driven.sent[0]) == ["young"]


def test_cancelling_twice_or_after_the_answer_changes_nothing(driven):
    driven.submit("a")
    driven.pass_time(0.5)
    driven.answer()
    driven.cancel("a")
    driven.cancel("a")
    assert driven.core.ledger.held == 0
    assert driven.answers == {"a": ["a/0"]}


def test_space_of_cancelled_requests_is_free_again(driven_of):
    driven = driven_of(max_queue_instances=2, max_queue_bytes=20)
    driven.submit("a")
    driven.submit("b")
    driven.cancel("a")
    driven.submit("c")
    assert driven.refusals == {}


def test_a_request_that_waited_beyond_its_own_deadline_is_refused_and_not_sent(driven):
    driven.submit("slow", timeout=0.2)
    driven.submit("patient")
    driven.pass_time(0.2)
    assert isinstance(driven.refusals["slow"], errors.DeadlineExceeded)
    driven.pass_time(0.3)
    assert driven.members(driven.sent[0]) == ["patient"]


def test_a_deadline_that_passes_at_the_predictor_is_told_at_once_and_spares_the_mates(driven):
    driven.submit("hasty", timeout=1.0)
    driven.submit("patient")
    driven.pass_time(0.5)
    driven.pass_time(0.5)
    assert isinstance(driven.refusals["hasty"], errors.DeadlineExceeded)
    driven.answer()
    assert driven.answers == {"patient": ["patient/0"]}


def test_a_request_cannot_ask_for_more_time_than_the_limit(driven_of):
    driven = driven_of(timeout=1.0, max_latency=30.0)
    request = driven.submit("greedy", timeout=500.0)
    assert request.deadline == driven.now + 1.0


@pytest.mark.parametrize("leavers", [10, 1000])
def test_memory_follows_open_requests_not_past_ones(driven_of, leavers):
    """Deadlines and queues of those who left must not pile up behind one who waits."""
    driven = driven_of(max_batch_size=4, max_latency=30.0)
    driven.submit("waits", key="waits")
    for i in range(leavers):
        driven.submit(str(i), key=i)
        driven.cancel(str(i))
    assert len(driven.core._deadlines) < 150
    assert len(driven.core.backlog._large.heap) < 150
    assert len(driven.core.backlog) == 1
