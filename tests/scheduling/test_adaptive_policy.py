"""When a batch leaves under the adaptive policy, decision by decision."""

from __future__ import annotations

import pytest

from carpool.scheduling import tuning
from carpool.scheduling.adaptive import Adaptive
from carpool_sidecar import errors
from tests.scheduling.desk import refused


@pytest.fixture
def desk(desk_of):
    """Batches of 4; nothing learned yet."""
    return desk_of(Adaptive, max_batch_size=4, max_in_flight=8)


def teach(desk, fixed=0.010, slope=0.001, overhead=0.0):
    """Let it see idle batches of several sizes, with pauses so that nobody seems to come back."""
    desk.policy.predictor.hint_overhead(overhead)
    for number, size in enumerate((1, 2, 3, 4, 1, 2)):
        desk.submit(f"lesson-{number}", rows=size)
        desk.pass_time(overhead + fixed + slope * size)
        desk.answer()
        desk.pass_time(0.5)
    desk.sent.clear()
    return desk


def test_a_lone_request_leaves_at_once(desk):
    desk.submit("a")
    assert desk.reasons == ["idle"]


def test_while_the_predictor_is_busy_the_batch_grows_and_leaves_just_in_time(desk):
    teach(desk)
    desk.submit("a")
    started = desk.now
    desk.pass_time(0.002)
    desk.submit("b")
    desk.submit("c")
    assert desk.sizes == [1]
    desk.pass_time(0.02)
    assert desk.sizes == [1, 2]
    assert desk.reasons == ["idle", "just_in_time"]
    assert desk.sent[1].dispatched == pytest.approx(started + 0.011, abs=0.0005)


def test_a_full_batch_does_not_wait_for_the_predictor(desk):
    teach(desk)
    desk.submit("a")
    for name in "bcde":
        desk.submit(name)
    assert desk.sizes == [1, 4]
    assert desk.reasons == ["idle", "full"]


def test_no_third_batch_leaves_while_two_are_out(desk):
    teach(desk)
    desk.policy.predictor._judged = tuning.JUDGED_ENOUGH
    for number in range(20):
        desk.submit(str(number))
    assert desk.sizes == [1, 4]


def test_while_parallelism_is_an_open_question_full_batches_may_go_further(desk):
    teach(desk)
    for number in range(40):
        desk.submit(str(number))
    assert desk.sizes == [1, 4, 4, 4]


def test_answered_callers_who_usually_come_back_are_waited_for(desk):
    """Sending the first one's request at once would split them for good."""
    teach(desk)
    desk.policy.returns.fraction = 1.0
    desk.submit("x0", rows=2)
    desk.pass_time(0.012)
    desk.answer()
    desk.pass_time(0.0003)
    desk.submit("x1")
    assert len(desk.out) == 0
    desk.pass_time(0.0002)
    desk.submit("y1")
    desk.pass_time(0.002)
    assert desk.members(desk.sent[-1]) == ["x1", "y1"]


def test_nobody_is_held_for_longer_than_the_bounds(desk):
    teach(desk, fixed=0.2)
    desk.policy.returns.fraction = 1.0
    desk.policy.returns.offset = 5.0
    desk.submit("a", rows=3)
    desk.pass_time(0.203)
    desk.answer()
    desk.submit("b")
    held_from = desk.now
    desk.pass_time(1.0)
    assert desk.sent[-1].dispatched - held_from <= tuning.HOLD_MAX + 1e-9


def test_max_latency_bounds_the_voluntary_wait(desk):
    teach(desk, fixed=0.2)
    desk.limits.max_latency = 0.0
    desk.policy.returns.fraction = 1.0
    desk.submit("a", rows=3)
    desk.pass_time(0.203)
    desk.answer()
    desk.submit("b")
    assert desk.members(desk.sent[-1]) == ["b"]


def test_a_request_that_cannot_make_its_deadline_is_refused_at_once(desk):
    teach(desk, fixed=1.0)
    desk.submit("a")
    desk.submit("hopeless", timeout=0.5)
    refusal = desk.refusals["hopeless"]
    assert isinstance(refusal, errors.Overloaded)
    assert refusal.retry_after >= 1
    desk.submit("patient", timeout=10)
    assert "patient" not in desk.refusals


def test_under_overload_late_heads_are_dropped_and_the_batch_stays_full(desk):
    teach(desk, fixed=1.0)
    for number in range(6):
        desk.submit(f"first-{number}")
    desk.submit("late", timeout=3.1)
    desk.pass_time(0.5)
    for number in range(8):
        desk.submit(f"then-{number}", timeout=30)
    for _ in range(3):
        desk.pass_time(1.5)
        if desk.out:
            desk.answer()
    assert isinstance(desk.refusals["late"], errors.CarpoolError)
    assert 4 in desk.sizes[2:]


def test_the_objective_sheds_as_a_deadline_does_but_an_answer_that_comes_late_is_still_given(desk):
    desk.limits.slo = 0.05
    teach(desk)
    desk.submit("a")
    desk.pass_time(0.2)
    desk.answer()
    assert "a" in desk.answers


def test_a_wrong_model_cannot_turn_everybody_away_for_good(desk):
    """The predictor was slow when it was learned; nobody fits the objective by that, but it is fast again."""
    desk.limits.slo = 0.1
    teach(desk, fixed=5.0)
    served = 0
    for turn in range(40):
        desk.submit(f"turn-{turn}")
        if desk.out:
            desk.pass_time(0.01)
            desk.answer()
            served += 1
        desk.pass_time(0.3)
    assert served >= 35


@pytest.mark.parametrize("error", [refused(503, b""), refused(429, b""), errors.UpstreamUnreachable()])
def test_a_troubled_predictor_is_left_alone_for_a_while_then_longer_until_it_answers(desk, error):
    teach(desk)
    pauses = []
    for turn in range(8):
        desk.submit(f"turn-{turn}")
        failed_at = desk.now
        desk.fail(error)
        desk.submit(f"next-{turn}")
        desk.pass_time(5)
        pauses.append(desk.sent[-1].dispatched - failed_at)
        desk.fail(error)
        desk.pass_time(2)
    assert pauses[0] == pytest.approx(tuning.BACKOFF_FIRST, abs=1e-6)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(tuning.BACKOFF_LONGEST, abs=1e-6)
    desk.submit("again")
    desk.answer()
    desk.submit("healthy")
    assert desk.members(desk.out[-1]) == ["healthy"]


def test_a_quiet_key_is_overtaken_by_full_batches_for_one_batch_time_at_most(desk):
    teach(desk, fixed=0.1)
    desk.submit("running", key="busy")
    desk.submit("quiet", key="quiet")
    for number in range(40):
        desk.submit(f"busy-{number}", key="busy")
    waited_since = desk.now
    for _ in range(8):
        desk.pass_time(0.104)
        desk.answer()
    quiet = next(sent for sent in desk.sent if desk.members(sent) == ["quiet"])
    assert quiet.dispatched - waited_since < 0.5


def test_idle_it_asks_for_no_wakeup(desk):
    teach(desk)
    assert desk.core.next_deadline() is None


def test_drain_sends_what_is_held(desk):
    teach(desk)
    desk.submit("a")
    desk.submit("b")
    desk.do(desk.core.drain())
    assert desk.reasons == ["idle", "drain"]
