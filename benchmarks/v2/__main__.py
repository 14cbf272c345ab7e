"""`python -m benchmarks.v2`: v2 against v1 through the sidecar, gRPC, and the sidecar in front of Triton."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from benchmarks import command_line, machine, processes, report, wrk
from benchmarks.peers import contender, environments, ground
from benchmarks.v2 import cells, rpc, run, stand, tables

FULL_SECONDS, FULL_ROUNDS = 4.0, 3
QUICK_SECONDS, QUICK_ROUNDS = 1.0, 1
FAILURES = (
    processes.ChildFailed, wrk.WrkFailed, stand.WrongAnswers, rpc.LoadFailed, contender.PeerFailed, OSError,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells that were asked for. 0 when all of them ran without an error, else 1."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console(options.markdown)
    return command_line.guarded(console, lambda: _measure(options, console), FAILURES)


def _measure(options: argparse.Namespace, console: Console) -> int:
    wrk.require()
    found = _run(options, console)
    _show(console, found, options.markdown)
    facts = {
        "command": command_line.as_typed("benchmarks.v2"),
        **machine.provenance(),
        "machine": machine.describe(),
        "seconds": options.seconds,
    }
    report.write(options.json, tables.as_json(found, facts))
    console.print(f"written to {escape(str(options.json))}")
    return 1 if _has_failed(found) else 0


def _run(options: argparse.Namespace, console: Console) -> run.Outcome:
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    rounds = QUICK_ROUNDS if options.quick else FULL_ROUNDS
    cores = ground.split_cores()
    where = (
        "the sidecar alone on one core, or with Triton; load and stub on another" if cores.peer else "one core for all"
    )
    console.print(f"{where}; {rounds} rounds of {options.seconds:g} s, medians\n")
    with console.status("") as status:
        started = run.Run(environments.default_cache(), options.seconds, rounds, status.update, cores)
        return started.all(cells.select(options.only))


def _show(console: Console, found: run.Outcome, markdown: bool) -> None:
    if found.duels:
        console.print(tables.duels(found.duels, markdown))
    if found.rpc:
        console.print(tables.rpc(found.rpc, markdown))
    if found.triton:
        console.print(tables.triton(found.triton, markdown))
        for line in tables.triton_verdicts(found.triton):
            console.print(line)
    for name, reason in found.absent.items():
        console.print(f"left out: {escape(name)}: {escape(reason)}")
    if disturbed := tables.disturbances(found):
        console.print(f"[yellow]disturbed[/] by other programs on the sidecar's core: {', '.join(disturbed)}")


def _has_failed(found: run.Outcome) -> bool:
    rounds = [side.rounds for each in found.duels for side in (each.first, each.second)]
    rounds += [side.rounds for side in found.rpc]
    rounds += [part for each in found.triton for part in (each.closed, each.open)]
    return any(each.errors for each in rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.v2",
        description="Compares v2 with v1 through the sidecar, measures gRPC, and the sidecar in front of Triton.",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"one round of {QUICK_SECONDS:g} s, not {FULL_ROUNDS} of {FULL_SECONDS:g}"
    )
    command_line.add_cells(parser, cells.select, cells.NAMES)
    command_line.add_results(parser, "out/bench-v2.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
