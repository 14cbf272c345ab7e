"""Where the members of a JSON object are: as places in its text, so that text can be moved without being read.

msgspec finds values without decoding them, but tells neither where they are nor that a name was there twice.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_rows

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NEXT = re.compile(rb"[ \t\r\n]*[{,][ \t\r\n]*(" + json_rows.STRING + rb")[ \t\r\n]*:[ \t\r\n]*", re.DOTALL)
_AFTER_VALUE = frozenset(b"%c" % byte for byte in b" \t\r\n,}")


class Member(NamedTuple):
    """One member: its name begins at `start`, with its quote, its value at `value`; both end at `stop`."""

    start: int
    value: int
    stop: int


def find(text: bytes, start: int = 0, stop: int | None = None) -> dict[str, Member]:
    """The members of the object that is `text` from `start` to before `stop`, in order; places are those in `text`.

    Raises `errors.BadRequest` for what is no JSON object, and for duplicate members.
    """
    try:
        values = _OBJECT.decode(text if stop is None and not start else memoryview(text)[start:stop])
    except msgspec.ValidationError:
        raise errors.BadRequest("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.BadRequest(str(error)) from None
    found: dict[str, Member] = {}
    at = start
    for _ in values:
        match = _NEXT.match(text, at)
        if match is None:
            break
        name = msgspec.json.decode(match[1], type=str)
        value = bytes(values[name])
        at = match.end() + len(value)
        # The decoder keeps the last of equal names, so an earlier twin shows as a value that does not fit here.
        if name in found or text[match.end() : at] != value or text[at : at + 1] not in _AFTER_VALUE:
            raise errors.BadRequest(f"duplicate member {name!r}")
        found[name] = Member(match.start(1), match.end(), at)
    after = _NEXT.match(text, at, len(text) if stop is None else stop)
    if values and after is not None:
        raise errors.BadRequest(f"duplicate member {msgspec.json.decode(after[1], type=str)!r}")
    return found
