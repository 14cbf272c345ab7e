"""A sidecar whose own core is the limit: how the adaptive policy compares with the best window, in virtual time."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from benchmarks.sim import contenders, variants
from carpool.scheduling import adaptive, own_time, window
from carpool_sidecar.planning import engine, service_times, traffic

WINDOWS = (0.0, 0.0005, 0.001, 0.002)
SECONDS = 0.5


class Scene(NamedTuple):
    """A quick predictor, and a sidecar that takes time itself. `within` is what the mean may be, over the best one."""

    predictor: service_times.Predictor
    own: own_time.OwnTime
    size: int
    within: float = 1.2

    @property
    def possible(self) -> float:
        """Requests a second in full batches."""
        busy = self.own.of(self.size)
        return min(self.predictor.capacity(self.size), self.size / busy if busy else math.inf)

    def mean(self, make: engine.MakeScheduler, load: float) -> float:
        """Mean latency at a share of what is possible, in seconds."""
        arrivals = traffic.Open(traffic.poisson(load * self.possible, 3), SECONDS)
        return engine.simulate(make, self.predictor, arrivals, own=self.own).summary(0.3).mean

    def adaptive(self, kind: type[adaptive.Adaptive] = adaptive.Adaptive) -> engine.MakeScheduler:
        def make_policy(bounds):
            policy = kind(bounds, tick=contenders.TICK)
            policy.predictor.hint_overhead(self.predictor.overhead)
            return policy

        most = contenders.MOST_IN_FLIGHT
        return contenders.production(make_policy, self.size, contenders.ADAPTIVE_MAX_LATENCY, most, True)

    def window(self, seconds: float) -> engine.MakeScheduler:
        stages = len(self.predictor.later)
        return contenders.production(window.Window, self.size, seconds, self.predictor.workers + stages + 1)

    def answered(self, make: engine.MakeScheduler, count: int | None = None) -> float:
        """Requests a second with so many callers in a closed loop, or those of four full batches."""
        callers = variants.Closed(count or 4 * self.size, SECONDS, variants.network_think(), 3)
        return engine.simulate(make, self.predictor, callers, own=self.own).summary(0.5).throughput


def quick(fixed: float, per_row: float, workers: int = 1) -> service_times.Predictor:
    return service_times.Predictor(service_times.Affine(fixed / 1000, per_row / 1000), 0.0003, workers)


SERIAL = Scene(quick(0.5, 0.01), own_time.OwnTime(0.0002, 0.00002), 32)
LARGE = SERIAL._replace(size=128)
# As MiniLM on an H100 behind the sidecar: two batches at once, and answers of 4.7 kB.
PARALLEL = Scene(quick(1.2, 0.038, 2), own_time.OwnTime(0.00025, 0.000033), 128)
# The same in the stages of its worker: texts are read, computed, and their embeddings written.
_STAGES = [service_times.Affine(fixed / 1000, row / 1000) for fixed, row in ((0.4, 0.005), (0.6, 0.018), (0.4, 0.010))]
STAGED = Scene(service_times.Predictor(_STAGES[0], 0.001, later=tuple(_STAGES[1:])), own_time.OwnTime(), 128)
# In stages large batches and small ones that follow each other cost more than equal ones, as a window makes them; more
# batches at once than the two that are learned do not change that.
STAGED_BUSY = STAGED._replace(own=own_time.OwnTime(0.00012, 0.00003), within=1.3)


# As 37 B before a model that answers at once: all that counts is the sidecar's core.
CORE_ALONE = Scene(quick(0.001, 0.0)._replace(overhead=0.0001), own_time.OwnTime(0.00007, 0.000012), 32)
# What batches that keep apart are to take at half of the load, of those that do not, and of the best window.
UNPACED, BEST_WINDOW = 0.95, 0.8


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(
    "scene", [SERIAL, LARGE, PARALLEL, STAGED_BUSY], ids=["serial", "large", "parallel", "in stages"]
)
def test_adaptive_is_near_the_best_window_where_the_sidecar_is_the_limit(scene, load):
    best = min(scene.mean(scene.window(seconds), load) for seconds in WINDOWS)
    assert scene.mean(scene.adaptive(), load) <= scene.within * best


@pytest.mark.parametrize("callers", [16, 64, 128])
def test_adaptive_answers_nearly_as_many_as_the_best_window_where_the_core_is_all_that_counts(callers):
    best = max(CORE_ALONE.answered(CORE_ALONE.window(seconds), callers) for seconds in WINDOWS)
    assert CORE_ALONE.answered(CORE_ALONE.adaptive(), callers) >= 0.95 * best


def test_batches_that_a_busy_core_keeps_apart_are_answered_sooner():
    class Unpaced(adaptive.Adaptive):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.own_time = own_time.OwnTimeModel()  # nobody reads what is learned in this one

    class Unspaced(Unpaced):
        def sent(self, batch, now):
            super().sent(batch, now)
            self.spacing.next_at = -math.inf  # which finds out at some loads what the core needs

    mean = CORE_ALONE.mean(CORE_ALONE.adaptive(), 0.5)
    assert mean <= UNPACED * CORE_ALONE.mean(CORE_ALONE.adaptive(Unspaced), 0.5)
    assert CORE_ALONE.mean(CORE_ALONE.adaptive(), 0.8) <= UNPACED * CORE_ALONE.mean(CORE_ALONE.adaptive(Unpaced), 0.8)
    assert mean <= BEST_WINDOW * min(CORE_ALONE.mean(CORE_ALONE.window(seconds), 0.5) for seconds in WINDOWS)


def test_as_many_batches_are_out_as_a_predictor_in_stages_is_quickest_with():
    fixed = {count: contenders.production(window.Window, STAGED.size, 0.0, count) for count in (1, 2, 3, 4)}
    rates = {count: STAGED.answered(make) for count, make in fixed.items()}
    assert max(rates, key=lambda count: rates[count]) == 3
    assert STAGED.answered(STAGED.adaptive()) >= 0.98 * rates[3]


def test_a_lone_request_takes_the_predictors_time_and_the_sidecars():
    arrivals = traffic.Open([0.1], 1.0)
    predictor = service_times.Predictor(service_times.Affine(0.010, 0.0), 0.004, variation=0.0)
    own = own_time.OwnTime(0.002, 0.001)
    result = engine.simulate(SERIAL.adaptive(), predictor, arrivals, own=own)
    (outcome,) = result.outcomes
    assert outcome.finished - outcome.arrived == pytest.approx(0.010 + 0.004 + own.of(1))


def test_the_core_does_what_it_can_and_no_more():
    busy = SERIAL._replace(own=own_time.OwnTime(0.001, 0.0001))
    callers = variants.Closed(128, SECONDS, variants.constant_think(0.0), seed=3)
    summary = engine.simulate(busy.window(0.0), busy.predictor, callers, own=busy.own).summary(0.3)
    assert summary.throughput <= busy.possible
    assert summary.throughput == pytest.approx(summary.mean_batch / busy.own.of(summary.mean_batch), rel=0.03)


def test_what_comes_while_the_core_is_busy_leaves_together():
    slow = own_time.OwnTime(0.010, 0.0)
    result = engine.simulate(
        SERIAL.window(0.0), SERIAL.predictor, traffic.Open([0.1, 0.101, 0.102, 0.103], 1.0), own=slow
    )
    assert [batch.rows for batch in result.batches] == [1, 3]
