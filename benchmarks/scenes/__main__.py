"""`python -m benchmarks.scenes`: real model servers without and with the sidecar: are answers equal, what is gained?

Each scene is installed into an environment of its own, started on loopback, asked, measured in turns and stopped.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape

import carpool_sidecar
from benchmarks import command_line, machine, processes
from benchmarks.peers import tables as peer_tables
from benchmarks.scenes import catalogue, chart, scene, stage, tables
from benchmarks.sim import tables as plain
from tests import marks

SECONDS, ROUNDS, CALLERS = 4.0, 3, 32
QUICK_SECONDS, QUICK_ROUNDS = 1.5, 1
OUT = pathlib.Path("out/scenes/scenes.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Play, list or show. 0 when all that was played went well, 1 if not, 130 when interrupted."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console(options.markdown)
    if options.list:
        _list(console, options.only)
        return 0
    try:
        return _show(options, console, options.read) if options.read else _play(options, console)
    except (OSError, ValueError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        console.print(f"stopped: scenes that were played to the end are in {options.json}")
        return command_line.INTERRUPTED


def _play(options: argparse.Namespace, console: Console) -> int:
    """One scene after the other. Each is written down when it is over."""
    quick = options.quick
    plan = stage.Plan(
        callers=options.callers,
        seconds=options.seconds or (QUICK_SECONDS if quick else SECONDS),
        rounds=options.rounds or (QUICK_ROUNDS if quick else ROUNDS),
        patience=options.patience,
    )
    chosen = catalogue.select(options.only)
    _announce(console, chosen)
    facts = _facts()
    failed = 0
    for number, each in enumerate(chosen, 1):
        console.print(f"[bold]{number} of {len(chosen)}: {each.name}[/]: {escape(tables.title(each))}")
        outcome = _one(each, plan, console)
        failed += bool(outcome.absence and stage.missing(each) is None) or _is_wrong(outcome)
        played = tables.read(options.json)
        tables.write(options.json, played | {each.name: tables.entry(outcome, plan, facts)})
    shown = _show(options, console, options.json, [each.name for each in chosen])
    console.print(f"figures: {options.json}")
    return int(bool(failed) or shown)


def _one(each: scene.Scene, plan: stage.Plan, console: Console) -> stage.Outcome:
    """A scene, with what went wrong told and kept."""
    if reason := stage.missing(each):
        console.print(f"  left out: {escape(reason)}")
        return stage.Outcome(each.name, absence=reason)
    start = time.monotonic()

    def say(text: str) -> None:
        console.print(f"  [dim]{time.monotonic() - start:4.0f} s[/] {escape(text)}")

    try:
        return stage.play(each, plan, say)
    except stage.SceneFailed as error:
        problem, advice, log = str(error), error.advice, error.log
    except processes.ChildFailed as error:
        problem, log = str(error), error.log
        advice = f"read the output above; after `rm -r {stage.cache() / each.key}` it is installed anew"
    except (OSError, psutil.Error, subprocess.TimeoutExpired) as error:
        problem, log, advice = str(error), "", "it may have ended: run it again with --quick, and look at free memory"
    console.print(f"  [bold red]failed:[/] {escape(problem)}")
    if log:
        console.print(f"  [dim]the end of its output:[/]\n{escape(log)}")
    console.print(f"  [bold]next step:[/] {escape(advice)}")
    return stage.Outcome(each.name, absence=problem)


def _is_wrong(outcome: stage.Outcome) -> bool:
    return any(each.wrong or each.errors for each in outcome.rounds if each.way == stage.WITH)


def _announce(console: Console, chosen: Sequence[scene.Scene]) -> None:
    """What will be installed, and how large it is, before anything is fetched."""
    wanted = {each.key: each for each in chosen if not stage.missing(each)}
    new = [each for each in wanted.values() if not stage.is_installed(each)]
    if new:
        sizes = ", ".join(f"{each.key} {each.disk_mb / 1000:.1f} GB" for each in new)
        console.print(
            f"set-up: environments in {stage.cache()}: {sizes}. What has 5 GB is mostly torch with CUDA: it is "
            "fetched once and, where uv's cache is on the same disk, takes its room once. rm -r removes all of it.",
            soft_wrap=True,
        )


def _list(console: Console, names: Sequence[str]) -> None:
    """What there is, and what each needs."""
    rows = []
    for each in catalogue.select(names):
        state = stage.missing(each) or ("installed" if stage.is_installed(each) else "not installed")
        packages = f"{each.package} {stage.version(each)}"
        needs = [f"{each.disk_mb / 1000:.1f} GB", f"{each.memory_mb / 1000:.1f} GB", f"{minutes(each):.0f} min"]
        rows.append([each.name, each.server, each.model, packages, *needs, state])
    header = ["scene", "server", "model", "package", "disk", "memory", "takes", "here"]
    console.print(peer_tables.terminal(plain.Table("Scenes", header, rows)))
    for absent in catalogue.MISSING:
        console.print(f"no scene: {escape(absent.server)}: {escape(absent.why)}", soft_wrap=True)


def minutes(each: scene.Scene) -> float:
    """About how long it takes, once it is installed: a minute to start and to be asked one by one, then the rounds."""
    ways = 4 if each.own else 3
    return 1 + ways * ROUNDS * (SECONDS + 2) / 60


def _show(options: argparse.Namespace, console: Console, file: pathlib.Path, names: Sequence[str] = ()) -> int:
    played = tables.read(file)
    chosen = catalogue.select(names or options.only)
    found = tables.table(played, chosen)
    if options.markdown:
        console.print(tables.page(played, chosen), soft_wrap=True, markup=False)
    elif found.rows:
        console.print(peer_tables.terminal(found))
        for line in tables.verdicts(played, chosen):
            console.print(line.replace("**", ""), soft_wrap=True, markup=False)
    if options.page:
        everything = tables.page(played, catalogue.SCENES)
        options.page.write_text(marks.renewed(options.page.read_text(), "figures", tables.COMMAND, everything))
        chart.draw(played, catalogue.SCENES, options.page.with_suffix(".svg"))
        console.print(f"written to {options.page}")
    return 0 if found.rows else 1


def _facts() -> dict[str, Any]:
    facts = {"command": command_line.as_typed("benchmarks.scenes"), **machine.provenance()}
    return facts | {"machine": machine.describe(), "sidecar": carpool_sidecar.build()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scenes",
        description="Plays real model servers without and with the sidecar. Everything runs on loopback.",
        epilog=f"Scenes: {', '.join(each.name for each in catalogue.SCENES)}.",
    )
    add, default = parser.add_argument, "(default: %(default)s)"
    add(
        "--only", type=command_line.names(catalogue.select), default=[], metavar="A,B", help="only these, e.g. mlserver"
    )
    add("--list", action="store_true", help="say what there is and what each needs; install and start nothing")
    add("--quick", action="store_true", help="one round of 1.5 s: a rough look")
    add(
        "--callers",
        type=int,
        default=CALLERS,
        metavar="N",
        help=f"callers at once {default}",
    )
    add("--seconds", type=float, metavar="X", help=f"length of a round (default: {SECONDS:g})")
    add("--rounds", type=int, metavar="N", help=f"rounds of each way (default: {ROUNDS})")
    add(
        "--patience", type=float, default=20.0, metavar="X",
        help=f"seconds that a round waits at most for other programs to be quiet {default}",
    )  # fmt: skip
    add("--from", dest="read", type=pathlib.Path, metavar="FILE", help="show the figures of this file, play nothing")
    add("--page", type=pathlib.Path, metavar="FILE", help="put the table into this document, and the chart beside it")
    command_line.add_results(parser, str(OUT))
    return parser


if __name__ == "__main__":
    sys.exit(main())
