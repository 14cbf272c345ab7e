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
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_SPACE: Final = b" \t\r\n"
_STEP: Final = 256 * 1024  # bytes, and members, that are looked at in one step
_MEMBERS_A_STEP: Final = 100


class Member(NamedTuple):
    """One member: its name begins at `start`, with its quote, its value at `value`; both end at `stop`."""

    start: int
    value: int
    stop: int


def find(text: bytes, start: int = 0, stop: int | None = None) -> dict[str, Member]:
    """The members of the object that is `text` from `start` to before `stop`, in order; places are those in `text`.

    Raises `errors.BadRequest` for what is no JSON object, and for duplicate members, and `errors.Unbatchable` for more
    than `MOST` members.
    """
    return steps.at_once(find_in_steps(text, start, stop))


def find_in_steps(text: bytes, start: int = 0, stop: int | None = None) -> steps.Steps[dict[str, Member]]:
    """The same for a large object."""
    end = len(text) if stop is None else stop
    found: dict[str, Member] = {}
    if _EMPTY.fullmatch(text, start, end):
        return found
    match, at, rested = _FIRST.match(text, start, end), start, start
    if match is None and not text[start : start + 64].lstrip(_SPACE).startswith(b"{"):
        raise errors.BadRequest("the body must be a JSON object")
    view = memoryview(text)[:end]
    while match is not None:
        try:
            name = _text(match[1])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.BadRequest(str(error)) from None
        if name in found:
            raise errors.BadRequest(f"duplicate member {name!r}")
        if len(found) == MOST:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        at = match.end() if match[2] is not None else end_of_value(view, match.end())
        found[name] = Member(match.start(1), match.start(2) if match[2] is not None else match.end(), at)
        if at - rested >= _STEP or not len(found) % _MEMBERS_A_STEP:
            rested = at
            yield
        match = _NEXT.match(text, at, end)
    if not found or not _END.fullmatch(text, at, end):
        raise errors.BadRequest(f"JSON is malformed: no member and no end of an object (byte {at})")
    return found


def end_of_value(view: memoryview, at: int) -> int:
    """Where the value ends that begins at a place, before more text; raises `errors.BadRequest`."""
    try:
        _skip(view[at:])
    except msgspec.DecodeError as error:
        found = _TRAILING.search(str(error))
        if found is None:
            raise errors.BadRequest(f"{error}, in the value at byte {at}") from None
        at += int(found[1]) - 1
        while view[at - 1] in _SPACE:
            at -= 1
        return at
    raise errors.BadRequest("Input data was truncated")
