"""`python -m benchmarks`: throughput, latency, CPU and memory of the sidecar in front of an echo predictor."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape

from benchmarks import cells, command_line, lag, machine, processes, report, simulated, stand, wrk
from benchmarks.peers import environments

FULL_SECONDS, QUICK_SECONDS = 8.0, 2.0
ADAPTIVE_SECONDS = 4.0  # at most, unless another length is asked for: there are many, and they vary little
IDLE_SECONDS = 10.0
LAG_SECONDS = 6.0  # at most, unless another length is asked for

Announce = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells that were asked for. 0 when all of them ran without an error, else 1."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console(options.markdown)
    return command_line.guarded(
        console, lambda: _run(options, console), (processes.ChildFailed, wrk.WrkFailed, OSError)
    )


def _run(options: argparse.Namespace, console: Console) -> int:
    seconds = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    adaptive_seconds = options.seconds or min(seconds, ADAPTIVE_SECONDS)
    lag_seconds = options.seconds or min(seconds, LAG_SECONDS)
    chosen = cells.select(options.only)
    console.print(f"{_set_up_line(options.load)}, {seconds:g} s a cell\n")
    results: list[stand.Result] = []
    idle = met = None
    extra = shlex.split(options.sidecar_args)
    with command_line.progress(console, 28) as progress, stand.Stand(options.load, extra) as tested:
        task = progress.add_task("", total=chosen.steps + (len(chosen.loaded) * (options.runs - 1)))

        def measure(group: list[cells.Cell], length: float) -> None:
            for cell in group:
                for _ in range(options.runs):
                    progress.update(task, description=cell.title)
                    results.append(tested.measure(cell, length))
                    progress.advance(task)

        measure(chosen.bodies, seconds)
        if chosen.idle:
            progress.update(task, description="at rest")
            idle = tested.idle(cells.BODY_CELLS[0], IDLE_SECONDS)
            progress.advance(task)
        measure(chosen.serial, seconds)
        measure(chosen.adaptive, adaptive_seconds)
        progress.update(task, description="done")
    if chosen.lag:
        met = _meet(console, chosen.lag, lag_seconds, extra)
    for result in results:
        if result.cell.system is not None:
            result.simulated = simulated.summary(result.cell, stand.LEARNING_SECONDS, adaptive_seconds)
    _show(console, results, idle, options.markdown)
    if met is not None:
        _show_lag(console, met, options.markdown)
    facts = {
        "command": command_line.as_typed("benchmarks"),
        **machine.provenance(),
        "machine": machine.describe(),
        "load": options.load,
    }
    facts |= {"seconds_per_cell": seconds, "seconds_per_adaptive_cell": adaptive_seconds}
    facts |= {"sidecar_args": options.sidecar_args}
    facts |= {"seconds_per_lag_scene": lag_seconds}
    report.write(options.json, report.as_json(results, idle, facts, met))
    console.print(f"written to {escape(str(options.json))}")
    has_failed = any(result.has_failed for result in (*results, *(met.results if met else ())))
    return 1 if has_failed else 0


def _meet(console: Console, scenes: list[cells.Scene], seconds: float, extra: list[str]) -> lag.Outcome:
    """Let small requests meet large ones."""
    with command_line.progress(console, 28) as progress:
        task = progress.add_task("", total=None)
        return lag.run(
            scenes,
            seconds,
            extra,
            environments.default_cache(),
            say=lambda text: progress.update(task, description=text),
            advance=lambda: progress.advance(task),
        )


def _show(console: Console, results: list[stand.Result], idle: stand.Idle | None, markdown: bool) -> None:
    if plain := [result for result in results if result.cell.system is None]:
        console.print(report.load_table(plain, markdown))
    if adaptive := [result for result in results if result.cell.system is not None]:
        console.print(report.adaptive_table(adaptive, markdown))
    if disturbed := report.disturbances(results):
        console.print(f"[yellow]disturbed[/] by other programs on the sidecar's core: {', '.join(disturbed)}")
    for line in report.spread(results):
        console.print(line)
    if idle is not None:
        console.print(report.idle_table(idle, markdown))


def _show_lag(console: Console, met: lag.Outcome, markdown: bool) -> None:
    console.print(report.lag_table(met, markdown))
    for name, reason in met.absent.items():
        console.print(f"left out: {escape(name)}: {escape(reason)}")


def _set_up_line(generator: str) -> str:
    cores = machine.split_cores()
    where = (
        f"sidecar alone on core {min(cores[1])}, load and predictor on core {min(cores[0])}"
        if cores
        else "one core for everything: the figures say little about the sidecar"
    )
    client = "wrk" if generator == "wrk" else "our own client"
    return f"{where}; {cells.CONNECTIONS} connections unless a row says otherwise, from {client}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures throughput, latency, CPU and memory of the sidecar in front of an echo predictor.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_SECONDS:g} s a cell, not {FULL_SECONDS:g} ({ADAPTIVE_SECONDS:g} adaptive)",
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="each cell so many times, and how they spread")
    parser.add_argument("--seconds", type=float, metavar="X", help="another length of a cell")
    parser.add_argument(
        "--only",
        type=command_line.names(cells.select),
        default=[],
        metavar="A,B",
        help=f"only these cells: {', '.join(cells.NAMES)}",
    )
    parser.add_argument(
        "--sidecar-args", default="", metavar="FLAGS", help="more sidecar flags: --sidecar-args='--a 1'"
    )
    parser.add_argument(
        "--load",
        choices=("wrk", "own"),
        default="wrk" if wrk.is_available() else "own",
        help="load generator: wrk where it is installed, else our own client (this machine: %(default)s)",
    )
    command_line.add_results(parser, "out/bench.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
