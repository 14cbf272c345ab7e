"""When a batch leaves under the adaptive policy, decision by decision."""

from __future__ import annotations

import pytest

from carpool.scheduling import tuning
from carpool.scheduling.adaptive import Adaptive
from carpool_sidecar import errors
from tests.scheduling.driven import refused


@pytest.fixture
def driven(driven_of):
    """Batches of 4; nothing learned yet."""
    return driven_of(Adaptive, max_batch_size=4, max_in_flight=8, learns_in_flight=True)


def teach(driven, fixed=0.010, slope=0.001, overhead=0.0):
    """Let it see idle batches of several sizes, with pauses so that nobody seems to come back."""
    driven.policy.predictor.hint_overhead(overhead)
    for number, size in enumerate((1, 2, 3, 4, 1, 2)):
        driven.submit(f"lesson-{number}", rows=size)
        driven.pass_time(overhead + fixed + slope * size)
        driven.answer()
        driven.pass_time(0.5)
    driven.sent.clear()
    return driven


def test_a_lone_request_leaves_at_once(driven):
    driven.submit("a")
    assert driven.reasons == ["idle"]


def test_while_the_predictor_is_busy_the_batch_grows_and_leaves_just_in_time(driven):
    teach(driven)
    driven.submit("a")
    started = driven.now
    driven.pass_time(0.002)
    driven.submit("b")
    driven.submit("c")
    assert driven.sizes == [1]
    driven.pass_time(0.02)
    assert driven.sizes == [1, 2]
    assert driven.reasons == ["idle", "just_in_time"]
    assert driven.sent[1].dispatched == pytest.approx(started + 0.011, abs=0.0005)


def test_a_full_batch_does_not_wait_for_the_predictor(driven):
    teach(driven)
    driven.submit("a")
    for name in "bcde":
        driven.submit(name)
    assert driven.sizes == [1, 4]
    assert driven.reasons == ["idle", "full"]


def wear_out(driven, batches=200):
    """Batches one right after the other, of a sidecar that takes longer for each than they are apart."""
    for size in (1, 2, 3, 4) * 3:
        driven.policy.own_time.observe(0.02 + 0.0001 * size, 1, size)
    for number in range(batches):
        driven.submit(f"load-{number}")
        driven.pass_time(0.011)
        driven.answer()
    driven.policy._since_probe = 0
    driven.policy.returns.fraction = 0.0
    driven.sent.clear()
    return driven


def test_a_busy_core_sends_nothing_small_beside_another_batch_until_that_is_answered(driven):
    wear_out(teach(driven))
    driven.submit("a")
    driven.submit("b")
    driven.pass_time(0.0115)  # just in time would have been 11 ms
    driven.submit("c")
    assert driven.sizes == [1]
    driven.answer()
    assert driven.members(driven.sent[1]) == ["b", "c"]


def test_a_busy_core_sends_a_small_batch_in_the_end_if_no_answer_comes(driven):
    wear_out(teach(driven))
    driven.submit("a")
    driven.submit("b")
    driven.pass_time(tuning.HOLD_MAX + 0.012)
    assert driven.sizes == [1, 1]


def test_a_busy_core_sends_a_full_batch_at_once(driven):
    wear_out(teach(driven))
    driven.submit("a")
    for name in "bcde":
        driven.submit(name)
    assert driven.sizes == [1, 4]


def test_a_busy_core_keeps_nobody_beyond_the_last_moment_at_which_the_answer_is_in_time(driven):
    wear_out(teach(driven))
    driven.submit("a")
    driven.submit("b", timeout=0.025)
    driven.pass_time(0.025)
    assert driven.sizes == [1, 1]
    assert driven.sent[1].dispatched - driven.sent[0].dispatched == pytest.approx(0.014, abs=0.001)


def test_no_third_batch_leaves_while_two_are_out(driven):
    teach(driven)
    driven.policy.predictor._judged = tuning.JUDGED_ENOUGH
    for number in range(20):
        driven.submit(str(number))
    assert driven.sizes == [1, 4]


def test_while_parallelism_is_an_open_question_full_batches_may_go_further(driven):
    teach(driven)
    for number in range(40):
        driven.submit(str(number))
    assert driven.sizes == [1, 4, 4, 4]


def test_answered_callers_who_usually_come_back_are_waited_for(driven):
    """Sending the first one's request at once would split them for good."""
    teach(driven)
    driven.policy.returns.fraction = 1.0
    driven.submit("x0", rows=2)
    driven.pass_time(0.012)
    driven.answer()
    driven.pass_time(0.0003)
    driven.submit("x1")
    assert len(driven.out) == 0
    driven.pass_time(0.0002)
    driven.submit("y1")
    driven.pass_time(0.002)
    assert driven.members(driven.sent[-1]) == ["x1", "y1"]


def test_callers_of_a_closed_loop_who_are_held_up_together_are_waited_for_once_the_first_is_back(driven):
    """Their process had no core for 8 ms: who comes first would leave alone, and the others would wait for that."""
    teach(driven)
    driven.submit("w", rows=3)
    driven.pass_time(0.013)
    driven.answer()
    driven.policy.returns.fraction = 1.0
    driven.pass_time(0.008)
    for name in "xyz":
        driven.submit(name)
        driven.pass_time(0.0003)
    driven.pass_time(0.01)
    assert driven.members(driven.sent[-1]) == ["x", "y", "z"]


def test_a_caller_of_a_closed_loop_who_stays_away_is_not_waited_for_longer_than_a_batch_of_his_own_would_take(driven):
    teach(driven)
    driven.submit("w", rows=3)
    driven.pass_time(0.013)
    driven.answer()
    driven.policy.returns.fraction = 1.0
    driven.submit("x", rows=2)
    held_from = driven.now
    driven.pass_time(0.1)
    one_is_missing = 1 * 0.010 / 2  # fixed work, over those who wait
    assert 0 < driven.sent[-1].dispatched - held_from <= one_is_missing


def test_callers_who_are_not_sure_to_return_are_waited_for_as_long_as_they_usually_take(driven):
    teach(driven)
    driven.submit("w", rows=3)
    driven.pass_time(0.013)
    driven.answer()
    driven.policy.returns.fraction = 0.8
    driven.policy.returns.offset = 0.001
    driven.pass_time(0.0005)
    answered_at = driven.now - 0.0005
    driven.submit("x")
    driven.pass_time(0.1)
    assert driven.sent[-1].dispatched - answered_at == pytest.approx(0.001 * tuning.HOLD_STRETCH)


def test_nobody_is_held_for_longer_than_the_bounds(driven):
    teach(driven, fixed=0.2)
    driven.policy.returns.fraction = 1.0
    driven.policy.returns.offset = 5.0
    driven.submit("a", rows=3)
    driven.pass_time(0.203)
    driven.answer()
    driven.submit("b")
    held_from = driven.now
    driven.pass_time(1.0)
    assert driven.sent[-1].dispatched - held_from <= tuning.HOLD_MAX + 1e-9


def test_max_latency_bounds_the_voluntary_wait(driven):
    teach(driven, fixed=0.2)
    driven.change(max_latency=0.0)
    driven.policy.returns.fraction = 1.0
    driven.submit("a", rows=3)
    driven.pass_time(0.203)
    driven.answer()
    driven.submit("b")
    assert driven.members(driven.sent[-1]) == ["b"]


def test_a_request_that_cannot_make_its_deadline_is_refused_at_once(driven):
    teach(driven, fixed=1.0)
    driven.submit("a")
    driven.submit("hopeless", timeout=0.5)
    refusal = driven.refusals["hopeless"]
    assert isinstance(refusal, errors.Overloaded)
    assert refusal.retry_after >= 1
    driven.submit("patient", timeout=10)
    assert "patient" not in driven.refusals


def test_under_overload_late_heads_are_dropped_and_the_batch_stays_full(driven):
    teach(driven, fixed=1.0)
    for number in range(6):
        driven.submit(f"first-{number}")
    driven.submit("late", timeout=3.1)
    driven.pass_time(0.5)
    for number in range(8):
        driven.submit(f"then-{number}", timeout=30)
    for _ in range(3):
        driven.pass_time(1.5)
        if driven.out:
            driven.answer()
    assert isinstance(driven.refusals["late"], errors.CarpoolError)
    assert 4 in driven.sizes[2:]


def test_the_objective_sheds_as_a_deadline_does_but_an_answer_that_comes_late_is_still_given(driven):
    driven.change(slo=0.05)
    teach(driven)
    driven.submit("a")
    driven.pass_time(0.2)
    driven.answer()
    assert "a" in driven.answers


def test_a_wrong_model_cannot_turn_everybody_away_for_good(driven):
    """The predictor was slow when it was learned; nobody fits the objective by that, but it is fast again."""
    driven.change(slo=0.1)
    teach(driven, fixed=5.0)
    served = 0
    for turn in range(40):
        driven.submit(f"turn-{turn}")
        if driven.out:
            driven.pass_time(0.01)
            driven.answer()
            served += 1
        driven.pass_time(0.3)
    assert served >= 35


@pytest.mark.parametrize("error", [refused(503, b""), refused(429, b""), errors.UpstreamUnreachable()])
def test_a_troubled_predictor_is_left_alone_for_a_while_then_longer_until_it_answers(driven, error):
    teach(driven)
    pauses = []
    for turn in range(8):
        driven.submit(f"turn-{turn}")
        failed_at = driven.now
        driven.fail(error)
        driven.submit(f"next-{turn}")
        driven.pass_time(5)
        pauses.append(driven.sent[-1].dispatched - failed_at)
        driven.fail(error)
        driven.pass_time(2)
    assert pauses[0] == pytest.approx(tuning.BACKOFF_FIRST, abs=1e-6)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(tuning.BACKOFF_LONGEST, abs=1e-6)
    driven.submit("again")
    driven.answer()
    driven.submit("healthy")
    assert driven.members(driven.out[-1]) == ["healthy"]


def test_a_quiet_key_is_overtaken_by_full_batches_for_one_batch_time_at_most(driven):
    teach(driven, fixed=0.1)
    driven.submit("running", key="busy")
    driven.submit("quiet", key="quiet")
    for number in range(40):
        driven.submit(f"busy-{number}", key="busy")
    waited_since = driven.now
    for _ in range(8):
        driven.pass_time(0.104)
        driven.answer()
    quiet = next(sent for sent in driven.sent if driven.members(sent) == ["quiet"])
    assert quiet.dispatched - waited_since < 0.5


def test_idle_it_asks_for_no_wakeup(driven):
    teach(driven)
    assert driven.core.next_deadline() is None


def test_drain_sends_what_is_held(driven):
    teach(driven)
    driven.submit("a")
    driven.submit("b")
    driven.do(driven.core.drain())
    assert driven.reasons == ["idle", "drain"]


def test_a_predictor_that_takes_no_time_by_the_clock_is_served(driven_of):
    """As on an event loop whose time is virtual."""
    driven = driven_of(Adaptive, max_batch_size=1, max_in_flight=4, learns_in_flight=True)
    for number in range(100):
        driven.submit(str(number))
    driven.answer_all()
    assert len(driven.answers) == 100
