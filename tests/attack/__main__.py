"""`python -m tests.attack`: attacks a sidecar of its own on loopback, and looks at what its other clients notice."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.attack import attack, catalogue, conformance, stand, tables, trial, verdicts
from tests.bench import command_line, golang, machine, processes, report
from tests.bench.peers import environments

NO_SKIPS = "CARPOOL_NO_SKIPS"
"""An environment variable: where it is set, what cannot be checked here counts as a failure."""

MOST_SECONDS = 60.0

_EPILOG = f"""\
Targets beside each attack:
  - no wrong answer, and at most {verdicts.MOST_FAILED:.0%} of the victims' calls failed
  - p99 at most {1000 * verdicts.P99:.0f} ms, or {verdicts.BUSY:g} times that of before where that is more
  - the server's memory at most {verdicts.MOST_PEAK:.0f} MB, and back to within {verdicts.MOST_KEPT:.0f} MB afterwards
An attack that misses only times is tried a second time. Only servers that this program has started itself are
attacked, on loopback. {NO_SKIPS}=1: a missing Go is a failure, not a skip.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for. 0 when all targets were met, else 1."""
    options = _parser().parse_args(argv)
    if options.list:
        for each in catalogue.ALL.values():
            print(f"{each.name:<22} {each.title} ({', '.join(sorted(each.servers))}, {each.seconds:g} s)")
        print(f"{'h2spec':<22} conformance to HTTP/2\n{'interop':<22} grpc-go's interop client and server")
        return 0
    command_line.end_on_sigterm()
    console = Console(width=220 if options.markdown or not sys.stdout.isatty() else None, highlight=False)
    try:
        return _run(options, console)
    except (processes.ChildFailed, OSError) as error:
        console.print(f"[bold red]attack failed:[/] {escape(str(error))}")
        if log := getattr(error, "log", ""):
            console.print(f"the end of its log:\n{escape(log)}")
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return command_line.INTERRUPTED


def _run(options: argparse.Namespace, console: Console) -> int:
    names = [name for name in options.only if name not in conformance.NAMES]
    servers = tuple(stand.SERVERS) if options.server == "both" else (options.server,)
    chosen = {each: catalogue.select(names, each) if names or not options.only else [] for each in servers}
    tools = [name for name in conformance.NAMES if not options.only or name in options.only]
    if "carpool" not in servers:
        tools = []
    trials: list[verdicts.Trial] = []
    checks: list[conformance.Check] = []
    with _progress(console) as progress:
        task = progress.add_task("", total=sum(map(len, chosen.values())) + len(tools))

        def say(words: str) -> None:
            progress.update(task, description=words)

        for name in tools:
            checks += check(name, options.cache, say)
            progress.advance(task)
        for server, attacks in chosen.items():
            for found in _attack_all(server, attacks, options.seconds, say):
                trials.append(found)
                progress.advance(task)
                if misses := found.misses():
                    progress.console.print(f"[red]{found.attack}[/] ({server}): {escape('; '.join(misses))}")
    if trials:
        console.print(tables.trials(trials, options.markdown))
    if checks:
        console.print(tables.checks(checks, options.markdown))
    facts = {
        "command": command_line.as_typed("tests.attack"),
        **machine.provenance(),
        "machine": machine.describe(),
    }
    report.write(options.json, tables.as_json(trials, checks, facts))
    console.print(f"written to {escape(str(options.json))}")
    return status(trials, checks, console)


def _attack_all(
    name: str, attacks: Sequence[attack.Attack], seconds: float | None, say: Callable[[str], None]
) -> Iterator[verdicts.Trial]:
    """One attack after the other on the same server, for as long as it holds; each miss gets a new one."""
    waiting = list(attacks)
    while waiting:
        with stand.SERVERS[name]() as server:
            while waiting:
                say(f"{name}: {waiting[0].name}")
                found = trial.run(waiting[0], server, seconds)
                if found.misses():
                    break
                yield found
                waiting.pop(0)
            else:
                return
        yield _second(name, waiting.pop(0), found, seconds, say)


def _second(
    name: str, chosen: attack.Attack, first: verdicts.Trial, seconds: float | None, say: Callable[[str], None]
) -> verdicts.Trial:
    """A second try where only times were missed, since other programs on the machine can cause that."""
    if first.misses() != first.times_missed():
        return first
    say(f"{name}: {chosen.name}, again")
    with stand.SERVERS[name]() as server:
        found = trial.run(chosen, server, seconds)
    found.runs = 2
    return found


def check(name: str, cache: pathlib.Path, say: Callable[[str], None]) -> list[conformance.Check]:
    """A tool's checks; where there is no Go, one that says so."""
    if reason := golang.missing():
        return [conformance.Check(name, "all", not os.environ.get(NO_SKIPS), f"skipped: {reason}")]
    tool = conformance.h2spec if name == conformance.H2SPEC else conformance.interop
    return tool(cache, say)


def status(trials: Sequence[verdicts.Trial], checks: Sequence[conformance.Check], console: Console) -> int:
    """1 if the sidecar has missed a target, else 0; says how many were met."""
    # grpcio is there to compare with: what it does not hold is no failure of ours.
    ours = [each for each in trials if each.server == "carpool"]
    missed = sum(bool(each.misses()) for each in ours) + sum(not each.has_passed for each in checks)
    held = len(ours) + len(checks) - missed
    console.print(f"{held} held, {missed} missed")
    return 1 if missed else 0


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack",
        description=(
            "Attacks a sidecar of its own on loopback, with a well-behaved client beside each attack whose answers are "
            "checked; and checks the gRPC port with h2spec and grpc-go's interop cases, which are built with Go."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=command_line.names(_known),
        default=[],
        metavar="A,B",
        help="only these, by name, or by the beginning of names with a hyphen at its end (ended-); see --list",
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument(
        "--server",
        choices=(*stand.SERVERS, "both"),
        default="carpool",
        help="whom to attack: the sidecar, or plain grpcio to compare with (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=_seconds, metavar="X", help=f"another length of each attack, at most {MOST_SECONDS:g}"
    )
    parser.add_argument(
        "--cache",
        type=pathlib.Path,
        default=environments.default_cache().with_name("attack"),
        metavar="DIR",
        help="where the programs in Go are built (default: %(default)s)",
    )
    command_line.add_results(parser, "out/attack.json")
    return parser


def _known(names: Sequence[str]) -> None:
    """Raises `ValueError` for a name that there is not."""
    catalogue.select([name for name in names if name not in conformance.NAMES], "carpool")


def _seconds(text: str) -> float:
    found = float(text)
    if not 0 < found <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MOST_SECONDS:g}")
    return found


if __name__ == "__main__":
    sys.exit(main())
