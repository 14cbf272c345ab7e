"""How many pods carry a load: the smallest number whose simulation keeps the service objective.

A pod is the production scheduler with the adaptive policy in front of one predictor. Behind a random balancer pods are
independent, so one pod with its share of the Poisson stream stands for all. Behind a balancer that takes turns each pod
gets every n-th request. Behind one that looks for the least loaded several pods are simulated together.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from carpool.scheduling import adaptive, limits, own_time, scheduler, window
from carpool_sidecar.planning import engine, recorded, service_times, traffic

SEED = 1
WARM_UP = 0.25  # of a run, in which the policy learns and nothing is counted
BLOCKS = 20  # of a run; their spread tells how much is chance, as requests next to each other share their luck
TOGETHER = 8  # pods simulated at once behind a balancer that compares them; more pods only do better

CLEAR = 2.0  # a result so many margins off the share needs no longer run
# A long run sees at least so many full batches and lasts so many objectives, so that queues have the time to grow. All
# runs become longer for that, up to a factor.
BATCHES, OBJECTIVES = 500, 25
LONGEST = 4.0
HEAD_ROOM = 1.25  # times the answer: what the plan shows as room to grow
FINEST = 200  # larger fleets are planned to one pod in so many: chance in a long run is no smaller than that
IDLE = 1e-4  # load at which a request meets no other

# The sidecar's own defaults; more batches in flight where the predictor's workers need them.
_MAX_IN_FLIGHT = 8
_MAX_LATENCY = 0.5

_TICK = 0.001  # of the timers that carry out the policy's waits


class Balancing(enum.StrEnum):
    """How requests find a pod."""

    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


@dataclass(frozen=True)
class Question:
    """`rate` requests a second; `share` of them are to be answered within `slo` seconds.

    They have one instance each and come as a Poisson stream, or else are like those `recorded`, thinned out or laid
    over each other until there are so many. `own` is what a pod's sidecar takes itself. A call has at most so many
    instances, and bytes of them, which are known of recorded requests alone.
    """

    rate: float
    slo: float
    predictor: service_times.Predictor
    max_batch_size: int = 32
    max_batch_bytes: float = math.inf
    share: float = 0.99
    balancer: Balancing = Balancing.RANDOM
    recorded: recorded.Arrivals | None = None
    own: own_time.OwnTime = own_time.NO_TIME

    @property
    def rows(self) -> float:
        """Instances in a request, on average."""
        return 1.0 if self.recorded is None else self.recorded.mean_rows

    @functools.cached_property
    def capacity(self) -> float:
        """Most instances a second that one pod can do, with batches of the best size."""
        return max(
            min(self.predictor.capacity(rows), self._of_core(rows)) for rows in range(1, self.max_batch_size + 1)
        )

    @property
    def is_limited_by_the_core(self) -> bool:
        """Whether it is the sidecar and not the predictor that could not do more in full batches."""
        return self._of_core(self.max_batch_size) < self.predictor.capacity(self.max_batch_size)

    def _of_core(self, rows: int) -> float:
        """Instances a second that the sidecar's core can do in such batches."""
        seconds = self.own.of(rows / self.rows)
        return rows / seconds if seconds else math.inf


class Forecast(NamedTuple):
    """What to expect of so many pods.

    `in_time` and `refused` are shares of all requests: answered within the objective, and refused because they would
    have been late. `margin` is two standard errors of `in_time`. `load` is the offered load as a share of the capacity,
    `busy` the share of time that the predictor works. `p50` and `p99` are seconds, of answered requests.
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
    """Simulate so many pods, or fewer that stand for them, with about so many requests in all."""
    rate = question.rate / pods
    together = min(pods, TOGETHER) if question.balancer is Balancing.LEAST_LOADED else 1
    workload = _workload(question, pods, together, requests / (rate * together))
    make = make_scheduler(limits_of(question), "adaptive", question.predictor.overhead)
    # To one pod all balancers are the same.
    make_balancer = traffic.LeastLoaded
    result = engine.simulate(make, question.predictor, workload, together, make_balancer, SEED, question.own)
    return judge(question, pods, result)


def judge(question: Question, pods: int, result: engine.Result) -> Forecast:
    """The figures of a simulation."""
    summary = result.summary(WARM_UP)
    counted = [outcome for outcome in result.outcomes if outcome.arrived >= WARM_UP * result.end]
    hits = [outcome.refused is None and outcome.finished - outcome.arrived <= question.slo for outcome in counted]
    in_time, margin = share(hits)
    return Forecast(
        pods=pods,
        rate_per_pod=question.rate / pods,
        load=question.rate * question.rows / pods / question.capacity,
        busy=summary.utilisation,
        mean_batch=summary.mean_batch,
        p50=summary.p50,
        p99=summary.p99,
        in_time=in_time,
        margin=margin,
        refused=summary.refused,
        requests=len(result.outcomes),
    )


def make_scheduler(bounds: limits.Limits, policy: str, overhead: float) -> engine.MakeScheduler:
    """The scheduler of a sidecar with such a policy, which measures at its start what is around a batch."""

    def make(clock: engine.Clock) -> engine.Scheduler:
        ids = itertools.count()
        chosen: adaptive.Adaptive | window.Window
        if policy == "adaptive":
            chosen = adaptive.Adaptive(bounds, _TICK)
            chosen.predictor.hint_overhead(overhead)
        else:
            chosen = window.Window(bounds, _TICK)
        return scheduler.Scheduler(bounds, chosen, clock, lambda: str(next(ids)))

    return make


def limits_of(question: Question) -> limits.Limits:
    """Those of a sidecar that is told the objective."""
    return limits.Limits(
        max_batch_size=question.max_batch_size,
        max_batch_bytes=question.max_batch_bytes,
        row_sizes=traffic.row_sizes,
        max_latency=_MAX_LATENCY,
        slo=question.slo,
        max_in_flight=max(_MAX_IN_FLIGHT, question.predictor.workers + 1),
        learns_in_flight=True,
    )


def _workload(question: Question, pods: int, together: int, seconds: float) -> traffic.Workload:
    if question.recorded is None:
        return traffic.Open(_arrivals(question, pods, together), seconds)
    factor = question.rate / pods * together / question.recorded.rate
    in_turn = question.balancer is Balancing.ROUND_ROBIN
    return recorded.Replay(question.recorded.stream(factor, SEED, in_turn=in_turn), seconds)


def _arrivals(question: Question, pods: int, together: int) -> Iterator[float]:
    rate = question.rate / pods
    if question.balancer is Balancing.ROUND_ROBIN:
        return _every_nth(rate, pods)
    return traffic.poisson(rate * together, SEED)


def _every_nth(rate: float, n: int) -> Iterator[float]:
    """Every n-th arrival of a Poisson stream of rate `n * rate`: gaps are sums of `n` exponential ones."""
    source = random.Random(f"every nth {SEED}")
    now = 0.0
    while True:
        now += source.gammavariate(n, 1 / (n * rate))
        yield now


def share(hits: list[bool]) -> tuple[float, float]:
    """The share that is true, and two standard errors of it, from the spread of means of blocks."""
    if len(hits) < BLOCKS:
        return 0.0, 1.0
    size = len(hits) // BLOCKS
    means = [sum(hits[start : start + size]) / size for start in range(0, size * BLOCKS, size)]
    mean = sum(hits) / len(hits)
    variance = sum((one - mean) ** 2 for one in means) / (BLOCKS - 1)
    return mean, max(2 * math.sqrt(variance / BLOCKS), 3 / len(hits))  # the rule of three, if nothing varies


# --- the search -------------------------------------------------------------------------------------------------------


class Effort(NamedTuple):
    """Requests in a run. What is clear after a short one needs no long one."""

    short: int = 20_000
    long: int = 80_000


DEFAULT = Effort()


class Plan(NamedTuple):
    """The answer, what a little less would do (None: there is no less), and what a good deal more would."""

    question: Question
    chosen: Forecast
    fewer: Forecast | None
    more: Forecast
    simulated: int  # requests, in all runs

    @property
    def step(self) -> int:
        """To how many pods the answer is exact."""
        return self.chosen.pods - self.fewer.pods if self.fewer else 1


class Infeasible(ValueError):
    """No number of pods keeps the objective."""


Progress = Callable[[int, int], None]
"""Hears of each run before it starts: pods, and requests to simulate."""


def plan(question: Question, progress: Progress = lambda pods, requests: None, effort: Effort = DEFAULT) -> Plan:
    """The smallest number of pods that keeps the objective, give or take one in `FINEST`.

    The same question always gets the same answer. Raises `Infeasible` if more pods do not help.
    """
    search = _Search(question, progress, effort)
    search.check_idle()
    chosen, fewer = search.smallest()
    return Plan(
        question,
        search.forecast(chosen, search.long),
        search.best_known(fewer) or search.forecast(fewer, search.long) if fewer > 0 else None,
        search.forecast(math.ceil(HEAD_ROOM * chosen), search.short),
        search.simulated,
    )


class _Search:
    """Goes up in growing steps from a number of pods that lack the capacity, then closes in."""

    # Mutable state: what was simulated, by pods and requests.
    def __init__(self, question: Question, progress: Progress, effort: Effort) -> None:
        full_batches = BATCHES * question.max_batch_size
        objectives = OBJECTIVES * question.slo * question.capacity / question.rows
        factor = min(LONGEST, max(1.0, full_batches / effort.long, objectives / effort.long))
        self.short, self.long = round(effort.short * factor), round(effort.long * factor)
        self._question = question
        self._progress = progress
        self._known: dict[tuple[int, int], Forecast] = {}

    @property
    def simulated(self) -> int:
        return sum(found.requests for found in self._known.values())

    def check_idle(self) -> None:
        """Raises `Infeasible` if even a request that meets no other is answered too late too often."""
        question = self._question
        alone = question.predictor.alone(1) + question.own.of(1)
        if alone > question.slo:
            own = "service, overhead and the sidecar's own time" if any(question.own) else "service and overhead"
            raise Infeasible(
                f"one instance alone takes {alone * 1000:.4g} ms ({own}), longer than the objective of "
                f"{question.slo * 1000:.4g} ms: no number of pods helps"
            )
        best = self.forecast(self._most(), self.short // 4)
        if best.in_time < question.share:
            raise Infeasible(
                f"even a pod with nothing else to do answers only {best.in_time:.1%} within {question.slo * 1000:.4g} "
                f"ms, because the service time of one instance varies: no number of pods helps"
            )

    def smallest(self) -> tuple[int, int]:
        """So many pods are enough, and the largest number below that is known not to be."""
        needed = self._question.share * self._question.rate * self._question.rows / self._question.capacity
        fails = math.ceil(needed) - 1
        pods, stride = fails + 1, max(1, fails // 16)
        while pods < self._most() and not self._is_enough(pods):
            fails, pods, stride = pods, min(pods + stride, self._most()), stride * 3
        for turn in itertools.count(1):
            if pods - fails <= self.step(pods):
                break
            guess = self._interpolate(fails, pods) if turn % 3 else (fails + pods) // 2
            fails, pods = (fails, guess) if self._is_enough(guess) else (guess, pods)
        while pods < self._most() and self.forecast(pods, self.long).in_time < self._question.share:
            fails, pods = pods, pods + self.step(pods)  # a short run was wrong, against all odds
        return pods, fails

    def step(self, pods: int) -> int:
        return max(1, pods // FINEST)

    def forecast(self, pods: int, requests: int) -> Forecast:
        if (pods, requests) not in self._known:
            self._progress(pods, requests)
            self._known[pods, requests] = forecast(self._question, pods, requests)
        return self._known[pods, requests]

    def best_known(self, pods: int) -> Forecast | None:
        return self._known.get((pods, self.long)) or self._known.get((pods, self.short))

    def _is_enough(self, pods: int) -> bool:
        share = self._question.share
        found = self.forecast(pods, self.short)
        if abs(found.in_time - share) <= CLEAR * found.margin:
            found = self.forecast(pods, self.long)
        return found.in_time >= share

    def _interpolate(self, fails: int, pods: int) -> int:
        """Where the share that is too late should be just right: it is nearly a power of the number of pods."""
        ends = self.best_known(fails), self.best_known(pods)
        if ends[0] is None or ends[1] is None:
            return (fails + pods) // 2
        low, high = (math.log(max(1 - found.in_time, 1 / found.requests)) for found in ends if found)
        wanted = math.log(1 - self._question.share)
        part = (low - wanted) / (low - high) if low > wanted > high else 0.5
        guess = fails * math.pow(pods / fails, part)
        return min(max(round(guess), fails + 1), pods - 1)

    def _most(self) -> int:
        """So many pods that each is idle nearly always."""
        question = self._question
        return math.ceil(question.rate * question.rows * question.predictor.service.seconds(1, 0.0) / IDLE)
