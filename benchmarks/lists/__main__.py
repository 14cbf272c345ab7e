"""`python -m benchmarks.lists`: OpenAI's embeddings through the sidecar, beside v1 with the same bytes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from benchmarks import command_line, machine, processes, report, wrk
from benchmarks.lists import cells
from benchmarks.peers import environments, ground
from benchmarks.v2 import run, stand, tables

FULL_SECONDS, FULL_ROUNDS = 4.0, 5
QUICK_SECONDS, QUICK_ROUNDS = 1.0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cells that were asked for. 0 when all of them ran without an error, else 1."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console(options.markdown)
    return command_line.guarded(
        console, lambda: _measure(options, console), (processes.ChildFailed, wrk.WrkFailed, stand.WrongAnswers, OSError)
    )


def _measure(options: argparse.Namespace, console: Console) -> int:
    wrk.require()
    found = _run(options, console)
    console.print(tables.duels(found, options.markdown, "OpenAI's embeddings against v1"))
    if disturbed := tables.disturbances(run.Outcome(found)):
        console.print(f"[yellow]disturbed[/] by other programs on the sidecar's core: {', '.join(disturbed)}")
    facts = {"command": command_line.as_typed("benchmarks.lists"), **machine.provenance()}
    facts |= {"machine": machine.describe(), "seconds": options.seconds, "rounds": options.rounds}
    report.write(options.json, {**facts, "duels": tables.duels_as_json(found)})
    console.print(f"written to {escape(str(options.json))}")
    return 1 if any(side.rounds.errors for each in found for side in (each.first, each.second)) else 0


def _run(options: argparse.Namespace, console: Console) -> list[run.DuelOutcome]:
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    cores = ground.split_cores()
    where = "the sidecar alone on one core, load and stub on another" if cores.peer else "one core for all"
    console.print(f"{where}; {options.rounds} rounds of {options.seconds:g} s that take turns, medians\n")
    with console.status("") as status:
        started = run.Run(environments.default_cache(), options.seconds, options.rounds, status.update, cores)
        return [started.duel(duel) for duel in cells.select(options.only)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lists",
        description="Measures OpenAI's embeddings through the sidecar, beside v1 with the same bytes.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"one round of {QUICK_SECONDS:g} s, not {FULL_ROUNDS} of {FULL_SECONDS:g}")
    add("--rounds", type=int, metavar="N", help="another number of rounds")
    command_line.add_cells(parser, cells.select, cells.NAMES)
    command_line.add_results(parser, "out/bench-lists.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
