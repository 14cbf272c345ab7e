"""`python -m benchmarks.attack`: attacks a sidecar of its own on loopback; looks at what its other clients notice."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from benchmarks import command_line, machine, processes, report
from benchmarks.attack import catalogue, conformance, run, stand, tables, verdicts
from benchmarks.peers import environments

MOST_SECONDS = 60.0

_EPILOG = f"""\
Targets beside each attack:
  - no wrong answer, and at most {verdicts.MOST_FAILED:.0%} of the victims' calls failed
  - p99 at most {1000 * verdicts.P99:.0f} ms, or {verdicts.BUSY:g} times that of before where that is more; and on
    top how late the victims' own process was woken
  - the server's memory at most {verdicts.MOST_PEAK:.0f} MB, and back to within {verdicts.MOST_KEPT:.0f} MB afterwards
An attack that misses only times is tried a second time. Only servers that this program has started itself are
attacked, on loopback. {run.NO_SKIPS}=1: a missing Go is a failure, not a skip.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for. 0 when all targets were met, else 1."""
    options = _parser().parse_args(argv)
    if options.list:
        _list()
        return 0
    command_line.end_on_sigterm()
    console = Console(width=220 if options.markdown or not sys.stdout.isatty() else None, highlight=False)
    servers = tuple(stand.SERVERS) if options.server == "both" else (options.server,)
    chosen, outcome = run.planned(options.only, servers, options.cache), run.Outcome()
    chosen.seconds, chosen.is_once = options.seconds, options.once
    try:
        _run(chosen, outcome, console)
    except (processes.ChildFailed, OSError) as error:
        console.print(f"[bold red]attack failed:[/] {escape(str(error))}")
        if log := getattr(error, "log", ""):
            console.print(f"the end of its log:\n{escape(log)}")
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        _show(outcome, options, console)
        return command_line.INTERRUPTED
    _show(outcome, options, console)
    return 1 if outcome.missed else 0


def _run(chosen: run.Plan, outcome: run.Outcome, console: Console) -> None:
    """Everything, with a line for each attack that missed a target; or for every attack where nobody watches."""
    with command_line.progress(console, 36) as progress:
        task = progress.add_task("", total=chosen.steps)
        for _ in run.carry_out(chosen, outcome, lambda words: progress.update(task, description=words)):
            progress.advance(task)
            if outcome.trials and (outcome.trials[-1].misses() or not console.is_terminal):
                latest = outcome.trials[-1]
                console.print(f"{latest.server}, {latest.attack}: {tables.verdict(latest)}", soft_wrap=True)


def _show(outcome: run.Outcome, options: argparse.Namespace, console: Console) -> None:
    if outcome.trials:
        console.print(tables.trials(outcome.trials, options.markdown))
    if outcome.checks:
        console.print(tables.checks(outcome.checks, options.markdown))
    facts = {
        "command": command_line.as_typed("benchmarks.attack"),
        **machine.provenance(),
        "machine": machine.describe(),
    }
    report.write(options.json, tables.as_json(outcome, facts))
    console.print(f"{outcome.held} held, {outcome.missed} missed; written to {escape(str(options.json))}")


def _list() -> None:
    for each in catalogue.ALL.values():
        print(f"{each.name:<22} {each.title} ({', '.join(sorted(each.servers))}, {each.seconds:g} s)")
    print(f"{conformance.H2SPEC:<22} conformance to HTTP/2")
    print(f"{conformance.INTEROP:<22} grpc-go's interop client and server, through the sidecar")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack",
        description=(
            "Attacks a sidecar of its own on loopback, with well-behaved clients beside each attack whose answers are "
            "checked; and checks the gRPC port with h2spec and grpc-go's interop cases, which are built with Go."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=command_line.names(lambda names: run.planned(names, tuple(stand.SERVERS), pathlib.Path())),
        default=[],
        metavar="A,B",
        help="only these, by name, or by the beginning of names with a hyphen at its end (ended-); see --list",
    )
    parser.add_argument("--once", action="store_true", help="try nothing a second time")
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


def _seconds(text: str) -> float:
    found = float(text)
    if not 0 < found <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MOST_SECONDS:g}")
    return found


if __name__ == "__main__":
    sys.exit(main())
