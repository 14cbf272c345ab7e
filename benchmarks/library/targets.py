"""What this project asks of itself beside its peers, and whether it was met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from benchmarks.library import cells
from benchmarks.library.comparison import Outcome
from carpool import compiled

IDLE_CPU = 0.0005  # seconds of CPU in IDLE_SECONDS that are the measuring's own
SHARE, GOODPUT = 0.99, 0.97


class Times(NamedTuple):
    """So many times the items/s of the best peer, by what is measured: the checkout's Python, or a wheel's modules."""

    pure: float
    compiled: float

    @property
    def here(self) -> float:
        """What this interpreter would have loaded."""
        return self.pure if compiled.running("carpool.scheduling.scheduler") == "python" else self.compiled


TIMES = {
    "zero-asyncio-64": Times(1.5, 2.0),
    "zero-asyncio-1000": Times(1.5, 2.0),
    "zero-threads-64": Times(1.2, 1.2),
}


class Verdict(NamedTuple):
    """A target, in words, what was measured, and whether that meets it."""

    target: str
    ours: str
    peer: str
    is_met: bool


def verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Those whose cells were measured, of us and, where a peer is compared with, of one."""
    found: list[Verdict | None] = [
        *(_times(outcomes, name, times.here) for name, times in TIMES.items()),
        *(_latency(outcomes, cell, figure) for cell in _open(outcomes) for figure in (cells.P50, cells.P99)),
        _share(outcomes, "load-asyncio-64"),
        _share(outcomes, "load-threads-64"),
        _goodput(outcomes),
        *_idle(outcomes),
    ]
    return [each for each in found if each is not None]


def best(outcomes: Iterable[Outcome], cell: str, figure: cells.Figure, *, ours: bool) -> tuple[Outcome, float] | None:
    """Who of us, or of the peers, is best in a figure of a cell, and the figure."""
    known = [
        (outcome, value)
        for outcome in outcomes
        if outcome.cell.name == cell and (outcome.system.is_ours if ours else outcome.system.is_peer)
        if (value := outcome.median(figure)) is not None
    ]
    if not known:
        return None
    return (max if figure.more_is_better else min)(known, key=lambda each: each[1])


def _pair(
    outcomes: Sequence[Outcome],
    cell: str,
    figure: cells.Figure,
    target: str,
    text: Callable[[float], str],
    is_met: Callable[[float, float], bool],
) -> Verdict | None:
    mine, theirs = best(outcomes, cell, figure, ours=True), best(outcomes, cell, figure, ours=False)
    if mine is None or theirs is None:
        return None
    names = [f"{text(value)} ({outcome.system.name})" for outcome, value in (mine, theirs)]
    return Verdict(target, names[0], names[1], is_met(mine[1], theirs[1]))


def _times(outcomes: Sequence[Outcome], cell: str, times: float) -> Verdict | None:
    _, by, callers = cell.split("-")
    whom = f"{int(callers):,} {'asyncio callers' if by == cells.TASKS else 'threads'}"
    target = f"zero cost, {whom}: {times:g} times the best peer's items/s"
    found = _pair(
        outcomes, cell, cells.RATE, target, lambda rate: f"{rate:,.0f}/s", lambda mine, theirs: mine >= times * theirs
    )
    if found is None:
        return None
    mine, theirs = (best(outcomes, cell, cells.RATE, ours=ours) for ours in (True, False))
    assert mine is not None
    assert theirs is not None
    return found._replace(ours=f"{mine[1] / theirs[1]:.2f} times: {found.ours}")


def _latency(outcomes: Sequence[Outcome], cell: cells.Cell, figure: cells.Figure) -> Verdict | None:
    target = f"{cell.title} load: {figure.name} at or below the best peer's"
    found = _pair(
        outcomes,
        cell.name,
        figure,
        target,
        lambda seconds: f"{seconds * 1000:.1f} ms",
        lambda mine, theirs: mine <= theirs,
    )
    mine, theirs = (best(outcomes, cell.name, figure, ours=ours) for ours in (True, False))
    if found is None or mine is None or theirs is None:
        return None
    return found._replace(ours=f"{mine[1] / theirs[1]:.2f} times: {found.ours}")


def _open(outcomes: Sequence[Outcome]) -> list[cells.Cell]:
    found = {outcome.cell.name: outcome.cell for outcome in outcomes if outcome.cell.group == cells.LOAD}
    return [cell for cell in found.values() if cells.P50 in cell.figures]


def _share(outcomes: Sequence[Outcome], cell: str) -> Verdict | None:
    mine, theirs = (best(outcomes, cell, cells.RATE, ours=ours) for ours in (True, False))
    if mine is None:
        return None
    texts = [
        f"{each[1] / cells.LIMIT:.1%} ({each[0].system.name})" if each is not None else "" for each in (mine, theirs)
    ]
    whom = "64 asyncio callers" if "asyncio" in cell else "64 threads"
    return Verdict(f"10 ms + 0.1 ms, {whom}: {SHARE:.0%} of the limit", *texts, mine[1] / cells.LIMIT >= SHARE)


def _goodput(outcomes: Sequence[Outcome]) -> Verdict | None:
    mine, theirs = (best(outcomes, "overload", cells.GOODPUT, ours=ours) for ours in (True, False))
    if mine is None:
        return None
    texts = [
        f"{each[1] / cells.LIMIT:.1%} ({each[0].system.name})" if each is not None else "" for each in (mine, theirs)
    ]
    target = f"twice the limit, objective of {cells.SLO * 1000:.0f} ms: goodput {GOODPUT:.0%} of capacity"
    return Verdict(target, *texts, mine[1] / cells.LIMIT >= GOODPUT)


def _idle(outcomes: Sequence[Outcome]) -> list[Verdict]:
    found = []
    for outcome in outcomes:
        figures = outcome.only
        if outcome.cell.group == cells.IDLE and outcome.system.is_ours and figures is not None:
            cpu, wakeups = figures["cpu_seconds"], figures["wakeups"]
            target = f"at rest, {outcome.system.name}: no CPU time, no wake-up, no thread before the first call"
            text = f"{cpu * 1000:.1f} ms, {wakeups} wake-ups, {figures['threads']} threads"
            is_met = cpu <= IDLE_CPU and wakeups <= 0 and not figures["threads"]
            found.append(Verdict(target, text, "", is_met))
    return found
