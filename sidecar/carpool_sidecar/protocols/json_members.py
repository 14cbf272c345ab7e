"""Where the members of a JSON object are: as places in its text, so that text can be moved without being read.

A value that is no plain text or number is found by a decoder that skips it and complains of what follows: nothing is
made of what is skipped, and an object of too many members is told by the first one too many.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_rows, steps

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
_SPACE: Final = b" \t\r\n"
_STEP: Final = 256 * 1024  # bytes, and members, that are looked at in one step
_MEMBERS_A_STEP: Final = 100


class Member(NamedTuple):
    """One member: its name begins at `start`, with its quote, its value at `value`; both end at `stop`."""

    start: int
    value: int
    stop: int


def find(text: bytes, start: int = 0, stop: int | None = None, last_counts: bool = False) -> dict[str, Member]:
    """The members of the object that is `text` from `start` to before `stop`, in order; places are those in `text`.

    Raises `errors.BadRequest` for what is no JSON object, and for duplicate members unless of those the `last_counts`,
    and `errors.Unbatchable` for more than `MOST` members.
    """
    found: dict[str, Member] = {}
    view = memoryview(text)[:stop]
    while start >= 0:
        start = _add_some(found, text, view, start, last_counts)
    return found


def find_in_steps(text: bytes, start: int = 0, stop: int | None = None) -> steps.Steps[dict[str, Member]]:
    """The same for a large object."""
    found: dict[str, Member] = {}
    view = memoryview(text)[:stop]
    while start >= 0:
        start = _add_some(found, text, view, start)
        yield
    return found


def _add_some(found: dict[str, Member], text: bytes, view: memoryview, start: int, last_counts: bool = False) -> int:
    """Add as many members as take a step, from the object's beginning, or from where those found end.

    `view` ends where the object does. Returns where the last one ends, and -1 once they are all there.
    """
    at, end, most = start, len(view), len(found) + _MEMBERS_A_STEP
    match = (_NEXT if found else _FIRST).match(text, at, end)
    while match is not None:
        try:
            name = _text(match[1])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.BadRequest(str(error)) from None
        if name in found and not last_counts:
            raise errors.BadRequest(f"duplicate member {name!r}")
        if len(found) == MOST and name not in found:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        value, at = match.span(2)
        if at < 0:
            value = match.end()
            at = end_of_value(view, value)
        found[name] = Member(match.start(1), value, at)
        if len(found) == most or at - start >= _STEP:
            return at
        match = _NEXT.match(text, at, end)
    if _END.fullmatch(text, at, end) if found else _EMPTY.fullmatch(text, at, end):
        return -1
    if not found and not text[start : start + 64].lstrip(_SPACE).startswith(b"{"):
        raise errors.BadRequest("the body must be a JSON object")
    raise errors.BadRequest(f"JSON is malformed: no member and no end of an object (byte {at})")


def end_of_value(view: memoryview, at: int) -> int:
    """Where the value ends that begins at a place, before more text; raises `errors.BadRequest`."""
    try:
        _skip(view[at:])
    except msgspec.DecodeError as error:
        words = str(error)
        if not words.startswith(_TRAILING):
            raise errors.BadRequest(f"{words}, in the value at byte {at}") from None
        at += int(words[len(_TRAILING) : -1]) - 1
        while view[at - 1] in _SPACE:
            at -= 1
        return at
    raise errors.BadRequest("Input data was truncated")
