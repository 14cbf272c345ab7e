"""What the HPA sample aims at: pods at this utilisation turn nobody away, and overloaded pods show more than it."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any, NamedTuple

import pytest

from carpool.scheduling import adaptive, limits, messages, scheduler
from carpool_sidecar.planning import engine, service_times, traffic
from tests.manifests import test_samples

SIZE = 32
# A call takes 40 ms and 1 ms for each instance.
TIMES = service_times.Affine(0.040, 0.001)
FULL_BATCH_SECONDS = TIMES.seconds(SIZE, now=0)
CAPACITY = SIZE / FULL_BATCH_SECONDS
# The beginning, in which the pod learns, is not looked at.
LEARNING_SECONDS, SECONDS = 15.0, 45.0


class Seen(NamedTuple):
    """What a pod showed, on average, and the share of its callers that it turned away."""

    utilisation: float
    refused: float


def target() -> float:
    """The utilisation that the sample aims at."""
    (hpa,) = test_samples.read("hpa.yaml")
    (metric,) = hpa["spec"]["metrics"]
    return float(metric["pods"]["target"]["averageValue"].removesuffix("m")) / 1000


def pod(load: float, slo: float = math.inf) -> Seen:
    """A pod that callers ask for `load` times what full batches can do, at random, in virtual time."""
    shown: list[float] = []

    class Watched(scheduler.Scheduler):
        def submit(self, request: messages.Request) -> Any:
            effects = super().submit(request)
            if request.arrived > LEARNING_SECONDS:
                shown.append(self.learned()["utilisation"])
            return effects

    def make(clock: engine.Clock) -> engine.Scheduler:
        ids = itertools.count()
        bounds = limits.Limits(max_batch_size=SIZE, max_latency=0.02, max_in_flight=8, learns_in_flight=True, slo=slo)
        return Watched(bounds, adaptive.Adaptive(bounds), clock, lambda: str(next(ids)))

    callers = traffic.Open(traffic.poisson(load * CAPACITY, seed=3), SECONDS, traffic.RequestKind())
    outcomes = engine.simulate(make, service_times.Predictor(TIMES, overhead=0.001), callers).outcomes
    late = [outcome for outcome in outcomes if outcome.arrived > LEARNING_SECONDS]
    return Seen(statistics.fmean(shown), sum(outcome.refused is not None for outcome in late) / len(late))


@pytest.mark.parametrize("slo", [math.inf, 2 * FULL_BATCH_SECONDS], ids=["no objective", "two full batches"])
def test_a_pod_at_the_target_turns_next_to_nobody_away(slo: float) -> None:
    seen = pod(target(), slo)
    assert seen.utilisation == pytest.approx(target(), abs=0.05)
    assert seen.refused < 0.02


@pytest.mark.parametrize("load", [1.0, 3.0])
@pytest.mark.parametrize("slo", [math.inf, 2 * FULL_BATCH_SECONDS], ids=["no objective", "two full batches"])
def test_a_pod_that_is_asked_for_too_much_is_beyond_the_target(slo: float, load: float) -> None:
    # The HPA ignores what is within a tenth of its target.
    assert pod(load, slo).utilisation > 1.1 * target()


def test_an_objective_near_the_time_of_a_full_batch_asks_for_smaller_batches() -> None:
    """What the sample's comment warns of: at the target, with a tighter objective, many are turned away."""
    assert pod(target(), 1.4 * FULL_BATCH_SECONDS).refused > 0.1
