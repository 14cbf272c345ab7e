"""Where the members of a JSON object are: as places in its text, so that text can be moved without being read.

A value that is no plain text or number is found by a decoder that skips it and complains of what follows: nothing is
made of what is skipped, and an object of too many members is told by the first one too many.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container
from typing import Final, NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import incremental_scan, json_rows, steps

MOST: Final = 1000
"""Members of an object that is looked into: each takes some microseconds here, and again in each call and answer."""

_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_text: Final = msgspec.json.Decoder(str).decode
_NAMED: Final = (
    rb"[ \t\r\n]*(" + json_rows.STRING + rb")[ \t\r\n]*:[ \t\r\n]*"
    rb'((?:"[ !#-\[\]-~]*+"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)'
    rb"(?=[ \t\r\n]*[,}]))?"
)
_FIRST: Final = re.compile(rb"[ \t\r\n]*\{" + _NAMED, re.DOTALL)
_NEXT: Final = re.compile(rb"[ \t\r\n]*," + _NAMED, re.DOTALL)
_END: Final = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")
_EMPTY: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*\}[ \t\r\n]*")
_TRAILING: Final = "JSON is malformed: trailing characters (byte "
_TRUNCATED: Final = "Input data was truncated"
_SPACE: Final = b" \t\r\n"
_STEP: Final = 256 * 1024  # bytes, and members, that are looked at in one step
_MEMBERS_A_STEP: Final = 100
_NEAR = 16 * 1024  # a list that ends within so many bytes is not scanned


class Member(NamedTuple):
    """One member: its name begins at `start`, with its quote, its value at `value`; both end at `stop`.

    A large list was scanned for its end.
    """

    start: int
    value: int
    stop: int
    scan: incremental_scan.IncrementalScan | None = None


def find(
    text: bytes,
    start: int = 0,
    stop: int | None = None,
    last_counts: bool = False,
    *,
    only: Container[str] | None = None,
    most: int = MOST,
    max_rows: int = sys.maxsize,
    with_form: bool = False,
) -> steps.Steps[dict[str, Member]]:
    """The members of the object that is `text` from `start` to before `stop`, in order; places are those in `text`.

    All members of other names than `only` some are skipped. Of lists that are scanned up to `max_rows` are noted, and
    `with_form` theirs is found.

    Raises `errors.BadRequest` for what is no JSON object, and for duplicate members unless of those the `last_counts`,
    and `errors.Unbatchable` for more than `most`.
    """
    found: dict[str, Member] = {}
    at = rested = start
    count, view = 0, memoryview(text)[:stop]
    end = len(view)
    match = _FIRST.match(text, at, end)
    while match is not None:
        try:
            name = _text(match[1])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.BadRequest(str(error)) from None
        if name in found and not last_counts:
            raise errors.BadRequest(f"duplicate member {name!r}")
        if count == most and name not in found:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        value, at = match.span(2)
        scan = None
        if at < 0:
            value = match.end()
            is_all = end - value <= incremental_scan.LARGE
            at = end_of_value(view if is_all else view[: value + _NEAR], value, is_all)
            if at < 0:
                scan = yield from incremental_scan.scan_in_steps(text, value, end, max_rows, with_form)
                at = end_of_value(view, value) if scan is None else scan.end
        if only is None or name in only:
            found[name] = Member(match.start(1), value, at, scan)
        count += 1
        if not count % _MEMBERS_A_STEP or at - rested >= _STEP:
            rested = at
            yield
        match = _NEXT.match(text, at, end)
    if not (_END if count else _EMPTY).fullmatch(text, at, end):
        if not count and not text[start : start + 64].lstrip(_SPACE).startswith(b"{"):
            raise errors.BadRequest("the body must be a JSON object")
        if count and not text[at:end].strip(_SPACE):
            raise errors.BadRequest(_TRUNCATED)
        raise errors.BadRequest(f"JSON is malformed: no member and no end of an object (byte {at})")
    return found


def end_of_value(view: memoryview, at: int, is_all: bool = True) -> int:
    """Where the value ends that begins at a place, before more text; raises `errors.BadRequest`.

    -1 if it may go on behind the view, unless that `is_all`.
    """
    try:
        _skip(view[at:])
    except msgspec.DecodeError as error:
        words = str(error)
        if words.startswith(_TRAILING):
            at += int(words[len(_TRAILING) : -1]) - 1
            while view[at - 1] in _SPACE:
                at -= 1
            return at
        if is_all:
            raise errors.BadRequest(f"{words}, in the value at byte {at}") from None
    if is_all:
        raise errors.BadRequest(_TRUNCATED)
    return -1
