"""The figures of a run as tables: for the terminal, and for the README beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import rich.table
from rich.markup import escape

from benchmarks.sim import acceptance, contenders
from benchmarks.sim.cells import Cell, Kind, System
from benchmarks.sim.grid import Results
from carpool_sidecar.planning import engine
from tests import marks

README = Path(__file__).with_name("README.md")
SHOWN_DEADLINE = 4


class Table(NamedTuple):
    """Plain text, cell by cell."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def terminal(table: Table) -> rich.table.Table:
    """For a person at a terminal."""
    shown = rich.table.Table(title=escape(table.title), title_justify="left", title_style="bold")
    for index, name in enumerate(table.header):
        shown.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
    for row in table.rows:
        mine = row[0] in contenders.OURS
        shown.add_row(*map(escape, row), style="bold" if mine else "")
    return shown


def markdown(table: Table) -> str:
    """For a page."""
    lines = [table.header, ["---", *["---:"] * (len(table.header) - 1)], *table.rows]
    return f"**{table.title}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def latency(found: Results, system: System) -> Table:
    """Mean and p99 over load."""
    return _table(
        found,
        f"Latency, mean / p99 in ms: {system}",
        lambda cell: cell.system == system and cell.kind in (Kind.POISSON, Kind.BURSTS),
        lambda cell: f"{cell.kind if cell.kind is Kind.BURSTS else 'load'} {cell.x:g}",
        lambda cell, summary: f"{summary.mean * 1000:.1f} / {summary.p99 * 1000:.0f}",
    )


def throughput(found: Results, system: System) -> Table:
    """Answers a second over callers."""
    return _table(
        found,
        f"Closed loop, answers a second: {system} (capacity {system.capacity:.0f})",
        lambda cell: cell.system == system and cell.kind is Kind.CLOSED,
        lambda cell: f"{cell.x:g}",
        lambda cell, summary: f"{summary.throughput:.0f}",
    )


def goodput(found: Results, system: System, deadline: float = SHOWN_DEADLINE) -> Table:
    """Answers in time over load."""
    return _table(
        found,
        f"Answers within {deadline:g} S(B)+h, % of what can be had: {system}",
        lambda cell: cell.system == system and cell.kind is Kind.OVERLOAD and cell.deadline == deadline,
        lambda cell: f"load {cell.x:g}",
        lambda cell, summary: f"{acceptance.goodput(cell, summary) * 100:.1f}",
    )


def hindsight(found: Results) -> Table:
    """The best fixed setting of each irregular cell, and how near `adaptive` comes."""
    rows = []
    for check in acceptance.adaptive_is_near_the_best_fixed_setting(found):
        cell = next(cell for cell, _ in found if str(cell) == check.cell)
        known = acceptance.of_fixed(found, cell)
        closed = cell.kind is Kind.CLOSED
        best = min(known, key=lambda name: -known[name].throughput if closed else known[name].mean)
        mine = found[cell, contenders.ADAPTIVE]
        rows.append((str(cell), best, _worth(cell, known[best]), _worth(cell, mine), f"{check.figure:.2f}"))
    title = "Adaptive against the best fixed setting in hindsight (at most 1.15)"
    return Table(title, ("cell", "best fixed", "its figure", "adaptive", "ratio"), rows)


def promises(checks: Iterable[acceptance.Check]) -> Table:
    """How many cells keep each promise, and the one that is nearest to breaking it or breaks it most."""
    grouped: dict[str, list[acceptance.Check]] = {}
    for check in checks:
        grouped.setdefault(check.promise, []).append(check)
    rows = []
    for promise, group in grouped.items():
        worst = min(group, key=lambda check: check.margin)
        kept = sum(check.ok for check in group)
        figure = f"{worst.figure:.4g} {worst.relation} {worst.bound:.4g}"
        rows.append((promise, f"{kept} of {len(group)}", figure, worst.cell))
    return Table("Promises", ("promise", "kept", "tightest figure", "in cell"), rows)


def broken(checks: Iterable[acceptance.Check]) -> Table:
    """Every check that does not hold."""
    rows = [
        (check.promise, f"{check.figure:.4g}", f"{check.relation} {check.bound:.4g}", check.cell)
        for check in checks
        if not check.ok
    ]
    return Table("Not kept", ("promise", "figure", "bound", "cell"), rows)


def rate_text(rate: float) -> str:
    """Requests/s with about three digits at least."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def write_readme(blocks: dict[str, Sequence[Table]]) -> None:
    """Bring the tables between the README's markers up to date."""
    page = README.read_text()
    for name, group in blocks.items():
        text = "\n\n".join(markdown(table) for table in group if table.rows)
        page = marks.renewed(page, name, "make sim", text)
    README.write_text(page)


def _worth(cell: Cell, summary: engine.Summary) -> str:
    return f"{summary.throughput:.0f}/s" if cell.kind is Kind.CLOSED else f"{summary.mean * 1000:.1f} ms"


def _table(
    found: Results,
    title: str,
    wanted: Callable[[Cell], bool],
    column: Callable[[Cell], str],
    figure: Callable[[Cell, engine.Summary], str],
) -> Table:
    chosen = list(dict.fromkeys(cell for cell, _ in found if wanted(cell)))
    chosen.sort(key=lambda cell: (cell.kind is Kind.BURSTS, cell.x))
    chosen = [cell for cell in chosen if all((cell, name) in found for name in contenders.BY_NAME)]
    rows = [[name, *(figure(cell, found[cell, name]) for cell in chosen)] for name in contenders.BY_NAME if chosen]
    return Table(title, ["", *(column(cell) for cell in chosen)], rows)
