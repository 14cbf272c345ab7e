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

from carpool.scheduling import messages, own_time
from carpool_sidecar.planning import service_times, traffic


class Scheduler(Protocol):
    """The part of `carpool.scheduling.scheduler.Scheduler` that a simulation needs."""

    def submit(self, request: messages.Request) -> Sequence[messages.Effect]:
        """A request arrived."""
        ...

    def submit_all(self, requests: Sequence[messages.Request]) -> Sequence[messages.Effect]:
        """Requests arrived at one moment."""
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

# A scheduler is told what batching takes after so many batches, as the driver does.
_TOLD_OF = 32


class EndlessPolling(Exception):
    """A scheduler asks again and again to be polled at a time that has come already."""


def simulate(
    make_scheduler: MakeScheduler,
    predictor: service_times.Predictor,
    workload: traffic.Workload,
    pods: int = 1,
    make_balancer: MakeBalancer = traffic.LeastLoaded,
    seed: int = 1,
    own: own_time.OwnTime = own_time.NO_TIME,
) -> Result:
    """Run a workload against so many equal pods until all of its requests are answered or refused.

    `own` is what each pod's sidecar takes itself, on its one core. Raises `EndlessPolling` for a scheduler that stops
    the clock.
    """
    run = _Run(workload, make_balancer(pods, seed))
    for index in range(pods):
        simulated = predictor.simulated(f"device {seed} {index}")
        pod = _BusyPod(run, simulated, own) if any(own) else _Pod(run, simulated)
        pod.scheduler = make_scheduler(pod.clock)
        run.pods.append(pod)
    run.play()
    return Result(run.outcomes, run.batches, pods * predictor.workers, workload.end, run.round_trips)


class _Run:
    """The events to come, the callers, and the record of what happened."""

    # Mutable state: the time now; _events, a heap of (time, sequence, action, argument); outcomes and batches so far.
    def __init__(self, workload: traffic.Workload, balancer: traffic.Balancer) -> None:
        self.now = 0.0
        self.pods: list[_Pod] = []
        self.outcomes: list[Outcome] = []
        self.batches: list[service_times.ServedBatch] = []
        self.round_trips: list[RoundTrip] = []
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
        rows, timeout, size, key, priority = kind
        pod = self._balancer.pick()
        outcome = Outcome(self.now, math.inf if timeout is None else self.now + timeout, pod, rows, priority)
        self.outcomes.append(outcome)
        self.pods[pod].submit(messages.Request(key, rows, size, kind, outcome, timeout, priority=priority))
        following = self._workload.after_arrival()
        if following is not None:
            self.at(following, self._arrive)


class _Pod:
    """Carries out what one scheduler wants, as the driver does; that takes no time."""

    scheduler: Scheduler

    def __init__(self, run: _Run, predictor: service_times.SimulatedPredictor) -> None:
        self._run = run
        self._predictor = predictor
        self._next_poll = math.inf  # the earliest planned poll
        self._polls_at_once = 0

    def clock(self) -> float:
        """The time that the scheduler reads."""
        return self._run.now

    def submit(self, request: messages.Request) -> None:
        """A request came."""
        self._carry_out(self.scheduler.submit(request))

    def _done(self, batch: messages.Batch) -> None:
        self._run.round_trips.append(RoundTrip(batch.dispatched, batch.rows, self.clock() - batch.dispatched))
        # What the predictions are does not matter, only how many.
        self._carry_out(self.scheduler.done(batch, range(batch.rows)), batch.rows)

    def _poll(self, time: float) -> None:
        if time == self._next_poll:  # else an earlier one has been planned since, and has done the work
            self._next_poll = math.inf
            self._carry_out(self.scheduler.poll())

    def _carry_out(self, effects: Sequence[messages.Effect], rows: int = 0) -> None:
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                self._dispatch(effect.batch)
            elif isinstance(effect, messages.Answer):
                effect.request.tag.batch_rows = rows
                self._finish(effect.request.tag)
            elif isinstance(effect, messages.Refuse):
                effect.request.tag.refused = effect.error.reason
                self._finish(effect.request.tag)
            # Nothing is abandoned: no caller here leaves.
        self._plan_poll(bool(effects))

    def _dispatch(self, batch: messages.Batch) -> None:
        now = self.clock()
        served = self._predictor.serve(batch.rows, now)
        self._run.batches.append(served)
        for part in batch.parts:
            if not part.start:
                part.request.tag.left = now
        self._run.at(served.returned, self._done, batch)

    def _finish(self, outcome: Outcome) -> None:
        self._run.finish(outcome)

    def _plan_poll(self, progress: bool) -> None:
        deadline = self.scheduler.next_deadline()
        if deadline is None or deadline >= self._next_poll:
            return
        now = self.clock()
        late = deadline <= now
        self._polls_at_once = self._polls_at_once + 1 if late and not progress else 0
        if self._polls_at_once > _POLLS_AT_ONCE:
            raise EndlessPolling(f"at {now:.6f} s the scheduler asks to be polled at {deadline:.6f} s, again")
        self._next_poll = max(deadline, now)
        self._run.at(self._next_poll, self._poll, self._next_poll)


class _BusyPod(_Pod):
    """A pod whose sidecar takes time itself: one core, which does in turns what has come until the turn begins.

    As in the event loop: requests that a turn reads go to the scheduler together at its end, or before an answer of the
    predictor's that comes after them; batches leave before answers are written. Half of the time of a batch and of a
    request is on the way in, half on the way out. A scheduler that learns what batching takes is told, as the driver
    does; those of others do not.
    """

    # Mutable state: what has come since the present turn began; the time on the core, which runs ahead of the others'
    # within a turn; the requests that this turn has read; batches and requests since the scheduler was told of them.
    def __init__(self, run: _Run, predictor: service_times.SimulatedPredictor, own: own_time.OwnTime) -> None:
        super().__init__(run, predictor)
        self._own = own
        self._come: list[tuple[Callable[[Any], None], Any]] = []
        self._now = 0.0
        self._is_busy = False
        self._read: list[messages.Request] = []
        self._batches = self._requests = 0

    def clock(self) -> float:
        """The time on the core."""
        return self._now

    def submit(self, request: messages.Request) -> None:
        """A request came, and is read when the core gets to it."""
        self._wake(self._take, request)

    def _done(self, batch: messages.Batch) -> None:
        self._wake(self._answered, batch)

    def _poll(self, time: float) -> None:
        if time == self._next_poll:
            self._wake(super()._poll, time)

    def _wake(self, action: Callable[[Any], None], argument: Any) -> None:
        self._come.append((action, argument))
        if not self._is_busy:
            self._is_busy = True
            self._run.at(self._run.now, self._turn)  # after all that comes at this moment

    def _turn(self, _: None) -> None:
        come, self._come = self._come, []
        self._now = self._run.now
        self._is_busy = bool(come)
        for action, argument in come:
            action(argument)
        self._flush()
        if come:
            self._run.at(self._now, self._turn)

    def _take(self, request: messages.Request) -> None:
        request.tag.read = self._now
        self._now += self._own.request / 2
        self._read.append(request)

    def _flush(self) -> None:
        if self._read:
            read, self._read = self._read, []
            self._carry_out(self.scheduler.submit_all(read))

    def _answered(self, batch: messages.Batch) -> None:
        self._now += self._own.batch / 2
        self._flush()
        super()._done(batch)
        self._batches += 1
        self._requests += len(batch.parts)
        if self._batches == _TOLD_OF:
            self._tell()

    def _tell(self) -> None:
        learned = getattr(self.scheduler, "own_time", None)
        if learned is not None:
            taken = self._own.batch * self._batches + self._own.request * self._requests
            learned.observe(taken, self._batches, self._requests)
        self._batches = self._requests = 0

    def _dispatch(self, batch: messages.Batch) -> None:
        self._now += self._own.batch / 2
        super()._dispatch(batch)

    def _finish(self, outcome: Outcome) -> None:
        self._now += self._own.request / 2
        self._run.at(self._now, self._run.finish, outcome)


class Outcome:
    """One request. `refused` is the label of the error it got, None if it was answered.

    `finished` is when it was answered or refused, infinity as long as neither has happened; `left` is when its first
    rows went to the predictor, infinity if they never did; `batch_rows` is the size of the batch that completed it.
    `read` is when the sidecar took notice of it: a busy core does so later than it arrived. `rows` and `priority` are
    its own.
    """

    __slots__ = (
        "arrived", "batch_rows", "deadline", "finished", "left", "pod", "priority", "read", "refused", "rows"
    )  # fmt: skip

    def __init__(self, arrived: float, deadline: float, pod: int, rows: int = 1, priority: int = 0) -> None:
        self.arrived = self.read = arrived
        self.deadline = deadline
        self.pod = pod
        self.rows = rows
        self.priority = priority
        self.finished = self.left = math.inf
        self.refused: str | None = None
        self.batch_rows = 0


class RoundTrip(NamedTuple):
    """A batch as its scheduler sees it: when it left, its instances, and after how many seconds it was back."""

    left: float
    rows: int
    took: float


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
    round_trips: Sequence[RoundTrip] = ()

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
