"""What command lines have in common: numbers in a range, bodies and headers of requests, recordings, and how errors
look.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from carpool.program import settings
from carpool_sidecar.protocols.pairs import destinations
from carpool_sidecar.recording import document

_PATIENCE = 1.0  # seconds without a word
_CALLED = tuple([kind for kind in destinations.KINDS if kind != destinations.V2])


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line and exits with status 2. The epilog is shown as it is written."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, description=description, epilog=epilog, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        settings.fail(self.prog, message.removeprefix("argument "))


def number(least: float, most: float) -> Callable[[str], float]:
    """A parser of numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}: must be a number from {least:g} to {most:,.10g}")
        return value

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"got {text!r}: must be a whole number from {least} to {most:,}")
        return int(text)

    return parse


BODY = "bodies of requests; - is standard input"


def body(name: str) -> tuple[str, bytes]:
    """A parser of the names of files with bodies: the name, and what is in it; - is standard input."""
    try:
        return name, sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be read: {error.strerror}") from None


def header(text: str) -> tuple[str, str]:
    """A parser of headers: name and value."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"got {text!r}: must be NAME: VALUE")
    return name.strip(), value.strip()


def add_rules(parser: argparse.ArgumentParser, words: str) -> None:
    """Rules of requests, as the sidecar takes them; `words` say what for."""
    parser.add_argument("--lists", nargs="+", default=[], metavar="RULES", help=words)


def add_destination(parser: argparse.ArgumentParser, *, is_called: bool = True) -> None:
    """Where rerank requests go as pairs. What is called, or shown as calls, cannot be a predictor that speaks v2."""
    allowed = _CALLED if is_called else destinations.KINDS
    words = f"where rerank requests go as pairs, as the setting says it: {', '.join(allowed)}, v1:MODEL"
    parser.add_argument(
        "--rerank-to", metavar="WHERE", type=_called_destination if is_called else _destination, help=words
    )


def _destination(text: str, kinds: Sequence[str] = destinations.KINDS) -> destinations.Destination:
    try:
        return destinations.Destination.parse(text, kinds)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _called_destination(text: str) -> destinations.Destination:
    if text.partition(":")[0] == destinations.V2:
        raise argparse.ArgumentTypeError("calls of v2 depend on the model's metadata, and are not made here")
    return _destination(text, _CALLED)


def add_for_calls(parser: argparse.ArgumentParser) -> None:
    """What commands that call a predictor take besides the requests: rules, headers, a timeout, and how to print."""
    add = parser.add_argument
    add_rules(parser, "rules for other paths than those of v1 and v2")
    add_destination(parser)
    repeated = "a header of the calls; may be repeated"
    add("--header", action="append", default=[], type=header, metavar="NAME: VALUE", help=repeated)
    add("--timeout", type=number(0.001, 3600), default=60.0, metavar="SECONDS", help="of a call (%(default)g)")
    add("--json", action="store_true", help="print JSON")


def recording(name: str) -> document.Recording:
    """A parser of the names of files with recorded arrivals; - is standard input."""
    try:
        return document.decode(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be read: {error.strerror}") from None
    except document.NotARecording as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def say(line: str) -> None:
    """Tell what goes on, apart from what is printed as the result."""
    sys.stderr.write(f"{line}\n")


def patiently(write: Callable[[str], object] = say) -> Callable[[str], None]:
    """Tells what goes on, once it takes longer than a person waits without wondering."""
    began = time.monotonic()

    def tell(line: str) -> None:
        if time.monotonic() - began > _PATIENCE:
            write(line)

    return tell
