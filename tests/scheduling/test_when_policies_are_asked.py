"""Deciding costs more than queueing, so the policy is asked only when an arrival can change what it said."""

from __future__ import annotations

import pytest

from carpool.scheduling import adaptive, window
from tests.scheduling.desk import Desk


class Counting(window.Window):
    """The window policy, with a count of how often it decided."""

    decisions = 0

    def choose(self, backlog, now):
        self.decisions += 1
        return super().choose(backlog, now)


@pytest.fixture
def desk() -> Desk:
    return Desk(Counting, max_batch_size=4, max_latency=0.5, small_batch_threshold=1)


def decisions(desk: Desk, *names: str, **more) -> int:
    before = desk.policy.decisions
    for name in names:
        desk.submit(name, **more)
    return desk.policy.decisions - before


def test_a_request_behind_others_is_not_worth_a_decision(desk):
    assert decisions(desk, "a") == 1
    assert decisions(desk, "b", "c") == 0
    assert desk.core.next_deadline() == 1000.5


def test_the_one_that_fills_its_queue_is(desk):
    desk.submit("a")
    assert decisions(desk, "b", "c", "d") == 1
    assert desk.sizes == [4]


def test_the_first_of_its_key_or_of_its_priority_is(desk):
    desk.submit("a")
    assert decisions(desk, "b", key="other") == 1
    assert decisions(desk, "c", rows=2) == 1


def test_one_that_comes_when_the_timer_is_late_is(desk):
    desk.submit("a")
    desk.now += 0.5
    assert decisions(desk, "b") == 1
    assert desk.members(desk.sent[0]) == ["a", "b"]


def test_nobody_is_asked_while_all_slots_are_taken(desk):
    desk.submit("first")
    desk.pass_time(0.5)
    assert decisions(desk, *"abcdefg", "h") == 0
    assert decisions(desk, "i", key="other") == 0
    desk.answer()
    assert desk.members(desk.sent[1]) == list("abcd")


def test_learning_a_busy_predictor_is_no_reason_to_ask_either(monkeypatch):
    """The adaptive policy waits for the predictor, whoever joins the batch meanwhile."""
    desk = Desk(adaptive.Adaptive, max_batch_size=8, max_in_flight=4)
    asked = []
    choose = desk.policy.choose
    monkeypatch.setattr(desk.policy, "choose", lambda *about: asked.append(about) or choose(*about))
    desk.submit("first")
    assert desk.sizes == [1]
    desk.submit("a")
    count = len(asked)
    for name in "bcdef":
        desk.submit(name)
    assert len(asked) == count
    desk.answer()
    assert desk.sizes == [1, 6]


def test_memory_of_one_key_follows_its_open_requests():
    """Callers who leave from behind one who waits must not pile up."""
    desk = Desk(max_batch_size=4, max_latency=30.0)
    desk.submit("waits")
    for i in range(1000):
        desk.submit(str(i))
        desk.cancel(str(i))
    queue = desk.core.backlog.oldest()
    assert [request.tag for request in queue] == ["waits"]
    assert len(queue.large.requests) < 150


def test_short_timeouts_end_first_among_long_ones():
    desk = Desk(max_batch_size=9, max_latency=30.0, timeout=10.0)
    for name, timeout in [("a", None), ("b", 2.0), ("c", None), ("d", 1.0), ("e", 2.0)]:
        desk.submit(name, timeout=timeout)
    assert desk.core.next_deadline() == 1001.0
    desk.cancel("d")
    assert desk.core.next_deadline() == 1002.0
    desk.now = 1010.0
    assert [effect.request.tag for effect in desk.core.poll()] == ["b", "e", "a", "c"]
    assert desk.core.next_deadline() is None
