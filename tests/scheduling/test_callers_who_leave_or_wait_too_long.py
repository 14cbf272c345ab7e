"""Cancellation and deadlines: whoever goes, the others notice nothing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from carpool import errors
from carpool.scheduling import adaptive, messages, window
from carpool_sidecar import errors as sidecar_errors
from tests.scheduling.driven import DrivenScheduler, refused


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
    assert sum(len(fifos.heap) for fifos in driven.core.backlog._tiers.values()) < 150
    assert len(driven.core.backlog) == 1


# --- batches that nobody waits for --------------------------------------------------------------------------------


class Unbroken(DrivenScheduler):
    """Carries batches out that cannot be broken off: an abandoned one goes on, and comes back as any other."""

    def do(self, effects: Iterable[messages.Effect]) -> None:
        effects = list(effects)
        self.abandoned += [effect.batch for effect in effects if isinstance(effect, messages.Abandon)]
        super().do(effect for effect in effects if not isinstance(effect, messages.Abandon))


POLICIES = pytest.mark.parametrize("policy", [window.Window, adaptive.Adaptive])


@pytest.fixture
def unbroken() -> DrivenScheduler:
    return Unbroken(max_batch_size=4, max_latency=0.5)


def test_a_batch_is_abandoned_once_whoever_leaves_later(unbroken):
    for name in "abcd":
        unbroken.submit(name)
    for name in "efg":
        unbroken.submit(name, key="other")
    for name in "abcdefg":
        unbroken.cancel(name)
    assert unbroken.abandoned == [unbroken.sent[0]]


def test_one_who_leaves_the_queue_does_not_end_a_batch_whose_members_were_all_refused(driven):
    """Its call ends by itself."""
    driven.submit("hasty", timeout=1.0)
    driven.pass_time(1.0)
    assert isinstance(driven.refusals["hasty"], errors.DeadlineExceeded)
    driven.submit("waits")
    driven.cancel("waits")
    assert driven.abandoned == []


def test_a_batch_is_abandoned_when_its_last_caller_leaves_after_others_were_refused(driven):
    driven.submit("hasty", timeout=1.0)
    driven.submit("patient")
    driven.pass_time(1.0)
    driven.cancel("patient")
    assert driven.abandoned == [driven.sent[0]]


def test_all_batches_of_a_cut_request_are_abandoned_with_it(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.5, max_in_flight=2)
    driven.submit("large", rows=12)
    assert driven.sizes == [4, 4]
    driven.cancel("large")
    assert set(driven.abandoned) == set(driven.sent)
    assert driven.core.idle


@POLICIES
def test_an_abandoned_batch_that_goes_on_keeps_its_slot_until_it_comes_back(policy):
    unbroken = Unbroken(policy, max_batch_size=4, max_latency=0.5, max_in_flight=1)
    for name in "abcd":
        unbroken.submit(name)
    sent = len(unbroken.sent)
    for name in "abcd":
        unbroken.cancel(name)
    unbroken.submit("next", key="other")
    unbroken.pass_time(10.0)
    assert len(unbroken.sent) == sent
    assert not unbroken.core.idle
    unbroken.answer()
    assert unbroken.answers == {}
    assert unbroken.members(unbroken.out[0]) == ["next"]
    unbroken.answer()
    assert [*unbroken.answers] == ["next"]
    assert unbroken.core.idle
    assert unbroken.core.ledger.held == 0


@POLICIES
@pytest.mark.parametrize(
    "error", [refused(400, b"bad"), sidecar_errors.UpstreamClosed(), sidecar_errors.UpstreamTimeout()], ids=repr
)
def test_an_abandoned_batch_that_fails_later_is_not_tried_again(policy, error):
    unbroken = Unbroken(policy, max_batch_size=4, max_latency=0.0, max_in_flight=1)
    unbroken.submit("warm")
    unbroken.answer()
    unbroken.submit_all(("a",), ("b",), ("c",))
    for name in "abc":
        unbroken.cancel(name)
    unbroken.fail(error)
    assert len(unbroken.sent) == 2
    assert unbroken.refusals == {}
    assert unbroken.core.idle
    assert unbroken.core.isolation.rows == 0


def test_what_an_abandoned_batch_took_is_learned():
    """It took that long, whoever waited."""
    unbroken = Unbroken(adaptive.Adaptive, max_batch_size=4)
    unbroken.submit("a")
    unbroken.cancel("a")
    unbroken.pass_time(0.25)
    unbroken.answer()
    assert unbroken.policy.predictor.round_trip(1) == pytest.approx(0.25)


def test_draining_waits_for_an_abandoned_batch_that_goes_on(unbroken):
    unbroken.submit("a")
    unbroken.do(unbroken.core.drain())
    unbroken.cancel("a")
    assert not unbroken.core.idle
    unbroken.answer()
    assert unbroken.core.idle


def test_a_request_knows_whether_it_was_ever_sent_even_once_it_is_refused(driven):
    for name in "abcd":
        driven.submit(name, timeout=1)
    driven.submit("waits", key="other", timeout=0.2)
    driven.submit("in parts", rows=6, timeout=1)
    driven.pass_time(1)
    assert {type(error) for error in driven.refusals.values()} == {errors.DeadlineExceeded}
    was_sent = {name for name, request in driven.requests.items() if request.was_sent}
    assert set(driven.refusals) == {*"abcd", "waits", "in parts"}
    assert was_sent == set("abcd")
    driven.answer_all()
    driven.submit("in parts again", rows=6)
    assert driven.requests["in parts again"].was_sent


def test_a_request_that_waits_to_be_sent_again_was_sent(driven):
    for name in "abcd":
        driven.submit(name, timeout=1)
    driven.fail(refused(400))
    assert [driven.members(batch) for batch in driven.out] == [["a", "b"]]  # c and d have to wait
    driven.pass_time(1)
    assert set(driven.refusals) == set("abcd")
    assert all(request.was_sent for request in driven.requests.values())
