"""Deciding costs more than queueing, so the policy is asked only when an arrival can change what it said."""

from __future__ import annotations

import pytest

from carpool.scheduling import adaptive, window
from tests.scheduling.driven import DrivenScheduler


class Counting(window.Window):
    """The window policy, with a count of how often it decided."""

    decisions = 0

    def choose(self, backlog, now):
        self.decisions += 1
        return super().choose(backlog, now)


class CountingAdaptive(adaptive.Adaptive):
    """The adaptive policy, likewise."""

    decisions = 0

    def choose(self, backlog, now):
        self.decisions += 1
        return super().choose(backlog, now)


@pytest.fixture
def driven() -> DrivenScheduler:
    return DrivenScheduler(Counting, max_batch_size=4, max_latency=0.5, small_batch_threshold=1)


def decisions(driven: DrivenScheduler, *names: str, **more) -> int:
    before = driven.policy.decisions
    for name in names:
        driven.submit(name, **more)
    return driven.policy.decisions - before


def test_a_request_behind_others_is_not_worth_a_decision(driven):
    assert decisions(driven, "a") == 1
    assert decisions(driven, "b", "c") == 0
    assert driven.core.next_deadline() == 1000.5


def test_the_one_that_fills_its_queue_is(driven):
    driven.submit("a")
    assert decisions(driven, "b", "c", "d") == 1
    assert driven.sizes == [4]


def test_the_first_of_its_key_or_of_its_priority_is(driven):
    driven.submit("a")
    assert decisions(driven, "b", key="other") == 1
    assert decisions(driven, "c", rows=2) == 1


def test_one_that_comes_when_the_timer_is_late_is(driven):
    driven.submit("a")
    driven.now += 0.5
    assert decisions(driven, "b") == 1
    assert driven.members(driven.sent[0]) == ["a", "b"]


def test_nobody_is_asked_while_all_slots_are_taken(driven):
    driven.submit("first")
    driven.pass_time(0.5)
    assert decisions(driven, *"abcdefg", "h") == 0
    assert decisions(driven, "i", key="other") == 0
    driven.answer()
    assert driven.members(driven.sent[1]) == list("abcd")


def test_learning_a_busy_predictor_is_no_reason_to_ask_either():
    """The adaptive policy waits for the predictor, whoever joins the batch meanwhile."""
    driven = DrivenScheduler(CountingAdaptive, max_batch_size=8, max_in_flight=4, learns_in_flight=True)
    driven.submit("first")
    assert driven.sizes == [1]
    driven.submit("a")
    assert decisions(driven, *"bcdef") == 0
    driven.answer()
    assert driven.sizes == [1, 6]


def test_memory_of_one_key_follows_its_open_requests():
    """Callers who leave from behind one who waits must not pile up."""
    driven = DrivenScheduler(max_batch_size=4, max_latency=30.0)
    driven.submit("waits")
    for i in range(1000):
        driven.submit(str(i))
        driven.cancel(str(i))
    queue = driven.core.backlog.oldest()
    assert [request.tag for request in queue] == ["waits"]
    assert sum(map(len, queue.fifos.values())) < 150


def test_short_timeouts_end_first_among_long_ones():
    driven = DrivenScheduler(max_batch_size=9, max_latency=30.0, timeout=10.0)
    for name, timeout in [("a", None), ("b", 2.0), ("c", None), ("d", 1.0), ("e", 2.0)]:
        driven.submit(name, timeout=timeout)
    assert driven.core.next_deadline() == 1001.0
    driven.cancel("d")
    assert driven.core.next_deadline() == 1002.0
    driven.now = 1010.0
    assert [effect.request.tag for effect in driven.core.poll()] == ["b", "e", "a", "c"]
    assert driven.core.next_deadline() is None
