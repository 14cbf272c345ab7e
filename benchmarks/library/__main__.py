"""`python -m benchmarks.library`: functions batched by Carpool and by its peers, in the process of their callers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks import command_line, machine, report
from benchmarks.library import cells, chart, comparison, runs, systems, tables
from benchmarks.sim import tables as plain

FULL_SECONDS, FULL_ROUNDS, TRIAL_SECONDS = 1.0, 3, 0.5
QUICK_SECONDS, QUICK_ROUNDS, QUICK_TRIAL = 0.5, 1, 0.3
ALONE_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Install, measure and compare. 0 when something was measured, 1 if not, 130 when interrupted."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console()
    return _run(options, console)


def _run(options: argparse.Namespace, console: Console) -> int:
    is_stopped = False
    alone: dict[str, float] = {}
    absent: dict[str, str] = {}
    outcomes: list[comparison.Outcome] = []
    chosen = cells.select(options.only)
    if cells.minilm_path() is None and any(cell.group == cells.MINILM for cell in chosen):
        chosen = [cell for cell in chosen if cell.group != cells.MINILM]
        console.print("MiniLM is left out: the predictor's packages are not installed (`make demo` does that)")
    # The last core: the first one has the interrupts of most machines.
    cores = machine.split_cores()
    core = cores[1] if cores else None

    def measure(system: systems.System, job: dict[str, Any]) -> dict[str, Any]:
        return runs.measure(system, job, options.cache, core)

    with command_line.progress(console, 60) as progress:
        task = progress.add_task("", total=len(chosen))

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(text, markup=False)

        run = comparison.Comparison(
            measure=measure,
            seconds=options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS),
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS),
            trial_seconds=QUICK_TRIAL if options.quick else TRIAL_SECONDS,
            say=say,
            advance=lambda: progress.advance(task),
            loop=options.loop,
            brief=options.quick,
        )
        try:
            field, absent = comparison.prepare(systems.select(options.systems), options.cache, say)
            if any(cell.group == cells.LOAD for cell in chosen):
                alone = _alone(measure, say)
            for found in run.run(chosen, field):
                outcomes += found
        except KeyboardInterrupt:
            is_stopped = True
    if outcomes:
        _publish(options, console, outcomes, absent, alone)
    if is_stopped:
        console.print("stopped: the tables hold the cells that were measured to the end" if outcomes else "stopped")
        return command_line.INTERRUPTED
    return 0 if any(outcome.rounds for outcome in outcomes) else 1


def _alone(measure: comparison.Measure, say: Any) -> dict[str, float]:
    """What the function can do by itself on this machine, in each form: no batcher can be faster."""
    ours = next(system for system in systems.SYSTEMS if system.is_ours)
    found = {}
    for form in systems.FORMS:
        say(f"the function alone, {form}")
        try:
            job = {"cell": "alone", "by": form, "seconds": ALONE_SECONDS, **cells.COST}
            found[form] = float(measure(ours, job)["rate"])
        except runs.Failed as failure:
            say(str(failure))
    return found


def _publish(
    options: argparse.Namespace,
    console: Console,
    outcomes: list[comparison.Outcome],
    absent: dict[str, str],
    alone: dict[str, float],
) -> None:
    facts = {
        "command": command_line.as_typed("benchmarks.library"),
        **machine.provenance(),
        "machine": machine.describe(),
        "loop": options.loop,
        "max_batch_size": cells.MAX_BATCH,
    }
    found = tables.all_tables(outcomes, absent, alone)
    for table in found:
        console.print(tables.terminal(table))
    options.out.mkdir(parents=True, exist_ok=True)
    page = "\n\n".join([_heading(facts), *map(plain.markdown, found)]) + "\n"
    (options.out / "library.md").write_text(page)
    report.write(options.out / "library.json", tables.as_json(outcomes, absent, alone, facts))
    written = ["library.md", "library.json"]
    if chart.draw(outcomes, options.out / "library-speed.svg"):
        written.append("library-speed.svg")
    console.print(f"written to {escape(str(options.out))}: {', '.join(written)}")


def _heading(facts: dict[str, Any]) -> str:
    """Where and when, in a line."""
    here = facts["machine"]
    commit = (facts["commit"] or "no commit")[:12] + (" with changes" if facts["uncommitted_changes"] else "")
    where = f"{here['cpu']}, {here['usable_cores']} cores, {here['system']}, Python {here['python']}, {facts['loop']}"
    return f"`{facts['command']}`, {facts['date']}, {commit}; {where}."


def _parser() -> argparse.ArgumentParser:
    groups = "; ".join(
        f"{group}: {', '.join(cell.name for cell in cells.CELLS if cell.group == group)}" for group in cells.GROUPS
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.library",
        description="Installs the libraries that people batch with inside their own process, and measures them and "
        "Carpool with the same functions, the same callers and the same largest batch.",
        epilog=f"Cells, by group. {groups}.",
    )
    parser.add_argument(
        "--only",
        type=command_line.names(cells.select),
        default=[],
        metavar="A,B",
        help="only these groups or cells, e.g. zero,overload",
    )
    parser.add_argument(
        "--systems",
        type=command_line.names(systems.select),
        default=[],
        metavar="A,B",
        help=f"only these systems: {', '.join(system.slug for system in systems.SYSTEMS)}",
    )
    parser.add_argument("--quick", action="store_true", help="one short round of each cell: a rough look")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds of each cell (default: {FULL_ROUNDS})")
    parser.add_argument(
        "--seconds", type=float, metavar="X", help=f"another length of a round in a closed loop ({FULL_SECONDS:g})"
    )
    parser.add_argument(
        "--loop", choices=("asyncio", "uvloop"), default="asyncio", help="the event loop of all callers that are tasks"
    )
    command_line.add_folders(parser, "out/library")
    return parser


if __name__ == "__main__":
    sys.exit(main())
