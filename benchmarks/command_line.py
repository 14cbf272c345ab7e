"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
import pathlib
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.peers import environments

INTERRUPTED = 130
"""The exit status after Ctrl-C or SIGTERM."""


def end_on_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does, so that children are stopped."""
    signal.signal(signal.SIGTERM, _interrupt)


def console(markdown: bool = False) -> Console:
    """As wide as the terminal. Wide where there is none, and for Markdown, of which a row must stay on one line."""
    return Console(width=None if sys.stdout.isatty() and not markdown else 200, highlight=False)


def progress(screen: Console, width: int) -> Progress:
    """Bars with names of so many characters, on a terminal; nothing elsewhere."""
    columns = (SpinnerColumn(), TextColumn(f"{{task.description:<{width}}}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=screen, transient=True, disable=not screen.is_terminal)


def show(screen: Console, measure: Callable[[], RenderableType], failures: tuple[type[Exception], ...]) -> int:
    """Print what `measure` makes. The exit status: 0, 1 after one of the `failures`, or INTERRUPTED."""

    def printed() -> int:
        screen.print(measure())
        return 0

    return guarded(screen, printed, failures)


def guarded(screen: Console, work: Callable[[], int], failures: tuple[type[Exception], ...]) -> int:
    """The exit status that `work` returns, 1 after one of the `failures`, which is told, or INTERRUPTED."""
    try:
        return work()
    except failures as error:
        screen.print(f"[bold red]bench failed:[/] {escape(str(error))}")
        if log := getattr(error, "log", ""):
            screen.print(f"the end of its log:\n{escape(log)}")
        return 1
    except KeyboardInterrupt:
        screen.print("stopped")
        return INTERRUPTED


def as_typed(program: str) -> str:
    """The command that started this `program`, a module, to be pasted again."""
    return shlex.join(["python", "-m", program, *sys.argv[1:]])


def names(select: Callable[[Sequence[str]], object]) -> Callable[[str], list[str]]:
    """The type of an option like `A,B`; `select` raises `ValueError` for names that there are not."""

    def parse(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        try:
            select(found)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return found

    return parse


def add_results(parser: argparse.ArgumentParser, default: str) -> None:
    """Where the figures go, and how they look."""
    _add_path(parser, "--json", "FILE", default, "where the figures go (default: %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")


def add_cells(parser: argparse.ArgumentParser, select: Callable[[Sequence[str]], object], known: Sequence[str]) -> None:
    """Which cells, and for how long each."""
    parser.add_argument("--seconds", type=float, metavar="X", help="another length of a round")
    parser.add_argument(
        "--only", type=names(select), default=[], metavar="A,B", help=f"only these cells: {', '.join(known)}"
    )


def add_folders(parser: argparse.ArgumentParser, out: str) -> None:
    """Where results go, and where peers are installed."""
    _add_path(parser, "--out", "DIR", out, "where tables, figures and chart go (default: %(default)s)")
    add_cache(parser)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Where peers are installed."""
    told = "where peers are installed, outside the checkout (default: the user's cache folder)"
    _add_path(parser, "--cache", "DIR", environments.default_cache(), told)


def _add_path(parser: argparse.ArgumentParser, flag: str, kind: str, default: str | pathlib.Path, told: str) -> None:
    parser.add_argument(flag, type=pathlib.Path, default=pathlib.Path(default), metavar=kind, help=told)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
