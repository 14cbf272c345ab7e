"""How many pods carry a load: the smallest number whose simulation keeps the service objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from carpool_sidecar.planning import forecasts

CLEAR = 2.0  # margins, which are two standard errors each
# A long run sees at least so many full batches, and lasts so many objectives, so that queues have the time to grow.
# That may make all runs longer, up to a factor.
BATCHES, OBJECTIVES = 500, 25
LONGEST = 4.0

HEAD_ROOM = 1.25
FINEST = 200  # larger fleets are planned to one pod in so many: chance in a long run is no smaller than that
IDLE = 1e-4  # load at which a request meets no other


class Effort(NamedTuple):
    """Requests in a run. What is clear after a short one needs no long one."""

    short: int = 20_000
    long: int = 80_000


DEFAULT = Effort()


class Plan(NamedTuple):
    """The answer, what a little less would do (None: there is no less), and what a good deal more would."""

    question: forecasts.Question
    chosen: forecasts.Forecast
    fewer: forecasts.Forecast | None
    more: forecasts.Forecast
    simulated: int  # requests, in all runs

    @property
    def step(self) -> int:
        """To how many pods the answer is exact."""
        return self.chosen.pods - self.fewer.pods if self.fewer else 1


class Infeasible(ValueError):
    """No number of pods keeps the objective."""


Progress = Callable[[int, int], None]
"""Hears of each run before it starts: pods, and requests to simulate."""


def plan(
    question: forecasts.Question, progress: Progress = lambda pods, requests: None, effort: Effort = DEFAULT
) -> Plan:
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
    """Gallops up from the number of pods that lack the capacity, then closes in."""

    # Mutable state: what was simulated, by pods and requests.
    def __init__(self, question: forecasts.Question, progress: Progress, effort: Effort) -> None:
        full_batches = BATCHES * question.max_batch_size
        objectives = OBJECTIVES * question.slo * question.capacity
        factor = min(LONGEST, max(1.0, full_batches / effort.long, objectives / effort.long))
        self.short, self.long = round(effort.short * factor), round(effort.long * factor)
        self._question = question
        self._progress = progress
        self._known: dict[tuple[int, int], forecasts.Forecast] = {}

    @property
    def simulated(self) -> int:
        return sum(found.requests for found in self._known.values())

    def check_idle(self) -> None:
        """Raises `Infeasible` if even a request that meets no other is answered too late too often."""
        question = self._question
        alone = question.predictor.service.seconds(1, 0.0) + question.predictor.overhead
        if alone > question.slo:
            raise Infeasible(
                f"one instance alone takes {alone * 1000:.4g} ms (service and overhead), longer than the objective of "
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
        needed = self._question.share * self._question.rate / self._question.capacity
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

    def forecast(self, pods: int, requests: int) -> forecasts.Forecast:
        if (pods, requests) not in self._known:
            self._progress(pods, requests)
            self._known[pods, requests] = forecasts.forecast(self._question, pods, requests)
        return self._known[pods, requests]

    def best_known(self, pods: int) -> forecasts.Forecast | None:
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
        return math.ceil(self._question.rate * self._question.predictor.service.seconds(1, 0.0) / IDLE)
