"""The constants of the adaptive policy decide what their comments say: a clear move of one is a change that is seen.

The figures are written down here once more on purpose.
"""

from __future__ import annotations

import math

import pytest

from carpool.scheduling import limits, messages
from carpool.scheduling.adaptive import Adaptive
from carpool.scheduling.arrivals import ArrivalRate, ReturningCallers
from carpool.scheduling.predictor_model import LatencyModel, PredictorModel
from tests.scheduling.driven import DrivenScheduler, refused
from tests.scheduling.test_adaptive_learning import Bench

FIXED, SLOPE = 0.010, 0.001


def learned(samples: int = 400, size: int = 4, seconds: float = 0.010) -> LatencyModel:
    made = LatencyModel()
    for _ in range(samples):
        made.observe(size, seconds)
    return made


def taught(**limits: object) -> DrivenScheduler:
    """Batches of 4 at a predictor of 10 ms and 1 ms a row, without a way to it; no callers who come back."""
    driven = DrivenScheduler(Adaptive, **{"max_batch_size": 4, "max_in_flight": 8, "learns_in_flight": True, **limits})
    driven.policy.predictor.hint_overhead(0.0)
    for number, size in enumerate((1, 2, 3, 4, 1, 2)):
        driven.submit(f"lesson-{number}", rows=size)
        driven.pass_time(FIXED + SLOPE * size)
        driven.answer()
        driven.pass_time(0.5)
    driven.sent.clear()
    return driven


# --- what is learned from how long batches take ------------------------------------------------------------------


def test_a_new_sample_moves_what_was_learned_by_three_in_a_hundred():
    made = learned()
    made.observe(4, 0.014)
    assert made(4) == pytest.approx(0.010 + 0.03 * 0.004, abs=0.00003)


def test_a_new_residual_moves_the_variance_by_five_in_a_hundred():
    made = learned()
    made.observe(4, 0.014)
    assert made.spread == pytest.approx(math.sqrt(0.05 * 0.4**2), rel=0.05)


@pytest.mark.parametrize(("factor", "is_change"), [(1.35, False), (1.7, True), (1 / 1.35, False), (1 / 1.7, True)])
def test_half_as_much_again_is_a_surprise_and_four_in_a_row_are_a_change(factor, is_change):
    made = learned()
    for _ in range(3):
        made.observe(4, 0.010 * factor)
        assert made.changes == 0
    made.observe(4, made(4) * factor)
    assert made.changes == is_change


def test_after_a_change_a_fiftieth_is_kept_so_that_the_next_sample_counts_for_more_than_all_before():
    made = learned()
    for _ in range(4):
        made.observe(4, 0.030)
    kept = 0.02 * 0.97 / (1 - 0.97)  # of about 33 samples
    assert made._n == pytest.approx(kept + 1, rel=0.05)


def test_a_model_is_trusted_from_its_fifth_sample_on():
    assert not learned(4).is_trusted
    assert learned(5).is_trusted


@pytest.mark.parametrize(("spread", "factor"), [(0.1, 1.2), (0.2, 1.4), (0.9, 1.5)])
def test_a_safe_prediction_adds_two_standard_deviations_and_a_half_at_most(spread, factor):
    made = learned()
    made.spread = spread
    assert made.pessimistic(4) == pytest.approx(0.010 * factor)


def test_the_rate_that_is_shown_is_that_of_about_ten_seconds():
    rate = ArrivalRate()
    rate.add(100, 0.0)
    assert rate.per_second(0.0) == 10.0
    assert rate.per_second(10.0) == pytest.approx(10.0 / math.e)


# --- callers who come back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "is_return"), [(0.0008, True), (0.0015, False)])
def test_who_comes_within_a_millisecond_has_come_back_however_short_the_wait_may_be(after, is_return):
    returns = ReturningCallers()
    returns.completed(1, 0.0, span=0.0)
    returns.arrived(1, after)
    returns.completed(1, 1.0, span=0.0)
    assert returns.fraction == pytest.approx(0.2 if is_return else 0.0, abs=0.001)


@pytest.mark.parametrize(("offset", "is_held"), [(0.0029, True), (0.0033, False)], ids=["worth it", "not worth it"])
def test_a_batch_is_held_for_callers_if_three_quarters_of_the_gain_are_worth_the_wait(offset, is_held):
    driven = taught()
    driven.submit("before", rows=4)
    driven.pass_time(FIXED + SLOPE * 4)
    driven.answer()
    driven.policy.returns.fraction, driven.policy.returns.offset = 0.85, offset
    driven.submit("comes back", rows=2)
    assert (len(driven.sent) == 1) == is_held


@pytest.mark.parametrize(("fraction", "is_held"), [(0.89, False), (0.91, True)])
def test_a_batch_waits_for_the_last_of_nine_in_ten_however_long_they_usually_take(fraction, is_held):
    driven = taught()
    driven.submit("before", rows=4)
    driven.pass_time(FIXED + SLOPE * 4)
    driven.answer()
    driven.policy.returns.fraction, driven.policy.returns.offset = fraction, 0.0
    driven.pass_time(0.0015)  # later than usual
    driven.submit("first")
    driven.submit("second")
    driven.submit("third")
    assert (len(driven.sent) == 1) == is_held


def test_nobody_is_held_for_longer_than_20_ms():
    driven = taught()
    for _ in range(40):
        driven.policy.predictor.round_trip.observe(1, 0.2)
    driven.policy.predictor._models_changed()
    driven.submit("before", rows=3)
    driven.pass_time(0.2)
    driven.answer()
    driven.policy.returns.fraction, driven.policy.returns.offset = 1.0, 5.0
    driven.submit("comes back")
    assert len(driven.sent) == 1
    assert driven.core.asking.at - driven.now == pytest.approx(0.020)


# --- trouble ------------------------------------------------------------------------------------------------------


def test_pauses_begin_with_50_ms_double_up_to_a_second_and_begin_anew_after_a_success():
    driven = DrivenScheduler(Adaptive, max_batch_size=1, max_in_flight=1, max_queue_instances=99)
    for number in range(10):
        driven.submit(f"r{number}")
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        driven.fail(refused(503, b"busy"))
        assert driven.core.asking.at - driven.now == pytest.approx(pause)
        driven.pass_time(pause)
        assert len(driven.out) == 1
    driven.answer()
    driven.fail(refused(503, b"busy"))
    assert driven.core.asking.at - driven.now == pytest.approx(0.05)


@pytest.mark.parametrize(("factor", "is_trouble"), [(1.35, False), (1.7, True)])
def test_three_round_trips_in_a_row_of_half_as_much_again_are_trouble(factor, is_trouble):
    driven = taught()
    before = driven.policy.max_in_flight
    seen = []
    for number in range(3):
        driven.submit(f"slow-{number}")
        driven.pass_time(driven.policy.predictor.round_trip.pessimistic(1) * factor)
        driven.answer()
        seen.append(driven.policy.max_in_flight)
        driven.pass_time(0.5)
    assert seen[:2] == [before, before]
    assert (seen[2] == 1) == is_trouble


@pytest.mark.parametrize(("idle", "is_taken"), [(0.2, False), (0.3, True)])
def test_a_predictor_without_work_for_a_quarter_of_a_second_gets_the_next_request_however_late(idle, is_taken):
    driven = taught()
    driven.submit("last")
    driven.pass_time(FIXED + SLOPE)
    driven.answer()
    driven.pass_time(idle)
    driven.submit("late", timeout=0.005)
    assert ("late" not in driven.refusals) == is_taken


# --- how many batches at once -------------------------------------------------------------------------------------


def sent(device: PredictorModel, now: float, size: int = 4) -> messages.Batch:
    batch = messages.Batch("id", "key", [messages.Part(messages.Request("key", size), 0, size)], messages.Reason.FULL)
    device.sent(batch, now)
    return batch


def trusted() -> PredictorModel:
    device = PredictorModel(limits.Limits(learns_in_flight=True))
    for number in range(6):
        device.completed(sent(device, float(number)), number + 0.010)
    return device


@pytest.mark.parametrize(
    ("device", "most"),
    [(trusted, 200), (lambda: PredictorModel(limits.Limits()), 1)],
    ids=["once it is known", "at first"],
)
def test_a_predictor_that_is_never_idle_runs_dry_once_in_so_many_batches(device, most):
    device, now, count = device(), 10.0, 0
    out = [sent(device, now)]
    while not device.should_run_dry:
        count += 1
        out.append(sent(device, now))
        now += 0.010
        device.completed(out.pop(0), now)
    assert count == most


def test_three_clear_comparisons_are_enough_for_one_worker_more_and_for_one_less():
    device, now = trusted(), 10.0
    counts = []
    for _ in range(3):
        first, second = sent(device, now), sent(device, now)
        device.completed(first, now + 0.010)
        device.completed(second, now + 0.010)
        counts.append(device.workers)
        now += 1.0
    assert counts == [1, 1, 2]
    counts.clear()
    for _ in range(3):
        first, second = sent(device, now), sent(device, now)
        device.completed(first, now + 0.010)
        device.completed(second, now + 0.020)
        counts.append(device.workers)
        now += 1.0
    assert counts == [2, 2, 1]


def test_sixteen_comparisons_that_leave_the_number_as_it_is_end_the_search():
    device, now, count = trusted(), 10.0, 0
    while device.is_exploring:
        first, second = sent(device, now), sent(device, now)
        device.completed(first, now + 0.010)
        device.completed(second, now + 0.020)
        now += 1.0
        count += 1
    assert (device.workers, count) == (1, 16)


@pytest.mark.parametrize(
    ("spread", "difference", "is_clear"), [(0.0, 0.2, False), (0.0, 0.28, True), (0.2, 0.28, False), (0.2, 0.4, True)]
)
def test_guesses_are_compared_if_they_are_a_quarter_and_one_and_a_half_deviations_apart(spread, difference, is_clear):
    device, now = trusted(), 10.0
    for _ in range(16):
        first = sent(device, now)
        second = sent(device, now + 0.010 * (1 - difference))
        device.completed(first, now + 0.010)
        device.round_trip.spread = spread
        device.completed(second, now + 0.020)
        now += 1.0
    assert device.is_exploring != is_clear


def test_a_search_that_finds_nothing_goes_on_after_1000_batches_at_the_latest():
    driven = taught()
    driven.policy._since_probe = driven.policy._probe_every = 700
    driven.submit("busy")
    driven.submit("early")
    assert driven.reasons == ["idle", "probe"]
    assert driven.policy._probe_every == 1000


def test_batches_that_leave_early_because_they_are_full_are_the_probes():
    """Of callers in a closed loop who fill two batches, a probe would make three, and none of them full."""
    driven = taught(max_in_flight=2, learns_in_flight=True)
    for number in range(8):
        driven.submit(f"first-{number}")
    for number in range(200):
        driven.pass_time(FIXED + 4 * SLOPE)
        driven.answer()
        for caller in range(4):
            driven.submit(f"{number}-{caller}")
    assert "probe" not in driven.reasons
    assert driven.sizes[3:] == [4] * len(driven.sizes[3:])


def test_no_more_than_sixteen_workers_are_believed_in():
    bench = Bench(workers=40)
    bench.run(10, in_flight=1)
    bench.run(6000)
    assert bench.device.workers == 16


@pytest.mark.parametrize(("chance", "first"), [(0.0, 12), (0.5, 24), (1.0, 36)])
def test_a_batch_is_sent_early_after_about_24_others_and_then_half_as_often(chance, first):
    """Another number in every pod, half as many to half as many again."""
    driven = DrivenScheduler(
        lambda limits: Adaptive(limits, chance=chance), max_batch_size=4, max_in_flight=2, learns_in_flight=True
    )
    counts, before = [], 0
    for number in range(400):
        driven.submit(f"a{number}")
        driven.submit(f"b{number}")
        if driven.reasons[-1] == "probe":
            counts.append(len(driven.sent) - 1 - before)
            before = len(driven.sent) - 1
        while driven.out:
            driven.pass_time(FIXED)
            driven.answer()
        driven.pass_time(0.5)
    assert counts[0] == pytest.approx(first, abs=2)
    assert counts[1:4] == [pytest.approx(first * factor, abs=2) for factor in (2, 4, 8)]
