"""Runs contenders on cells, on all cores, and keeps the figures."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.sim import cells, contenders
from benchmarks.sim.cells import Cell, Kind, Shape, System
from carpool_sidecar.planning import engine


class Task(NamedTuple):
    """One run: a contender on a cell, for about so many requests."""

    cell: Cell
    contender: str
    requests: int


NEAR_CAPACITY, SLOW_QUEUES = 0.9, 4
# Throughput is counted in whole batches: short runs would judge by the last of them.
SATURATED_REQUESTS = 30_000
# How many batches a predictor works on at once shows only now and then, so it is given time: so many requests for each
# worker, and the first half of the run.
PARALLEL_REQUESTS = 12_000
WARM_UP, PARALLEL_WARM_UP = 0.2, 0.5

Results = dict[tuple[Cell, str], engine.Summary]


class Plan(NamedTuple):
    """Which cells, and how long a run is."""

    requests: int
    systems: Sequence[System]
    irregular: Sequence[System]
    poisson: Sequence[float]
    bursts: Sequence[float]
    callers: Sequence[int]
    overloads: Sequence[float]
    deadlines: Sequence[float]
    window_loads: Sequence[float]
    hindsight_loads: Sequence[float]
    hindsight_callers: Sequence[int]
    fixed_windows: Sequence[int]  # milliseconds


FULL = Plan(
    requests=12_000,
    systems=cells.SYSTEMS,
    irregular=cells.IRREGULAR,
    poisson=cells.POISSON_LOADS,
    bursts=cells.BURST_LOADS,
    callers=cells.CALLERS,
    overloads=cells.OVERLOADS,
    deadlines=cells.DEADLINES,
    window_loads=(0.3, 0.6, 0.9, 0.95),
    hindsight_loads=(0.1, 0.3, 0.6, 0.9),
    hindsight_callers=(4, 16, 64, 128),
    fixed_windows=(0, 1, 2, 5, 10, 20, 50),
)
QUICK = FULL._replace(requests=3_000, fixed_windows=(2,))
# What the tests run: every kind of cell, few of each.
REDUCED = Plan(
    requests=3_000,
    systems=(System(10, 0.5, 32, 0), System(10, 0.5, 32, 4), System(3, 1, 16, 0)),
    irregular=cells.IRREGULAR[5:],
    poisson=(0.1, 0.6, 0.9),
    bursts=(0.3,),
    callers=(1, 8, 64),
    overloads=(1.3, 2.0),
    deadlines=(4,),
    window_loads=(0.3, 0.95),
    hindsight_loads=(0.9,),
    hindsight_callers=(16,),
    fixed_windows=(2,),
)


def tasks(plan: Plan) -> list[Task]:
    """Every run of a plan."""
    return [*window_tasks(plan), *adaptive_tasks(plan), *hindsight_tasks(plan), *picture_tasks(plan)]


def window_tasks(plan: Plan) -> list[Task]:
    """What the acceptance of `window` compares."""
    mine, theirs = contenders.WINDOW, contenders.KSERVE
    stable = [Cell(Kind.WINDOW, system, load) for system in plan.systems for load in plan.window_loads]
    names = [name for both in (mine, theirs) for name in both.values()]
    return [
        *_runs(plan, stable, mine.values()),
        *_runs(plan, [*open_cells(plan), *closed_cells(plan)], names),
    ]


def adaptive_tasks(plan: Plan) -> list[Task]:
    """What most of the acceptance of `adaptive` compares."""
    idle = [contenders.ADAPTIVE, contenders.IDLE_1, contenders.IDLE_2]
    everyone = [contenders.ADAPTIVE, *contenders.BASELINES]
    return [
        *_runs(plan, open_cells(plan), idle),
        *_runs(plan, closed_cells(plan), everyone),
        *_runs(plan, overload_cells(plan), [contenders.ADAPTIVE]),
        *_runs(plan._replace(requests=SATURATED_REQUESTS), saturated_cells(plan), [contenders.ADAPTIVE]),
    ]


def hindsight_tasks(plan: Plan) -> list[Task]:
    """All fixed settings, and the one that has to find out."""
    return [
        task
        for cell in hindsight_cells(plan)
        for task in _runs(
            plan, [cell], [contenders.ADAPTIVE, *contenders.fixed_settings(plan.fixed_windows, cell.system.workers)]
        )
    ]


def picture_tasks(plan: Plan) -> list[Task]:
    """What nobody is held to, but everybody wants to see beside the rest."""
    everyone = list(contenders.BY_NAME)
    return _runs(plan, [*open_cells(plan), *closed_cells(plan), *overload_cells(plan)], everyone)


def open_cells(plan: Plan) -> list[Cell]:
    """Callers that do not wait for each other."""
    return [
        Cell(kind, system, load)
        for system in plan.systems
        for kind, loads in ((Kind.POISSON, plan.poisson), (Kind.BURSTS, plan.bursts))
        for load in loads
    ]


def closed_cells(plan: Plan) -> list[Cell]:
    """Few to many callers that do."""
    return [Cell(Kind.CLOSED, system, callers) for system in plan.systems for callers in plan.callers]


def saturated_cells(plan: Plan) -> list[Cell]:
    """More callers than can be served at once, for each model once."""
    models = dict.fromkeys(cells.model_of(system) for system in plan.systems)
    return [cell for model in models for cell in cells.saturated(System(*model))]


def overload_cells(plan: Plan) -> list[Cell]:
    """Deadlines, and loads up to twice the capacity."""
    return [
        Cell(Kind.OVERLOAD, system, load, deadline)
        for system in plan.systems
        for deadline in plan.deadlines
        for load in plan.overloads
    ]


def hindsight_cells(plan: Plan) -> list[Cell]:
    """Loads on predictors that no straight line describes; where it drifts, what it can bear while slow."""
    chosen = []
    for system in plan.irregular:
        slowest = 3 if system.shape is Shape.DRIFTS else 1
        chosen += [Cell(Kind.POISSON, system, load / slowest) for load in plan.hindsight_loads]
        chosen += [Cell(Kind.CLOSED, system, callers) for callers in plan.hindsight_callers]
    return chosen


def run_all(
    wanted: Iterable[Task], processes: int | None = None, advance: Callable[[int], None] = lambda requests: None
) -> Results:
    """Run every task once, in `processes` (default: one per core; 1: in this one); `advance` hears of progress."""
    unique = list(dict.fromkeys(wanted))
    count = processes or os.cpu_count() or 1
    found: Results = {}

    def keep(done: Iterable[tuple[Task, engine.Summary]]) -> None:
        for task, summary in done:
            found[task.cell, task.contender] = summary
            advance(1)

    if count == 1:
        keep(map(run, unique))
    else:
        with multiprocessing.get_context("spawn").Pool(count) as pool:
            keep(pool.imap_unordered(run, unique, chunksize=4))
    return {(task.cell, task.contender): found[task.cell, task.contender] for task in unique}


def run(task: Task) -> tuple[Task, engine.Summary]:
    """One simulation. The beginning is warm-up: what learns has learned by then."""
    system = task.cell.system
    seconds = task.cell.seconds(task.requests)
    result = engine.simulate(
        contenders.make_scheduler(task.contender, task.cell),
        system.predictor(seconds),
        task.cell.workload(seconds),
        seed=cells.SEED,
    )
    return task, result.summary(PARALLEL_WARM_UP if system.workers > 1 else WARM_UP)


def write_json(path: Path, found: Results, **more: Any) -> None:
    """All figures, in seconds and per second; null where nothing was answered."""
    rows = [
        {
            "kind": cell.kind.value,
            "system": str(cell.system),
            "x": cell.x,
            "deadline": cell.deadline,
            "contender": contender,
            **{name: value if math.isfinite(value) else None for name, value in summary._asdict().items()},
        }
        for (cell, contender), summary in found.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**more, "runs": rows}, indent=1) + "\n")


def _runs(plan: Plan, chosen: Iterable[Cell], names: Iterable[str]) -> list[Task]:
    everyone = list(names)
    return [Task(cell, name, _requests(plan, cell)) for cell in chosen for name in everyone]


def _requests(plan: Plan, cell: Cell) -> int:
    """Near capacity queues change slowly, and parallelism is learned slowly: such runs have to be longer."""
    if cell.system.workers > 1:
        return max(plan.requests, PARALLEL_REQUESTS * cell.system.workers)
    is_near = cell.kind is Kind.POISSON and cell.x >= NEAR_CAPACITY
    return plan.requests * (SLOW_QUEUES if is_near else 1)
