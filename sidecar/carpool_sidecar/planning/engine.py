"""A discrete-event simulation of pods: each a scheduler, the production one or any with its surface, and a predictor.

Time is virtual, so a minute of traffic takes a second or so; everything random comes from seeds, so a run can be
repeated exactly. The schedulers are driven as the asyncio driver drives them: effects are carried out in their order,
and `poll()` is called at `next_deadline()`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from carpool.scheduling import messages
from carpool_sidecar.planning import balancers, results, service_times, workloads


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
MakeBalancer = Callable[[int, int], balancers.Balancer]

# A scheduler that asks this often to be polled at once, while nothing else happens, will ask forever.
_POLLS_AT_ONCE = 1000


class Restless(Exception):
    """A scheduler asks to be polled at a time that has come already, again and again."""


def simulate(
    make_scheduler: MakeScheduler,
    predictor: service_times.Predictor,
    workload: workloads.Workload,
    pods: int = 1,
    make_balancer: MakeBalancer = balancers.Random,
    seed: int = 1,
) -> results.Result:
    """Run a workload against so many equal pods until all of its requests are answered or refused.

    Raises `Restless` for a scheduler that stops the clock.
    """
    run = _Run(workload, make_balancer(pods, seed))
    run.pods = [
        _Pod(run, make_scheduler(lambda: run.now), service_times.Device(predictor, f"device {seed} {index}"), index)
        for index in range(pods)
    ]
    run.play()
    return results.Result(run.outcomes, run.stays, pods * predictor.workers, workload.end)


class _Run:
    """The calendar of events, the callers, and the record."""

    # Mutable state: the time now; _events, a heap of (time, sequence, action, argument); the record so far.
    def __init__(self, workload: workloads.Workload, balancer: balancers.Balancer) -> None:
        self.now = 0.0
        self.pods: list[_Pod] = []
        self.outcomes: list[results.Outcome] = []
        self.stays: list[service_times.Stay] = []
        self._workload = workload
        self._balancer = balancer
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0

    def at(self, time: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Call `action(argument)` at `time`, after what was planned for that time before."""
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, action, argument))

    def play(self) -> None:
        for time in self._workload.first():
            self.at(time, self._arrive)
        events = self._events
        while events:
            self.now, _, action, argument = heapq.heappop(events)
            action(argument)

    def finish(self, outcome: results.Outcome) -> None:
        """A request was answered or refused; its caller may come back."""
        outcome.finished = self.now
        self._balancer.left(outcome.pod)
        back = self._workload.after_reply(self.now, outcome.refused is not None)
        if back is not None:
            self.at(back, self._arrive)

    def _arrive(self, _: None) -> None:
        rows, timeout = self._workload.ask
        pod = self._balancer.pick()
        outcome = results.Outcome(self.now, math.inf if timeout is None else self.now + timeout, pod)
        self.outcomes.append(outcome)
        self.pods[pod].submit(messages.Request("key", rows, tag=outcome, timeout=timeout))
        following = self._workload.after_arrival()
        if following is not None:
            self.at(following, self._arrive)


class _Pod:
    """Carries out what one scheduler wants, as the driver does."""

    def __init__(self, run: _Run, scheduler: Scheduler, device: service_times.Device, index: int) -> None:
        self._run = run
        self._scheduler = scheduler
        self._device = device
        self._alarm = math.inf  # the earliest planned poll
        self._polls_at_once = 0

    def submit(self, request: messages.Request) -> None:
        self._carry_out(self._scheduler.submit(request))

    def _done(self, batch: messages.Batch) -> None:
        # What the predictions are does not matter, only how many.
        self._carry_out(self._scheduler.done(batch, range(batch.rows)), batch.rows)

    def _poll(self, time: float) -> None:
        if time == self._alarm:  # else an earlier one has been planned since, and has done the work
            self._alarm = math.inf
            self._carry_out(self._scheduler.poll())

    def _carry_out(self, effects: Sequence[messages.Effect], rows: int = 0) -> None:
        run = self._run
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                stay = self._device.serve(effect.batch.rows, run.now)
                run.stays.append(stay)
                run.at(stay.returned, self._done, effect.batch)
            elif isinstance(effect, messages.Answer):
                effect.request.tag.batch_rows = rows
                run.finish(effect.request.tag)
            elif isinstance(effect, messages.Refuse):
                effect.request.tag.refused = effect.error.reason
                run.finish(effect.request.tag)
            # Nothing is abandoned: no caller here leaves.
        self._set_alarm(bool(effects))

    def _set_alarm(self, progress: bool) -> None:
        deadline = self._scheduler.next_deadline()
        if deadline is None or deadline >= self._alarm:
            return
        late = deadline <= self._run.now
        self._polls_at_once = self._polls_at_once + 1 if late and not progress else 0
        if self._polls_at_once > _POLLS_AT_ONCE:
            raise Restless(f"at {self._run.now:.6f} s the scheduler asks to be polled at {deadline:.6f} s, again")
        self._alarm = max(deadline, self._run.now)
        self._run.at(self._alarm, self._poll, self._alarm)
