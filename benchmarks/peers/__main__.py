"""`python -m benchmarks.peers`: Carpool beside what people batch with today, each in front of the same model."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks import command_line, machine, report, wrk
from benchmarks.peers import cells, chart, comparison, ground, peer, registry, samples, tables
from benchmarks.sim import tables as plain

FULL_SECONDS, FULL_ROUNDS = 2.0, 3
QUICK_SECONDS, QUICK_ROUNDS = 1.0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Install, run and compare. 0 when something was measured, 1 if not, 130 when interrupted."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console()
    if not wrk.is_available():
        console.print("[bold red]error:[/] wrk is not on PATH (Debian: apt install wrk); the closed loops need it")
        return 1
    field = registry.find()
    try:
        chosen = registry.select(field.peers, options.only)
    except ValueError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        return 1
    try:
        outcomes = _run(options, console, chosen)
    except KeyboardInterrupt:
        console.print("stopped")
        return command_line.INTERRUPTED
    outcomes += [samples.Outcome(name, peer.SERVER, absence=reason) for name, reason in field.absent.items()]
    _publish(options, console, outcomes)
    return 0 if any(outcome.cells for outcome in outcomes) else 1


def _run(options: argparse.Namespace, console: Console, chosen: Sequence[peer.Peer]) -> list[samples.Outcome]:
    seconds = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    rounds = QUICK_ROUNDS if options.quick else FULL_ROUNDS
    servers = [each for each in chosen if each.role == peer.SERVER]
    sidecars = [each for each in chosen if each.role == peer.SIDECAR]
    with command_line.progress(console, 44) as progress:
        task = progress.add_task("", total=rounds * _steps(servers, sidecars))

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(text, markup=False)

        run = comparison.Comparison(
            cache=options.cache,
            seconds=seconds,
            rounds=rounds,
            cores=ground.split_cores(),
            say=say,
            advance=lambda: progress.advance(task),
        )
        outcomes = run.prepare(chosen)
        run.servers(servers, outcomes)
        run.sidecars(sidecars, outcomes)
    return list(outcomes.values())


def _steps(servers: Sequence[peer.Peer], sidecars: Sequence[peer.Peer]) -> int:
    return len(servers) * len(cells.SERVER_CELLS) + len(sidecars) * len(cells.SIDECAR_CELLS)


def _publish(options: argparse.Namespace, console: Console, outcomes: list[samples.Outcome]) -> None:
    facts = _facts(options)
    found = tables.all_tables(outcomes)
    for table in found:
        console.print(tables.terminal(table))
    options.out.mkdir(parents=True, exist_ok=True)
    page = "\n\n".join([_heading(facts), *map(plain.markdown, found)]) + "\n"
    (options.out / "peers.md").write_text(page)
    report.write(options.out / "peers.json", tables.as_json(outcomes, facts))
    chart.draw(outcomes, options.out / "peers.png")
    console.print(f"written to {escape(str(options.out))}: peers.md, peers.json, peers.png")


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    facts = {"command": shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]), **machine.provenance()}
    return facts | {"machine": machine.describe(), "batch": cells.BATCH, "wait_ms": cells.WAIT_MS}


def _heading(facts: dict[str, Any]) -> str:
    """Where and when, in a line."""
    here = facts["machine"]
    commit = (facts["commit"] or "no commit")[:12] + (" with changes" if facts["uncommitted_changes"] else "")
    where = f"{here['cpu']}, {here['usable_cores']} cores, {here['system']}, Python {here['python']}, {here['wrk']}"
    return f"`{facts['command']}`, {facts['date']}, {commit}; {where}."


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Installs what people batch with today, and measures it and Carpool in front of the same model.",
    )
    parser.add_argument("--only", type=_names, default=[], metavar="A,B", help="only these peers, e.g. mosec,litserve")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s, not three of 2 s: a rough look")
    parser.add_argument("--seconds", type=float, metavar="X", help="another length of a round")
    command_line.add_folders(parser, "out/peers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
