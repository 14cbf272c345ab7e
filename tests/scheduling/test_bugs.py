"""A bug, or a lack of memory, in the midst of an event: whoever it concerns is told at once, and the others go on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from carpool import errors
from carpool.scheduling import messages, scheduler, window
from tests.scheduling.driven import DrivenScheduler, refused


class Failing(window.Window):
    """Fails in its method `fails_in`, if there is one."""

    fails_in = ""

    def choose(self, *about: Any) -> Any:
        self._may_fail("choose")
        return super().choose(*about)

    def sent(self, *about: Any) -> None:
        self._may_fail("sent")
        super().sent(*about)

    def completed(self, *about: Any) -> None:
        self._may_fail("completed")
        super().completed(*about)

    def batch_failed(self, *about: Any) -> None:
        self._may_fail("batch_failed")
        super().batch_failed(*about)

    def _may_fail(self, method: str) -> None:
        if self.fails_in == method:
            raise MemoryError(method)


class Traits:
    """What requests have in common, which takes memory."""

    fails = False

    def __call__(self, request: messages.Request) -> str:
        if self.fails:
            raise MemoryError("traits")
        return str(request.tag)


def taken_by(driven: DrivenScheduler) -> str:
    """The bug, as whoever drives the scheduler takes it to tell of it."""
    bug, driven.core.bug = driven.core.bug, None
    return str(bug)


def policy_of(driven: DrivenScheduler) -> Failing:
    assert isinstance(driven.policy, Failing)
    return driven.policy


@pytest.fixture
def driven() -> DrivenScheduler:
    return DrivenScheduler(Failing, max_batch_size=2, max_latency=1, max_in_flight=1, timeout=10)


def test_who_waits_is_refused_at_once_if_nobody_can_tell_who_leaves_next(driven: DrivenScheduler) -> None:
    driven.submit("a", 2)
    driven.submit("b")
    policy_of(driven).fails_in = "choose"
    driven.answer()
    assert driven.answers == {"a": ["a/0", "a/1"]}
    assert {name: type(error) for name, error in driven.refusals.items()} == {"b": errors.CarpoolError}
    assert taken_by(driven) == "choose"
    assert driven.core.idle
    assert driven.core.ledger.held == 0


def test_who_is_too_late_is_told_so_though_nobody_can_tell_who_leaves_next(driven: DrivenScheduler) -> None:
    driven.submit("a", 2)
    driven.submit("late", timeout=1)
    driven.submit("b")
    driven.core.asking = scheduler.ASK._replace(at=0.0)
    policy_of(driven).fails_in = "choose"
    driven.limits.become(dataclasses.replace(driven.limits, max_in_flight=2))
    driven.now += 2
    driven.do(driven.core.poll())
    assert type(driven.refusals["late"]) is errors.DeadlineExceeded
    policy_of(driven).fails_in = ""
    driven.answer_all()
    assert "a" in driven.answers
    assert "b" in {**driven.answers, **driven.refusals}


def test_a_batch_that_leaves_is_sent_though_the_policy_fails_to_note_it(driven: DrivenScheduler) -> None:
    policy_of(driven).fails_in = "sent"
    driven.submit("a", 2)
    assert taken_by(driven) == "sent"
    driven.answer()
    assert driven.answers == {"a": ["a/0", "a/1"]}
    assert driven.refusals == {}


def test_what_was_answered_is_handed_over_though_nothing_can_be_learned_from_it(driven: DrivenScheduler) -> None:
    driven.submit("a", 2)
    policy_of(driven).fails_in = "completed"
    driven.answer()
    assert driven.answers == {"a": ["a/0", "a/1"]}
    assert taken_by(driven) == "completed"
    assert driven.core.idle
    driven.pass_time(5.0)
    assert (driven.policy.predictor.out, driven.policy.predictor.overdue) == (0, 0)


def test_the_members_of_a_batch_that_failed_are_told_at_once_if_nobody_can_tell_what_may_still_be_done() -> None:
    traits = Traits()
    driven = DrivenScheduler(traits={"tag": traits}, max_batch_size=2, max_latency=1, max_in_flight=1, timeout=10)
    driven.submit_all(("a",), ("b",))
    driven.submit("c", 2)
    batch = driven.out[0]
    traits.fails = True
    driven.fail(refused(400))
    assert {type(driven.refusals[name]) for name in ("a", "b")} == {errors.CarpoolError}
    assert isinstance(batch.error, errors.CarpoolError)
    assert isinstance(batch.error.__cause__, MemoryError)
    traits.fails = False
    driven.answer_all()
    assert driven.answers == {"c": ["c/0", "c/1"]}
    assert driven.core.idle
    assert driven.core.ledger.held == 0


def test_a_failed_batch_frees_its_slot_though_the_policy_fails_to_note_it(driven: DrivenScheduler) -> None:
    driven.submit("a", 2)
    driven.submit("b", 2)
    policy_of(driven).fails_in = "batch_failed"
    driven.fail(errors.UpstreamBroken())
    assert type(driven.refusals["a"]) is errors.CarpoolError
    driven.answer()
    assert driven.answers == {"b": ["b/0", "b/1"]}


def costs(rows: list[str], start: int, stop: int) -> list[int]:
    """What rows cost, of all requests but one that takes too much memory."""
    if rows[0] == "costly/0":
        raise MemoryError("costs")
    return [1] * (stop - start)


def test_of_a_turn_that_does_not_all_fit_a_bug_keeps_out_nobody_but_the_one_whom_it_concerns() -> None:
    driven = DrivenScheduler(max_batch_size=1, max_latency=0, max_in_flight=1, max_queue_instances=2, row_costs=costs)
    driven.do(driven.core.submit_turn([driven.make(name) for name in ("a", "costly", "b", "c", "d")]))
    assert driven.members(driven.out[0]) == ["a"]
    refusals = {name: type(error) for name, error in driven.refusals.items()}
    assert refusals == {"costly": errors.CarpoolError, "d": errors.Overloaded}
    assert taken_by(driven) == "costs"
    driven.answer_all()
    assert set(driven.answers) == {"a", "b", "c"}
    assert driven.core.idle
    assert driven.core.ledger.held == 0


def test_what_could_not_be_put_in_leaves_nothing_behind() -> None:
    driven = DrivenScheduler(max_batch_size=2, max_latency=1, max_in_flight=1, timeout=10, row_costs=costs)
    driven.submit("a", 2)
    driven.submit("b")
    calls = [driven.make("costly"), driven.make("d")]
    with pytest.raises(MemoryError):
        driven.core.submit_all(calls)
    driven.do(driven.core.give_up(calls))
    assert set(driven.refusals) == {"costly", "d"}
    assert driven.core.waiting_rows == 1
    driven.answer()
    driven.pass_time(2.0)
    driven.answer()
    assert set(driven.answers) == {"a", "b"}
    assert driven.core.idle
    assert driven.core.ledger.held == 0
