"""A scheduler that asks its policy only when it must does what one does that asks at every event."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from carpool.scheduling import adaptive, messages, policy, scheduler, tuning, window
from carpool.scheduling import limits as core_limits
from carpool_sidecar import errors
from tests.scheduling.driven import DrivenScheduler, refused

EVENTS = 250
FAULTS = (
    refused(400, b"bad"),
    refused(503, b"busy"),
    errors.UpstreamClosed(),
    errors.UpstreamTimeout(),
)


class Asking(scheduler.Scheduler):
    """Takes nothing for settled: each request that comes makes it ask."""

    def submit(self, request: messages.Request) -> Sequence[messages.Effect]:
        self.asking = scheduler.ASK._replace(at=self.asking.at)
        return super().submit(request)


class Site(DrivenScheduler):
    """A driven with a predictor that takes its time, fails now and then, and works on one or two batches at once.

    Timers are as coarse as a busy loop's. `trace` is every effect with its time.
    """

    def __init__(self, world: World, policy: Callable[[core_limits.Limits, float], policy.Policy]) -> None:
        super().__init__(lambda limits: policy(limits, world.tick), **world.limits)
        self._world = world
        self._free = [self.now] * world.workers
        self._ends: dict[messages.Batch, float] = {}
        self.trace: list[tuple[object, ...]] = []

    def do(self, effects: Iterable[messages.Effect]) -> None:
        effects = sorted(effects, key=_abandoned_in_order)
        for effect in effects:
            match effect:
                case messages.Dispatch(batch) | messages.Abandon(batch):
                    about: object = (batch.id, batch.reason, self.members(batch), batch.rows)
                case messages.Answer(request, pieces):
                    about = (request.tag, [piece.batch_id for piece in pieces])
                case messages.Refuse(request, error):
                    about = (request.tag, type(error), str(error))
            self.trace.append((self.now, type(effect), about))
        super().do(effects)
        for batch in [batch for batch in self.out if batch not in self._ends]:
            worker = min(range(len(self._free)), key=self._free.__getitem__)
            began = max(self._free[worker], self.now + self._world.overhead / 2)
            self._free[worker] = began + self._world.work(batch)
            self._ends[batch] = self._free[worker] + self._world.overhead / 2

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            out = min(self.out, key=self._ends.__getitem__, default=None)
            answered = math.inf if out is None else self._ends[out]
            deadline = self.core.next_deadline()
            due = min(answered, math.inf if deadline is None else self._world.timer(deadline))
            if due > end:
                break
            self.now = max(self.now, due)
            if out is None or answered > due:
                self.do(self.core.poll())
            elif (fault := self._world.fault(out)) is not None:
                self.fail(fault, out)
            else:
                self.answer(out)
        self.now = end

    def hint(self, seconds: float) -> None:
        """The way to the predictor was measured."""
        if isinstance(self.policy, adaptive.Adaptive):
            self.policy.predictor.hint_overhead(seconds)
            self.do(self.core.reconsider())


def _abandoned_in_order(effect: messages.Effect) -> int:
    """The batches that one caller leaves behind are abandoned in no order of their own."""
    return int(effect.batch.id.removeprefix("batch-")) if isinstance(effect, messages.Abandon) else 0


class AskingSite(Site):
    scheduler = Asking


def fixed_window(limits: core_limits.Limits, tick: float) -> policy.Policy:
    return window.Window(limits)


class World:
    """What happens whoever schedules: the predictor's pace, its faults, and the callers."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self._seed = seed
        self.workers = chance.choice([1, 1, 2])
        self.overhead = chance.choice([0.0, 0.001, 0.004])
        self._fixed = chance.choice([0.001, 0.010, 0.040])
        self._slope = chance.choice([0.0, 0.0005, 0.002])
        self._noise = chance.choice([0.0, 0.05, 0.3])
        self._faults = chance.choice([0.0, 0.0, 0.1])
        self.limits: dict[str, Any] = {
            "max_batch_size": chance.choice([1, 4, 8, 32]),
            "max_latency": chance.choice([0.0, 0.005, 0.05]),
            "max_in_flight": chance.choice([1, 2, 8, 8]),
            "max_queue_instances": 40,
            "timeout": chance.choice([0.05, 0.2, 5.0]),
            "small_batch_threshold": chance.choice([0, 1]),
            "priority_ageing": 0.05,
            "allowed_sizes": chance.choice([(), (), (1, 2, 4)]),
        }
        self.pace = chance.choice([0.1, 0.3, 1.0, 3.0]) * self._fixed
        self.tick = chance.choice([0.0, 0.001, 0.005])
        self.chance = chance

    def _of(self, batch: messages.Batch) -> random.Random:
        return random.Random(hashlib.sha256(f"{self._seed} {batch.id}".encode()).digest())

    def work(self, batch: messages.Batch) -> float:
        return (self._fixed + self._slope * batch.rows) * self._of(batch).lognormvariate(0, self._noise)

    def fault(self, batch: messages.Batch) -> errors.CarpoolError | None:
        chance = self._of(batch)
        return chance.choice(FAULTS) if chance.random() < self._faults else None

    def timer(self, deadline: float) -> float:
        """When a timer for then goes off."""
        return math.ceil(deadline / self.tick) * self.tick if self.tick else deadline

    def events(self) -> Iterable[tuple[Any, ...]]:
        """What is done to a site: a method of it, and arguments."""
        chance, open_names = self.chance, []
        hint_at = chance.randrange(chance.choice([1, 20, EVENTS]))
        for number in range(EVENTS):
            if number == hint_at:
                yield "hint", self.overhead
            if chance.random() < 0.7:
                yield "pass_time", chance.choice([0.0, self.pace / 10, chance.expovariate(1 / self.pace)])
            if open_names and chance.random() < 0.05:
                yield "cancel", open_names.pop(chance.randrange(len(open_names)))
            name = f"r{number}"
            open_names.append(name)
            yield "submit", name, chance.choice([1, 1, 1, 2, 5]), chance.choice("xxxxy"), self.patience()
        yield "pass_time", 20.0

    def patience(self) -> float | None:
        return self.chance.choice([None, None, 0.02, 1.0])


@pytest.mark.parametrize("policy", [adaptive.Adaptive, fixed_window])
@given(seed=st.integers(0, 2**32))
@example(seed=1029)  # somebody came within the shortest wait before a batch was to leave
def test_the_same_effects_at_the_same_times_as_if_it_were_asked_at_every_arrival(policy, seed):
    world = World(seed)
    site, asking = Site(world, policy), AskingSite(world, policy)
    for event, *arguments in world.events():
        for each in (site, asking):
            getattr(each, event)(*arguments)
        assert site.trace == asking.trace, (event, arguments)
    assert site.core.idle
    assert set(site.answers) | set(site.refusals) | {name for name, r in site.requests.items() if not r.open}


def test_a_hint_of_the_way_to_the_predictor_is_heard_by_who_waits_for_its_answer():
    """Until then a second batch could not be timed; it would have waited for the first one to come back."""
    driven = DrivenScheduler(adaptive.Adaptive, max_batch_size=4, max_in_flight=8, learns_in_flight=True)
    for name in "abcde":
        driven.submit(name)
        driven.pass_time(0.010)
        driven.answer()
        driven.pass_time(0.5)
    driven.submit("first")
    driven.submit("second")
    assert driven.core.asking.at > driven.now + tuning.SHORTEST_PATIENCE
    driven.policy.predictor.hint_overhead(0.002)
    driven.do(driven.core.reconsider())
    assert driven.core.asking.at < driven.now + 0.010
    driven.pass_time(0.010)
    assert driven.reasons[-2:] == ["idle", "just_in_time"]


def test_one_that_comes_when_a_pause_is_over_and_the_timer_late_makes_all_of_them_leave():
    driven = DrivenScheduler(adaptive.Adaptive, max_batch_size=4, max_in_flight=1)
    driven.submit("refused")
    driven.submit("waits")
    driven.fail(refused(503, b"busy"))
    driven.now += tuning.BACKOFF_FIRST - 0.001
    driven.submit("comes early")
    assert len(driven.sent) == 1
    driven.now += 0.002
    driven.submit("comes late")
    assert driven.members(driven.sent[1]) == ["waits", "comes early", "comes late"]
