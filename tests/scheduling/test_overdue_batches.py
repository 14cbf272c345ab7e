"""A call that the predictor never answers holds its own callers and one place, and stops nobody else."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest

from carpool.scheduling import adaptive, limits, messages, policy, tuning, window
from carpool.scheduling.predictor_model import PredictorModel
from tests.scheduling.driven import DrivenScheduler, refused

PLACES = 4
POLICIES = {
    "adaptive": (adaptive.Adaptive, {"learns_in_flight": True}),
    "adaptive, stated": (adaptive.Adaptive, {}),
    "window": (window.Window, {"learns_in_flight": True, "max_latency": 0.005}),
    "window, stated": (window.Window, {"max_latency": 0.005}),
    "as soon as it is free": (window.Window, {"learns_in_flight": True, "max_latency": 0.0}),
}
each_policy = pytest.mark.parametrize("name", POLICIES)


class Predictor(DrivenScheduler):
    """Answers each batch `seconds` after it came, as many as come at once, and those with a `hang` never.

    With a number of `workers` so many batches at once, and the others in turn.
    """

    def __init__(
        self,
        make_policy: Callable[[limits.Limits], policy.Policy],
        seconds: float = 0.010,
        workers: int = 1000,
        **bounds,
    ) -> None:
        super().__init__(make_policy, **{"max_in_flight": PLACES, "timeout": 60.0, **bounds})
        self.seconds = seconds
        self.free = [self.now] * workers
        self.ends: dict[messages.Batch, float] = {}
        self.slow_every, self.served = 0, 0
        self.waited: dict[str, float] = {}
        self.begun: dict[str, float] = {}

    def do(self, effects) -> None:
        super().do(effects)
        for batch in [batch for batch in self.out if batch not in self.ends]:
            if any(name.startswith("hang") for name in self.members(batch)):
                self.ends[batch] = math.inf
                continue
            worker = min(range(len(self.free)), key=self.free.__getitem__)
            self.served += 1
            seconds = self.seconds * (30 if self.slow_every and self.served % self.slow_every == 0 else 1)
            self.ends[batch] = self.free[worker] = max(self.free[worker], self.now) + seconds
        for name in [name for name in self.begun if name in self.answers]:
            self.waited[name] = self.now - self.begun.pop(name)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            first = min(self.out, key=self.ends.__getitem__, default=None)
            answered = math.inf if first is None else self.ends[first]
            due = min(answered, self.core.next_deadline() or math.inf)
            if due > end:
                break
            self.now = max(self.now, due)
            if answered <= due:
                self.answer(first)
            else:
                self.do(self.core.poll())
        self.now = end

    def call(self, name: str, **about) -> None:
        self.begun[name] = self.now
        self.submit(name, **about)

    def hang(self, count: int) -> None:
        """Hold so many places, one call after the other, as nobody would merge them."""
        for number in range(count):
            self.call(f"hang-{number}", key=f"hang-{number}")
            self.pass_time(0.25)

    def traffic(self, name: str, seconds: float, a_second: float = 100.0) -> list[float]:
        """How long each of some calls of two keys waited, in seconds; infinity if it is still waiting."""
        chance, end, number, names = random.Random(name), self.now + seconds, 0, []
        while self.now < end:
            self.call(f"{name}-{number}", key=chance.choice("xy"))
            names.append(f"{name}-{number}")
            number += 1
            self.pass_time(chance.expovariate(a_second))
        self.pass_time(0.3)
        return sorted(self.waited.get(each, math.inf) for each in names)


def at(name: str, **more) -> Predictor:
    make_policy, bounds = POLICIES[name]
    return Predictor(make_policy, **bounds, **more)


@each_policy
@pytest.mark.parametrize("before", ["nothing", "one call", "traffic"])
@pytest.mark.parametrize("hung", [1, PLACES - 1])
def test_whoever_has_a_place_left_is_answered_within_300_ms_beside_calls_that_hang(name, before, hung):
    if before == "nothing" and hung > 1 and "stated" not in name:
        pytest.skip("the next test: a predictor of which nothing is known is more likely slow")
    driven = at(name)
    if before == "one call":
        driven.call("first")
        driven.pass_time(0.1)
    elif before == "traffic":
        driven.traffic("before", 3.0)
    driven.hang(hung)
    waited = driven.traffic("beside", 3.0)
    assert len(waited) > 200
    assert waited[-1] <= 0.3
    assert waited[len(waited) // 2] <= 0.030


@pytest.mark.parametrize("name", ["adaptive", "window", "as soon as it is free"])
def test_several_that_hang_before_the_first_answer_of_all_hold_the_others_up_for_a_bounded_time(name):
    driven = at(name)
    driven.hang(PLACES - 1)
    driven.traffic("held up", PLACES * tuning.NEXT_PATIENCE)
    assert driven.traffic("then", 3.0)[-1] <= 0.3


@each_policy
def test_a_call_that_begins_to_hang_under_load_stops_the_others_for_less_than_300_ms(name):
    driven = at(name)
    driven.traffic("before", 3.0)
    for number in range(PLACES - 1):
        driven.call(f"hang-{number}")
        assert driven.traffic(f"beside {number}", 1.0)[-1 - 50] <= 0.3  # up to a batch of them hangs with it


@each_policy
@pytest.mark.parametrize("rows", [32, 1000])
def test_a_large_batch_that_hangs_is_waited_for_no_longer_where_only_small_ones_are_known(name, rows):
    driven = at(name, max_batch_size=rows)
    for number in range(100):
        driven.call(f"small-{number}")
        driven.pass_time(0.02)
    driven.call("hang", rows=rows)
    waited = driven.traffic("beside", 5.0)
    assert waited[-1] <= 0.3


@pytest.mark.parametrize("name", ["adaptive", "window"])
def test_a_batch_that_hangs_keeps_its_place(name):
    driven = at(name)
    driven.hang(PLACES)
    driven.call("waits")
    driven.pass_time(10.0)
    assert len(driven.out) == PLACES
    assert "waits" not in driven.answers
    driven.fail(refused(504), driven.out[0])
    driven.pass_time(0.1)
    assert "waits" in driven.answers


@pytest.mark.parametrize("name", ["adaptive", "window"])
def test_what_hung_and_comes_back_teaches_nothing_where_others_were_answered_meanwhile(name):
    driven = at(name)
    driven.traffic("before", 3.0)
    driven.hang(1)
    driven.traffic("beside", 3.0)
    before = driven.policy.predictor.round_trip(1)
    driven.answer(next(batch for batch in driven.out if "hang-0" in driven.members(batch)))
    assert driven.policy.predictor.round_trip(1) == before
    assert driven.policy.predictor.overdue == 0


@pytest.mark.parametrize("name", ["adaptive", "window", "as soon as it is free"])
def test_a_predictor_whose_first_answers_take_long_is_known_as_slow_and_not_as_one_that_hangs(name):
    driven = at(name, seconds=2.0, workers=1, max_batch_size=32)
    driven.traffic("slow", 20.0, a_second=5.0)
    driven.pass_time(60.0)
    predictor = driven.policy.predictor
    assert predictor.round_trip(1) == pytest.approx(2.0, rel=0.1)
    assert predictor.workers == 1
    sent = len(driven.sent)
    driven.traffic("then", 20.0, a_second=5.0)
    driven.pass_time(10.0)
    assert len(driven.sent) - sent <= 14  # one after the other: 10 batches of 2 s, and what is left over
    assert not driven.refusals


@pytest.mark.parametrize("name", ["adaptive", "window", "as soon as it is free"])
def test_a_predictor_that_becomes_a_hundred_times_slower_is_known_as_such_again(name):
    driven = at(name, seconds=0.010, workers=1, max_batch_size=32)
    driven.traffic("quick", 3.0, a_second=30.0)
    driven.seconds = 1.0
    driven.traffic("slow", 60.0, a_second=5.0)
    driven.pass_time(30.0)
    assert driven.policy.predictor.round_trip(1) == pytest.approx(1.0, rel=0.2)
    assert driven.policy.predictor.workers == 1
    assert not driven.refusals


@pytest.mark.parametrize("name", ["adaptive", "window"])
def test_batches_that_take_far_longer_now_and_then_hide_no_parallelism(name):
    driven = at(name, workers=4, max_batch_size=4, max_in_flight=8)
    driven.traffic("before", 3.0, a_second=1200.0)
    assert driven.policy.predictor.workers == 4
    driven.slow_every = 200
    waited = driven.traffic("now and then", 10.0, a_second=1200.0)
    assert driven.policy.predictor.workers == 4
    assert waited[len(waited) // 2] <= 0.040


@pytest.mark.parametrize("make_policy", [adaptive.Adaptive, window.Window])
def test_a_suspect_is_tried_beside_a_call_that_hangs(make_policy):
    driven = Predictor(make_policy, max_latency=0.0, traits={"content": lambda request: request.tag[0]})
    driven.hang(1)
    driven.call("bad-1")
    driven.fail(refused(400), driven.out[-1])
    driven.call("bad-2")
    driven.pass_time(5.0)
    assert "bad-2" in driven.answers


def ten_at_once(driven: Predictor, name: str) -> float:
    """How long the last of ten calls waited that came at once; infinity if one was refused."""
    for number in range(10):
        driven.call(f"{name}-{number}", timeout=2.0)
    driven.pass_time(4.0)
    return max(driven.waited.get(f"{name}-{number}", math.inf) for number in range(10))


@pytest.mark.parametrize("name", ["adaptive", "window"])
@pytest.mark.parametrize("max_batch_size", [1, 4])
def test_ten_calls_at_once_run_at_once_on_places_that_were_found(name, max_batch_size):
    driven = at(name, seconds=0.1, workers=16, max_in_flight=16, max_batch_size=max_batch_size)
    driven.traffic("before", 20.0, a_second=140.0 * max_batch_size)
    driven.pass_time(5.0)
    for burst in range(8):
        assert ten_at_once(driven, f"r{burst}") <= 0.12


def test_while_places_are_being_found_nobody_is_refused_who_could_be_answered_in_time():
    driven = at("adaptive", seconds=0.4, max_in_flight=16, max_batch_size=1)
    driven.call("first")
    driven.pass_time(1.0)
    for burst in range(8):
        ten_at_once(driven, f"r{burst}")
    assert not driven.refusals


class TestStatedParallelism:
    """`max_in_flight` counts from the first call on, where it is said."""

    @pytest.mark.parametrize("max_batch_size", [1, 4])
    @pytest.mark.parametrize("max_latency", [0.0, 0.5])
    def test_a_first_burst_has_all_places_at_once(self, max_batch_size, max_latency):
        driven = Predictor(
            adaptive.Adaptive, 0.4, 16, max_in_flight=16, max_batch_size=max_batch_size, max_latency=max_latency
        )
        driven.submit_all(*[(f"r{number}", 1, "key", 2.0) for number in range(16 * max_batch_size)])
        driven.pass_time(0.5)
        assert len(driven.answers) == 16 * max_batch_size

    def test_bursts_have_them_again_and_nobody_is_refused(self):
        driven = Predictor(adaptive.Adaptive, 0.4, 16, max_in_flight=16, max_batch_size=1, max_latency=0.02)
        for burst in range(30):
            for number in range(16):
                driven.call(f"r{burst}-{number}", timeout=2.0)
            driven.pass_time(0.9)
        assert len(driven.answers) == 480
        assert max(driven.waited.values()) <= 0.85
        assert driven.policy.predictor.workers == 16

    @pytest.mark.parametrize("name", ["adaptive, stated", "window, stated"])
    @pytest.mark.parametrize("max_batch_size", [1, 4, 32])
    def test_ten_calls_at_once_run_at_once(self, name, max_batch_size):
        driven = at(name, seconds=0.4, workers=16, max_in_flight=16, max_batch_size=max_batch_size)
        for burst in range(8):
            assert ten_at_once(driven, f"r{burst}") <= 0.42

    @pytest.mark.parametrize("stated", [2, 4, 16])
    @pytest.mark.parametrize("callers", [3, 6, 20])
    def test_a_predictor_that_does_one_at_a_time_is_found_out(self, stated, callers):
        driven = Predictor(adaptive.Adaptive, 0.01, 1, max_in_flight=stated, max_batch_size=4, max_latency=0.02)
        for burst in range(400):
            for number in range(callers):
                driven.call(f"r{burst}-{number}")
                driven.pass_time(0.0003)
            driven.pass_time(0.0025 * callers)
        assert driven.policy.predictor.workers == 1

    @pytest.mark.parametrize("stated", [64, 256])
    def test_far_too_large_a_number_is_found_out_within_two_seconds(self, stated):
        driven = Predictor(adaptive.Adaptive, 0.02, 1, max_in_flight=stated, max_batch_size=32, max_latency=0.02)
        driven.traffic("at first", 2.0, a_second=120.0)
        assert driven.policy.predictor.workers == 1
        waited = driven.traffic("then", 3.0, a_second=120.0)
        assert waited[len(waited) // 2] <= 0.040

    def test_another_number_that_is_stated_counts_at_once(self):
        driven = Predictor(adaptive.Adaptive, 0.4, 16, max_in_flight=2, max_batch_size=1)
        driven.traffic("some", 3.0, a_second=1.0)
        driven.change(max_in_flight=8)
        for number in range(8):
            driven.call(f"r{number}")
        assert len(driven.out) >= 8

    def test_what_was_learned_stays_where_nothing_is_stated(self):
        bounds = limits.Limits(max_in_flight=8, learns_in_flight=True)
        device = PredictorModel(bounds)
        device._set_workers(4)
        bounds.become(dataclasses.replace(bounds, max_in_flight=6))
        device.limits_changed()
        assert device.workers == 4


def test_a_first_call_is_counted_on_for_200_ms_and_a_known_one_for_four_round_trips_and_100_ms_at_least():
    device = PredictorModel(limits.Limits())

    def batch(rows: int = 1) -> messages.Batch:
        return messages.Batch(
            "id", "key", [messages.Part(messages.Request("key", rows), 0, rows)], messages.Reason.FULL
        )

    first = batch()
    device.sent(first, 10.0)
    assert device.overdue_at == 10.0 + tuning.FIRST_PATIENCE == 10.2
    device.completed(first, 10.1)
    second = batch()
    device.sent(second, 20.0)
    assert device.overdue_at == pytest.approx(20.1 + 4 * 0.1)
    device.completed(second, 20.1)
    larger = batch(3)
    device.sent(larger, 30.0)
    assert device.overdue_at == pytest.approx(30.1 + 4 * 0.1)
    for number in range(400):
        device.gone(larger, 40.0 + number)
        device.sent(larger, 40.0 + number)
        device.completed(larger, 40.01 + number)
        device.sent(larger, 40.1 + number)
    assert device.overdue_at == pytest.approx(439.1 + 0.01 + 0.1, abs=0.001)
