"""Callers whose requests the predictor rejects, beside good ones: who gets what, and what it costs the predictor.

The production scheduler under a virtual clock. A call that carries any bad request takes as long as a good one and
fails; so does a bad request that travels alone.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from carpool import errors
from carpool.scheduling import adaptive, limits, messages, policy, scheduler, window


class Rejected(errors.UpstreamError):
    """The predictor says that one of its batch is bad, not which."""

    reason = "predictor_status"
    remedy = errors.Remedy.HALVES


FIXED, PER_ROW, SIZE = 0.010, 0.0001, 32
GOOD, BAD = "good", "bad"


@dataclass
class Ask:
    """One request: whose it is, and what a server can see of it."""

    kind: str
    content: object
    connection: object
    shape: object
    loop: Callable[[], Ask] | None = None  # a caller that asks again once answered


@dataclass
class Scene:
    """Who asks. `bad_share` is the share of bad requests among all that arrive, or of bad callers among all."""

    bad_share: float
    is_open: bool = False
    good_callers: int = 32
    load: float = 0.7  # of good requests, as a share of what full batches can carry, if it `is_open`
    same_content: bool = True  # bad requests are all alike
    own_connection: bool = True  # bad callers have connections of their own, else all share those of an ingress
    own_shape: bool = True  # bad requests are told by their form
    policy: str = "adaptive"
    seconds: float = 8.0
    seed: int = 1


class Figures(NamedTuple):
    """Of good and bad requests: the share of each outcome. `calls` at the predictor, `good_rate` answers a second."""

    good: dict[str, float]
    bad: dict[str, float]
    bad_count: int
    calls: int
    good_count: int
    good_p50: float
    good_p99: float

    @property
    def calls_per_good(self) -> float:
        return self.calls / max(1, self.good_count)


TRAITS = {
    "content": lambda request: request.tag.content,
    "connection": lambda request: request.tag.connection,
    "shape": lambda request: request.tag.shape,
}


class Run:
    """A calendar of events around one scheduler."""

    def __init__(self, scene: Scene) -> None:
        self.now = 0.0
        self.scene = scene
        self.random = random.Random(f"culprits {scene.seed}")
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.sequence = itertools.count()
        is_window = scene.policy == "window"
        bounds = limits.Limits(
            max_batch_size=SIZE,
            max_latency=0.005 if is_window else 0.5,
            max_in_flight=1 if is_window else 8,
            learns_in_flight=not is_window,
        )
        policy: policy.Policy = window.Window(bounds) if is_window else adaptive.Adaptive(bounds)
        ids = itertools.count()
        self.core = scheduler.Scheduler(bounds, policy, lambda: self.now, lambda: str(next(ids)), TRAITS)
        self.free_at = 0.0
        self.calls = 0
        self.alarm = math.inf
        self.outcomes: dict[str, Counter[str]] = {GOOD: Counter(), BAD: Counter()}
        self.waits: list[float] = []
        self.numbers = itertools.count()

    def at(self, time: float, action: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self.events, (time, next(self.sequence), action, argument))

    def play(self) -> Figures:
        self.begin()
        while self.events:
            self.now, _, action, argument = heapq.heappop(self.events)
            action(argument)
        good, bad = self.outcomes[GOOD], self.outcomes[BAD]
        waits = sorted(self.waits)
        return Figures(
            shares(good), shares(bad), bad.total(), self.calls, good["answered"],
            waits[len(waits) // 2], waits[len(waits) * 99 // 100],
        )  # fmt: skip

    # --- callers -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        scene = self.scene
        if scene.is_open:
            rate = scene.load * SIZE / (FIXED + PER_ROW * SIZE)
            self.at(self.random.expovariate(rate), self.arrive_open, (GOOD, rate))
            if scene.bad_share:
                bad_rate = rate * scene.bad_share / (1 - scene.bad_share)
                self.at(self.random.expovariate(bad_rate), self.arrive_open, (BAD, bad_rate))
            return
        bad_callers = round(scene.good_callers * scene.bad_share / (1 - scene.bad_share))
        if scene.bad_share:
            bad_callers = max(1, bad_callers)
        for number in range(scene.good_callers):
            self.at(self.random.uniform(0, 0.005), self.ask_again, (GOOD, ("good", number)))
        for number in range(bad_callers):
            self.at(self.random.uniform(0, 0.005), self.ask_again, (BAD, ("bad", number)))

    def make(self, kind: str, connection: object) -> Ask:
        scene, number = self.scene, next(self.numbers)
        if not scene.own_connection:
            connection = self.random.randrange(8)
        is_same = kind == BAD and scene.same_content
        return Ask(kind, "bad" if is_same else number, connection, kind if scene.own_shape else "any")

    def arrive_open(self, argument: tuple[str, float]) -> None:
        kind, rate = argument
        self.submit(self.make(kind, ("good", self.random.randrange(32)) if kind == GOOD else "bad"))
        following = self.now + self.random.expovariate(rate)
        if following < self.scene.seconds:
            self.at(following, self.arrive_open, argument)

    def ask_again(self, argument: tuple[str, object]) -> None:
        if self.now < self.scene.seconds:
            ask = self.make(*argument)
            ask.loop = lambda: argument  # type: ignore[assignment,return-value]
            self.submit(ask)

    def submit(self, ask: Ask) -> None:
        self.carry_out(self.core.submit(messages.Request("key", 1, 100, ask, ask)))

    def finish(self, request: messages.Request, outcome: str) -> None:
        ask: Ask = request.tag
        self.outcomes[ask.kind][outcome] += 1
        if ask.kind == GOOD and outcome == "answered":
            self.waits.append(self.now - request.arrived)
        if ask.loop is not None:
            pause = 0.0002 + self.random.expovariate(1 / 0.0003)
            self.at(self.now + pause + (0.0 if outcome in ("answered", "own") else 0.005), self.ask_again, ask.loop())

    # --- the sidecar and the predictor -------------------------------------------------------------------------

    def carry_out(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                batch = effect.batch
                self.calls += self.now < self.scene.seconds
                self.free_at = max(self.now, self.free_at) + FIXED + PER_ROW * batch.rows
                self.at(self.free_at, self.returned, batch)
            elif isinstance(effect, messages.Answer):
                self.finish(effect.request, "answered")
            elif isinstance(effect, messages.Refuse):
                is_own = isinstance(effect.error, Rejected)
                self.finish(effect.request, "own" if is_own else effect.error.reason)
        deadline = self.core.next_deadline()
        if deadline is not None and deadline < self.alarm:
            self.alarm = max(deadline, self.now)
            self.at(self.alarm, self.poll, self.alarm)

    def returned(self, batch: messages.Batch) -> None:
        if any(part.request.tag.kind == BAD for part in batch.parts):
            self.carry_out(self.core.failed(batch, Rejected()))
        else:
            self.carry_out(self.core.done(batch, range(batch.rows)))

    def poll(self, time: float) -> None:
        if time == self.alarm:
            self.alarm = math.inf
            self.carry_out(self.core.poll())


def shares(counted: Counter[str]) -> dict[str, float]:
    total = counted.total()
    return {outcome: count / total for outcome, count in counted.most_common()}


def run(scene: Scene) -> Figures:
    return Run(scene).play()
