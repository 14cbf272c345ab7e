"""What to expect of so many pods: their figures, from a simulation of the production scheduler.

A pod is that scheduler with the adaptive policy in front of one predictor. Behind a random balancer the pods of a
fleet are independent, and one with its share of the Poisson stream stands for all; in turn, each gets every n-th
request; for the least loaded, several pods are simulated together.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from carpool.scheduling import adaptive, limits, scheduler
from carpool_sidecar.planning import balancers, chance, engine, results, service_times, workloads

SEED = 1
WARM_UP = 0.25  # of a run, in which the policy learns and nothing is counted
BLOCKS = 20  # of a run, whose spread tells how far chance goes; requests next to each other share their luck
TOGETHER = 8  # pods simulated at once behind a balancer that compares them; more of them only do better

# As wide as the sidecar's own defaults, and at least what so many workers need.
_MAX_IN_FLIGHT = 8
_MAX_LATENCY = 0.5


class Balancer(enum.StrEnum):
    """How requests find a pod."""

    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


@dataclass(frozen=True)
class Question:
    """`rate` requests a second of one instance each; `share` of them are to be answered within `slo` seconds."""

    rate: float
    slo: float
    predictor: service_times.Predictor
    max_batch_size: int = 32
    share: float = 0.99
    balancer: Balancer = Balancer.RANDOM

    @functools.cached_property
    def capacity(self) -> float:
        """Instances a second that one pod can do at most, with batches of the best size."""
        return max(map(self.predictor.capacity, range(1, self.max_batch_size + 1)))


class Forecast(NamedTuple):
    """What to expect of so many pods.

    Shares are of all requests: `in_time` answered within the objective, `refused` turned away because they could not
    be; `margin` is two standard errors of `in_time`. `load` is the share of capacity asked for, `busy` of the time the
    predictor works; `p50` and `p99` are seconds, of answered requests.
    """

    pods: int
    rate_per_pod: float
    load: float
    busy: float
    mean_batch: float
    p50: float
    p99: float
    in_time: float
    margin: float
    refused: float
    requests: int


def forecast(question: Question, pods: int, requests: int) -> Forecast:
    """Simulate so many pods, or what stands for them, with about so many requests in all."""
    rate = question.rate / pods
    together = min(pods, TOGETHER) if question.balancer is Balancer.LEAST_LOADED else 1
    workload = workloads.Open(_arrivals(question, pods, together), requests / (rate * together))
    make = make_scheduler(question)
    # To one pod all balancers are the same.
    result = engine.simulate(make, question.predictor, workload, together, balancers.LeastLoaded, SEED)
    return judge(question, pods, result)


def judge(question: Question, pods: int, result: results.Result) -> Forecast:
    """The figures of a simulation."""
    summary = result.summary(WARM_UP)
    counted = [outcome for outcome in result.outcomes if outcome.arrived >= WARM_UP * result.end]
    hits = [outcome.refused is None and outcome.finished - outcome.arrived <= question.slo for outcome in counted]
    in_time, margin = _share(hits)
    return Forecast(
        pods=pods,
        rate_per_pod=question.rate / pods,
        load=question.rate / pods / question.capacity,
        busy=summary.utilisation,
        mean_batch=summary.mean_batch,
        p50=summary.p50,
        p99=summary.p99,
        in_time=in_time,
        margin=margin,
        refused=summary.refused,
        requests=len(result.outcomes),
    )


def make_scheduler(question: Question) -> engine.MakeScheduler:
    """The scheduler of a sidecar that is told the objective and nothing of the predictor."""

    def make(clock: engine.Clock) -> engine.Scheduler:
        ids = itertools.count()
        bounds = limits.Limits(
            max_batch_size=question.max_batch_size,
            max_latency=_MAX_LATENCY,
            slo=question.slo,
            max_in_flight=max(_MAX_IN_FLIGHT, question.predictor.workers + 1),
        )
        return scheduler.Scheduler(bounds, adaptive.Adaptive(bounds), clock, lambda: str(next(ids)))

    return make


def _arrivals(question: Question, pods: int, together: int) -> Iterator[float]:
    rate = question.rate / pods
    if question.balancer is Balancer.ROUND_ROBIN:
        return _every_nth(rate, pods)
    return workloads.poisson(rate * together, SEED)


def _every_nth(rate: float, n: int) -> Iterator[float]:
    """Of a Poisson stream of rate `n * rate`: gaps are sums of `n` exponential ones."""
    source = chance.source(f"every nth {SEED}")
    now = 0.0
    while True:
        now += source.gammavariate(n, 1 / (n * rate))
        yield now


def _share(hits: list[bool]) -> tuple[float, float]:
    """The share that is true, and two standard errors of it, from the spread of means of blocks."""
    if len(hits) < BLOCKS:
        return 0.0, 1.0
    size = len(hits) // BLOCKS
    means = [sum(hits[start : start + size]) / size for start in range(0, size * BLOCKS, size)]
    mean = sum(hits) / len(hits)
    variance = sum((one - mean) ** 2 for one in means) / (BLOCKS - 1)
    return mean, max(2 * math.sqrt(variance / BLOCKS), 3 / len(hits))  # the rule of three, if nothing varies
