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

INTERRUPTED = 130
"""The exit status after Ctrl-C or SIGTERM."""


def end_on_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does, so that children are stopped."""
    signal.signal(signal.SIGTERM, _interrupt)


def show(screen: Console, measure: Callable[[], RenderableType], failures: tuple[type[Exception], ...]) -> int:
    """Print what `measure` makes. The exit status: 0, 1 after one of the `failures`, or INTERRUPTED."""
    try:
        screen.print(measure())
    except failures as error:
        screen.print(f"[bold red]bench failed:[/] {escape(str(error))}")
        if log := getattr(error, "log", ""):
            screen.print(f"the end of its log:\n{escape(log)}")
        return 1
    except KeyboardInterrupt:
        screen.print("stopped")
        return INTERRUPTED
    return 0


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
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        default=pathlib.Path(default),
        metavar="FILE",
        help="where the figures go (default: %(default)s)",
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
