"""`python -m benchmarks.sim`: the production scheduler and its rivals on the whole grid, in virtual time."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.sim import acceptance, cells, charts, contenders, grid, tables
from carpool_sidecar.planning import engine

OUT = Path("out/sim.json")
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid. 0 when every promise is kept, 1 when one is not."""
    options = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    try:
        return _run(options, console)
    except KeyboardInterrupt:
        console.print("stopped")
        return INTERRUPTED


def _run(options: argparse.Namespace, console: Console) -> int:
    plan = grid.QUICK if options.quick else grid.FULL
    began = time.perf_counter()
    found = _simulate(plan, options.processes, console)
    seconds = time.perf_counter() - began
    checks = acceptance.judge(found)
    _show(found, checks, console)
    simulated = sum(summary.requests for summary in found.values()) / (1 - grid.WARM_UP)
    console.print(f"{len(found)} runs, {simulated / seconds:,.0f} simulated requests a second, {seconds:.0f} s")
    grid.write_json(
        options.json,
        found,
        quick=options.quick,
        checks=[check._asdict() | {"ok": check.ok} for check in checks],
    )
    console.print(f"figures: {options.json}")
    if options.quick:
        console.print("a quick run draws no charts: its figures are rough")
    else:
        _publish(found, console)
    return 0 if all(check.ok for check in checks) else 1


def _simulate(plan: grid.Plan, processes: int | None, console: Console) -> grid.Results:
    wanted = list(dict.fromkeys(grid.tasks(plan)))
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("simulating", total=len(wanted))
        return grid.run_all(wanted, processes, lambda count: progress.advance(bar, count))


def _show(found: grid.Results, checks: list[acceptance.Check], console: Console) -> None:
    for system in cells.SYSTEMS:
        for table in _figures(found, system):
            console.print(tables.terminal(table), "")
    for table in (tables.hindsight(found), tables.promises(checks), tables.broken(checks), scene()):
        if table.rows:
            console.print(tables.terminal(table), "")


def _figures(found: grid.Results, system: cells.System) -> list[tables.Table]:
    return [tables.latency(found, system), tables.throughput(found, system), tables.goodput(found, system)]


def _publish(found: grid.Results, console: Console) -> None:
    for path in charts.draw_all(found):
        console.print(f"chart: {path}")
    tables.write_readme({"scene": [scene()]})
    console.print(f"tables: {tables.README}")


def scene() -> tables.Table:
    """KServe's documented example: five callers, 10 ms + 0.1 ms per instance, without a pause."""
    shown: dict[str, engine.Summary] = {name: acceptance.docs_scene(name) for name in contenders.SCENE}
    rows = [
        (name, f"{summary.throughput:.0f}", f"{summary.p50 * 1000:.1f}", f"{summary.mean_batch:.1f}")
        for name, summary in shown.items()
    ]
    return tables.Table("Five callers, 10+0.1b ms, B=32", ("", "answers/s", "p50, ms", "mean batch"), rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sim", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="runs a quarter as long; no charts, README untouched")
    parser.add_argument("--processes", type=int, metavar="N", help="at a time (default: one for each core)")
    parser.add_argument("--json", type=Path, default=OUT, metavar="FILE", help="all figures (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
