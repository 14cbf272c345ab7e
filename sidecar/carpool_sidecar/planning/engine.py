"""A discrete-event simulation of pods, and the figures people judge it by.

Each pod is a scheduler (the production one or any with its methods) and a predictor. Time is virtual, so a minute of
traffic takes about a second. Everything random comes from seeds, so a run can be repeated exactly. The schedulers are
driven as in production: effects are carried out in their order, and `poll()` is called at `next_deadline()`. Times are
seconds, rates a second.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from carpool.scheduling import messages
from carpool_sidecar.planning import service_times, traffic


class Scheduler(Protocol):
    """The part of `carpool.scheduling.scheduler.Scheduler` that a simulation needs."""

    def submit(self, request: messages.Request) -> Sequence[messages.Effect]:
        """A request arrived."""
        ...

    def done(self, batch: messages.Batch, predictions: Sequence[Any]) -> Sequence[messages.Effect]:
        """A batch came back."""
        ...

    def poll(self) -> Sequence[messages.Effect]:
        """Time passed."""
        ...

    def next_deadline(self) -> float | None:
        """When to poll next."""
        ...


Clock = Callable[[], float]
MakeScheduler = Callable[[Clock], Scheduler]
MakeBalancer = Callable[[int, int], traffic.Balancer]

# A scheduler that asks so often to be polled at once, while nothing else happens, will ask forever.
_POLLS_AT_ONCE = 1000


class EndlessPolling(Exception):
    """A scheduler asks again and again to be polled at a time that has come already."""


def simulate(
    make_scheduler: MakeScheduler,
    predictor: service_times.Predictor,
    workload: traffic.Workload,
    pods: int = 1,
    make_balancer: MakeBalancer = traffic.LeastLoaded,
    seed: int = 1,
) -> Result:
    """Run a workload against so many equal pods until all of its requests are answered or refused.

    Raises `EndlessPolling` for a scheduler that stops the clock.
    """
    run = _Run(workload, make_balancer(pods, seed))
    for index in range(pods):
        simulated = service_times.SimulatedPredictor(predictor, f"device {seed} {index}")
        run.pods.append(_Pod(run, make_scheduler(lambda: run.now), simulated))
    run.play()
    return Result(run.outcomes, run.batches, pods * predictor.workers, workload.end)


class _Run:
    """The events to come, the callers, and the record of what happened."""

    # Mutable state: the time now; _events, a heap of (time, sequence, action, argument); outcomes and batches so far.
    def __init__(self, workload: traffic.Workload, balancer: traffic.Balancer) -> None:
        self.now = 0.0
        self.pods: list[_Pod] = []
        self.outcomes: list[Outcome] = []
        self.batches: list[service_times.ServedBatch] = []
        self._workload = workload
        self._balancer = balancer
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0

    def at(self, time: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Call `action(argument)` at `time`; actions of the same time run in the order of these calls."""
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, action, argument))

    def play(self) -> None:
        for time in self._workload.first():
            self.at(time, self._arrive)
        events = self._events
        while events:
            self.now, _, action, argument = heapq.heappop(events)
            action(argument)

    def finish(self, outcome: Outcome) -> None:
        """A request was answered or refused; its caller may come back."""
        outcome.finished = self.now
        self._balancer.left(outcome.pod)
        back = self._workload.after_reply(self.now, outcome.refused is not None)
        if back is not None:
            self.at(back, self._arrive)

    def _arrive(self, _: None) -> None:
        kind = self._workload.request
        rows, timeout, size, key = kind
        pod = self._balancer.pick()
        outcome = Outcome(self.now, math.inf if timeout is None else self.now + timeout, pod)
        self.outcomes.append(outcome)
        self.pods[pod].submit(messages.Request(key, rows, size, kind, outcome, timeout))
        following = self._workload.after_arrival()
        if following is not None:
            self.at(following, self._arrive)


class _Pod:
    """Carries out what one scheduler wants, as the driver does."""

    def __init__(self, run: _Run, scheduler: Scheduler, predictor: service_times.SimulatedPredictor) -> None:
        self._run = run
        self._scheduler = scheduler
        self._predictor = predictor
        self._next_poll = math.inf  # the earliest planned poll
        self._polls_at_once = 0

    def submit(self, request: messages.Request) -> None:
        self._carry_out(self._scheduler.submit(request))

    def _done(self, batch: messages.Batch) -> None:
        # What the predictions are does not matter, only how many.
        self._carry_out(self._scheduler.done(batch, range(batch.rows)), batch.rows)

    def _poll(self, time: float) -> None:
        if time == self._next_poll:  # else an earlier one has been planned since, and has done the work
            self._next_poll = math.inf
            self._carry_out(self._scheduler.poll())

    def _carry_out(self, effects: Sequence[messages.Effect], rows: int = 0) -> None:
        run = self._run
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                served = self._predictor.serve(effect.batch.rows, run.now)
                run.batches.append(served)
                for part in effect.batch.parts:
                    if not part.start:
                        part.request.tag.left = run.now
                run.at(served.returned, self._done, effect.batch)
            elif isinstance(effect, messages.Answer):
                effect.request.tag.batch_rows = rows
                run.finish(effect.request.tag)
            elif isinstance(effect, messages.Refuse):
                effect.request.tag.refused = effect.error.reason
                run.finish(effect.request.tag)
            # Nothing is abandoned: no caller here leaves.
        self._plan_poll(bool(effects))

    def _plan_poll(self, progress: bool) -> None:
        deadline = self._scheduler.next_deadline()
        if deadline is None or deadline >= self._next_poll:
            return
        late = deadline <= self._run.now
        self._polls_at_once = self._polls_at_once + 1 if late and not progress else 0
        if self._polls_at_once > _POLLS_AT_ONCE:
            raise EndlessPolling(f"at {self._run.now:.6f} s the scheduler asks to be polled at {deadline:.6f} s, again")
        self._next_poll = max(deadline, self._run.now)
        self._run.at(self._next_poll, self._poll, self._next_poll)


class Outcome:
    """One request. `refused` is the label of the error it got, None if it was answered.

    `finished` is when it was answered or refused, infinity as long as neither has happened; `left` is when its first
    rows went to the predictor, infinity if they never did; `batch_rows` is the size of the batch that completed it.
    """

    __slots__ = ("arrived", "batch_rows", "deadline", "finished", "left", "pod", "refused")

    def __init__(self, arrived: float, deadline: float, pod: int) -> None:
        self.arrived = arrived
        self.deadline = deadline
        self.pod = pod
        self.finished = self.left = math.inf
        self.refused: str | None = None
        self.batch_rows = 0


class Summary(NamedTuple):
    """Latencies are of answered requests that arrived after warm-up; rates and shares of the time after it.

    `offered` counts arrivals and `goodput` answers within their deadline, `refused` is a share of all requests,
    `mean_batch` is in instances, `utilisation` the share of time that workers were busy.
    """

    requests: int
    offered: float
    mean: float
    p50: float
    p99: float
    throughput: float
    goodput: float
    refused: float
    mean_batch: float
    utilisation: float


class Result(NamedTuple):
    """Everything that happened until `end`, the last arrival, and to those requests afterwards."""

    outcomes: Sequence[Outcome]
    batches: Sequence[service_times.ServedBatch]
    workers: int  # of all pods
    end: float

    def summary(self, warm_up: float = 0.1) -> Summary:
        """The figures, without the first `warm_up` share of the time."""
        begin = warm_up * self.end
        span = self.end - begin
        counted = [outcome for outcome in self.outcomes if outcome.arrived >= begin]
        answered = [outcome for outcome in self.outcomes if outcome.refused is None]
        waits = sorted(outcome.finished - outcome.arrived for outcome in answered if outcome.arrived >= begin)
        back = [outcome for outcome in answered if begin <= outcome.finished < self.end]
        sizes = [batch.rows for batch in self.batches if begin <= batch.sent < self.end]
        busy = sum(max(0.0, min(batch.ended, self.end) - max(batch.started, begin)) for batch in self.batches)
        return Summary(
            requests=len(counted),
            offered=len(counted) / span,
            mean=sum(waits) / len(waits) if waits else math.inf,
            p50=quantile(waits, 0.50),
            p99=quantile(waits, 0.99),
            throughput=len(back) / span,
            goodput=sum(outcome.finished <= outcome.deadline for outcome in back) / span,
            refused=1 - len(waits) / len(counted) if counted else 0.0,
            mean_batch=sum(sizes) / len(sizes) if sizes else 0.0,
            utilisation=busy / (span * self.workers),
        )


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank); infinity if there are none."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else math.inf
