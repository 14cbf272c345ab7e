"""Cancellation and deadlines: whoever goes, the others notice nothing."""

import pytest

from carpool import errors


def test_cancelled_request_is_never_dispatched(desk):
    desk.submit("gone")
    desk.submit("stays")
    desk.cancel("gone")
    desk.pass_time(0.5)
    assert desk.members(desk.sent[0]) == ["stays"]


def test_batch_of_only_cancelled_requests_is_not_sent(desk):
    desk.submit("a")
    desk.submit("b")
    desk.cancel("a")
    desk.cancel("b")
    desk.pass_time(60)
    assert desk.sent == []
    assert desk.core.idle
    assert desk.core.next_deadline() is None


def test_cancelled_caller_does_not_disturb_its_batch_mates(desk):
    for name in "abcd":
        desk.submit(name, rows=1)
    desk.cancel("b")
    desk.answer()
    assert desk.answers == {"a": ["a/0"], "c": ["c/0"], "d": ["d/0"]}
    assert desk.refusals == {}


def test_a_batch_that_nobody_waits_for_any_more_gives_its_slot_to_those_who_do(desk):
    for name in "abcd":
        desk.submit(name)
    desk.submit("next", key="other")
    for name in "abc":
        desk.cancel(name)
    assert desk.abandoned == []
    desk.cancel("d")
    assert desk.abandoned == [desk.sent[0]]
    desk.pass_time(0.5)
    assert desk.members(desk.out[0]) == ["next"]


def test_cancelling_the_oldest_moves_the_deadline_to_the_next_one(desk):
    desk.submit("old")
    desk.pass_time(0.3)
    desk.submit("young")
    desk.cancel("old")
    desk.pass_time(0.2)
    assert desk.sent == []
    desk.pass_time(0.3)
    assert desk.members(desk.sent[0]) == ["young"]


def test_cancelling_twice_or_after_the_answer_changes_nothing(desk):
    desk.submit("a")
    desk.pass_time(0.5)
    desk.answer()
    desk.cancel("a")
    desk.cancel("a")
    assert desk.core.ledger.held == 0
    assert desk.answers == {"a": ["a/0"]}


def test_space_of_cancelled_requests_is_free_again(desk_of):
    desk = desk_of(max_queue_instances=2, max_queue_bytes=20)
    desk.submit("a")
    desk.submit("b")
    desk.cancel("a")
    desk.submit("c")
    assert desk.refusals == {}


def test_a_request_that_waited_beyond_its_own_deadline_is_refused_and_not_sent(desk):
    desk.submit("slow", timeout=0.2)
    desk.submit("patient")
    desk.pass_time(0.2)
    assert isinstance(desk.refusals["slow"], errors.DeadlineExceeded)
    desk.pass_time(0.3)
    assert desk.members(desk.sent[0]) == ["patient"]


def test_a_deadline_that_passes_at_the_predictor_is_told_at_once_and_spares_the_mates(desk):
    desk.submit("hasty", timeout=1.0)
    desk.submit("patient")
    desk.pass_time(0.5)
    desk.pass_time(0.5)
    assert isinstance(desk.refusals["hasty"], errors.DeadlineExceeded)
    desk.answer()
    assert desk.answers == {"patient": ["patient/0"]}


def test_a_request_cannot_ask_for_more_time_than_the_limit(desk_of):
    desk = desk_of(timeout=1.0, max_latency=30.0)
    request = desk.submit("greedy", timeout=500.0)
    assert request.deadline == desk.now + 1.0


@pytest.mark.parametrize("leavers", [10, 1000])
def test_memory_follows_open_requests_not_past_ones(desk_of, leavers):
    """Deadlines and queues of those who left must not pile up behind one who waits."""
    desk = desk_of(max_batch_size=4, max_latency=30.0)
    desk.submit("waits", key="waits")
    for i in range(leavers):
        desk.submit(str(i), key=i)
        desk.cancel(str(i))
    assert len(desk.core._deadlines) < 150
    assert len(desk.core.backlog._large.heap) < 150
    assert len(desk.core.backlog) == 1
