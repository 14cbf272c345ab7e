"""No timeout, no bound on what waits, none on what is out: infinity is a setting as any other."""

from __future__ import annotations

import math

import pytest

from carpool import errors
from carpool.scheduling import adaptive, window
from tests.scheduling.driven import DrivenScheduler, refused

POLICIES = pytest.mark.parametrize("policy", [window.Window, adaptive.Adaptive])


@pytest.fixture
def endless(driven_of) -> DrivenScheduler:
    return driven_of(max_batch_size=4, max_latency=0.5, timeout=math.inf)


def test_without_a_timeout_only_the_window_sets_a_timer(endless):
    endless.submit("a")
    assert endless.requests["a"].deadline == endless.requests["a"].goal == math.inf
    assert endless.core.next_deadline() == endless.now + 0.5
    endless.pass_time(0.5)
    assert endless.core.next_deadline() is None
    endless.pass_time(1e6)
    endless.answer()
    assert endless.answers == {"a": ["a/0"]}
    assert endless.core.next_deadline() is None


def test_a_group_without_a_timeout_waits_for_the_window_too(endless):
    endless.submit_all(("a",), ("b",))
    assert endless.core.next_deadline() == endless.now + 0.5
    endless.pass_time(0.5)
    assert endless.members(endless.sent[0]) == ["a", "b"]


def test_a_request_may_name_a_timeout_where_the_limit_has_none(endless):
    endless.submit_all(("patient",), ("hasty", 1, "key", 0.25))
    assert endless.core.next_deadline() == endless.now + 0.25
    endless.pass_time(0.25)
    assert [*endless.refusals] == ["hasty"]
    assert isinstance(endless.refusals["hasty"], errors.DeadlineExceeded)
    endless.pass_time(0.25)
    assert endless.members(endless.sent[0]) == ["patient"]


def test_abort_finds_those_with_and_without_a_deadline_in_order_of_arrival(endless):
    endless.submit("a")
    endless.submit("b", timeout=5.0)
    endless.submit_all(("c",), ("d",), ("e",), ("f", 1, "key", 1.0))
    endless.submit("g", key="other")
    endless.do(endless.core.abort(errors.Draining()))
    assert [*endless.refusals] == list("abcdefg")
    assert endless.core.ledger.held == 0
    assert endless.core.next_deadline() is None


def test_who_left_without_a_deadline_is_not_kept(endless):
    for number in range(1000):
        endless.submit(str(number))
        endless.cancel(str(number))
    assert len(endless.core._deadlines) == 0


@POLICIES
def test_an_infinite_objective_and_timeout_refuse_nobody_however_long_the_queue(driven_of, policy):
    driven = driven_of(policy, max_batch_size=4, max_latency=0.0, timeout=math.inf, max_queue_instances=math.inf)
    for turn in range(20):
        driven.submit_all(*[(f"{turn}-{number}",) for number in range(50)])
        driven.pass_time(1.0)
        driven.answer()
    assert driven.refusals == {}
    driven.answer_all()
    assert len(driven.answers) == 1000
    assert driven.core.idle


def test_any_number_may_wait_and_be_held_where_no_bound_is_set(driven_of):
    driven = driven_of(max_batch_size=4, max_queue_instances=math.inf, max_queue_bytes=math.inf)
    driven.submit("large", rows=100_000, size=10**12)
    driven.submit_all(("more", 100_000, "key", None, 10**12), ("one", 1))
    assert driven.refusals == {}
    assert driven.core.waiting_rows == 200_001 - 4


def test_one_bound_may_hold_without_the_other(driven_of):
    driven = driven_of(max_queue_instances=math.inf, max_queue_bytes=100)
    driven.submit("bytes", rows=3, size=101)
    assert isinstance(driven.refusals["bytes"], errors.PayloadTooLarge)
    assert "inf" not in str(driven.refusals["bytes"])
    driven = driven_of(max_queue_instances=2, max_queue_bytes=math.inf)
    driven.submit("rows", rows=3, size=101)
    assert "inf" not in str(driven.refusals["rows"])


def test_suspects_have_room_in_an_endless_queue(driven_of):
    """A quarter of infinity is infinity."""
    driven = driven_of(
        max_batch_size=4, max_latency=0.0, max_queue_instances=math.inf, max_queue_bytes=math.inf,
        traits={"content": lambda request: request.tag[0]},
    )  # fmt: skip
    driven.submit("x1")
    driven.fail(refused(400, b"bad"))
    for name in ("x2", "x3", "x4"):
        driven.submit(name)
    assert [*driven.refusals] == ["x1"]
    assert driven.core.waiting_rows == 2


@POLICIES
def test_any_number_of_batches_may_be_out(policy):
    driven = DrivenScheduler(policy, max_batch_size=1, max_latency=0.0, max_in_flight=math.inf)
    driven.submit_all(*[(str(number),) for number in range(100)])
    driven.answer_all()
    assert len(driven.answers) == 100
    assert driven.core.learned().get("in_flight_limit", 1) < math.inf


def test_a_window_without_a_bound_on_batches_sends_all_at_once(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.0, max_in_flight=math.inf)
    driven.submit_all(*[(str(number),) for number in range(100)])
    assert driven.sizes == [4] * 25


def test_when_to_try_again_is_told_without_a_bound_on_batches_too(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=10.0, max_in_flight=math.inf, max_queue_instances=4)
    driven.submit("full", rows=4)
    driven.pass_time(1.0)
    driven.answer()
    driven.submit_all(("a", 3), ("too many", 2))
    assert driven.refusals["too many"].retry_after == 1
