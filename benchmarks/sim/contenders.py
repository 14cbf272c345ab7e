"""Who takes part, by name: our policies in the production scheduler, and the baselines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable

from benchmarks.sim import baselines, cells
from carpool.scheduling import adaptive, limits, policy, scheduler, window
from carpool_sidecar.planning import engine

Make = Callable[[cells.Cell], engine.MakeScheduler]
MakePolicy = Callable[[limits.Limits], policy.Policy]

IDLE_1, IDLE_2 = "send when idle, 1 in flight", "send when idle, 2 in flight"
KSERVE = {5: "KServe 5 ms", 20: "KServe 20 ms"}
KSERVE_DOCUMENTED = "KServe 500 ms"
WINDOW = {5: "window 5 ms", 20: "window 20 ms"}
ADAPTIVE = "adaptive"

# What others would have without a deadline to tell them: the values of the reference.
BENTOML_LATENCY, CLIPPER_OBJECTIVE = 1.0, 0.1
# The default of `maxLatency` where nobody set one, which bounds the voluntary wait of `adaptive`.
ADAPTIVE_MAX_LATENCY = 0.5
MOST_IN_FLIGHT = 8
# The grain of the event loop's timers that the sidecar allows for; here they are exact.
TICK = 0.001

_FIXED = re.compile(r"fixed (\d+) ms, (\d+) in flight")


def production(
    make_policy: MakePolicy,
    size: int,
    max_latency: float,
    max_in_flight: int = 1,
    learns_in_flight: bool = False,
    kind: type[scheduler.Scheduler] = scheduler.Scheduler,
) -> engine.MakeScheduler:
    """The scheduler that ships."""

    def make(clock: engine.Clock) -> engine.Scheduler:
        ids = itertools.count()
        bounds = limits.Limits(
            max_batch_size=size, max_latency=max_latency, max_in_flight=max_in_flight, learns_in_flight=learns_in_flight
        )
        return kind(bounds, make_policy(bounds), clock, lambda: str(next(ids)))

    return make


def fixed_name(window: int, in_flight: int) -> str:
    """A setting of the window policy, as a name."""
    return f"fixed {window} ms, {in_flight} in flight"


def fixed_settings(windows: Iterable[int], workers: int) -> list[str]:
    """Every fixed setting that hindsight may choose from: windows in milliseconds, with any number in flight."""
    slots = sorted({1, 2, workers, workers + 1})
    return [fixed_name(window, in_flight) for window in windows for in_flight in slots]


def is_fixed(name: str) -> bool:
    """Whether a contender is one of those."""
    return _FIXED.fullmatch(name) is not None


def make_scheduler(name: str, cell: cells.Cell) -> engine.MakeScheduler:
    """A contender's scheduler, set up for a cell."""
    size = cell.system.size
    if match := _FIXED.fullmatch(name):
        return production(window.Window, size, int(match[1]) / 1000, int(match[2]))
    make = _kserve(500) if name == KSERVE_DOCUMENTED else BY_NAME[name]
    return make(cell)


def _window(milliseconds: int) -> Make:
    def make_policy(bounds: limits.Limits) -> policy.Policy:
        return window.Window(bounds, TICK)

    return lambda cell: production(make_policy, cell.system.size, milliseconds / 1000, MOST_IN_FLIGHT, True)


def _kserve(milliseconds: int) -> Make:
    return lambda cell: lambda clock: baselines.KServe(clock, cell.system.size, milliseconds / 1000)


def _eager(milliseconds: int) -> Make:
    return lambda cell: lambda clock: baselines.EagerWindow(clock, cell.system.size, milliseconds / 1000)


def _idle(in_flight: int) -> Make:
    return lambda cell: production(window.Window, cell.system.size, 0.0, in_flight)


def _adaptive(cell: cells.Cell) -> engine.MakeScheduler:
    def make_policy(bounds: limits.Limits) -> policy.Policy:
        made = adaptive.Adaptive(bounds, tick=TICK)
        made.predictor.hint_overhead(cell.system.overhead / 1000)  # which the sidecar measures when it starts
        return made

    return production(make_policy, cell.system.size, ADAPTIVE_MAX_LATENCY, MOST_IN_FLIGHT, True)


# What takes part everywhere.
BASELINES: dict[str, Make] = {
    KSERVE[5]: _kserve(5),
    KSERVE[20]: _kserve(20),
    "eager window 5 ms": _eager(5),
    "eager window 20 ms": _eager(20),
    IDLE_1: _idle(1),
    IDLE_2: _idle(2),
    "BentoML": lambda cell: lambda clock: baselines.BentoML(clock, cell.system.size, cell.timeout or BENTOML_LATENCY),
    "Clipper": lambda cell: lambda clock: baselines.Clipper(clock, cell.system.size, cell.timeout or CLIPPER_OBJECTIVE),
}
OURS: dict[str, Make] = {WINDOW[5]: _window(5), WINDOW[20]: _window(20), ADAPTIVE: _adaptive}
BY_NAME = BASELINES | OURS
# What takes part in the scene of KServe's docs; its batcher with the latency that is documented there.
SCENE = [KSERVE_DOCUMENTED, IDLE_1, *OURS]
