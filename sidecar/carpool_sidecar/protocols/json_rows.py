"""JSON text that is moved rather than read: the rows of a list as byte ranges, without letting a list fill the memory.

JSON has to be UTF-8, and msgspec does not look inside strings that it is told to skip, so that is checked here.
"""

from __future__ import annotations

import bisect
import codecs
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, forms, number_lists, steps

Rows = Sequence[Any]
"""Each is a `msgspec.Raw`, a view or bytes."""

LIST = msgspec.json.Decoder(list[msgspec.Raw])
"""Finds the rows of a list, and checks that it is one."""

_NO_ROW = msgspec.Raw()
_SPACE = b" \t\r\n"
_INTEGERS = b"0123456789-, \t\r\n"
_NOTHING_BUT_SPACE = re.compile(rb"[ \t\r\n]*+\Z")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Up to this size a list is decoded first and counted then: 18 MB for a moment, if it is `1,1,1,…`.
_MAX_UNCOUNTED = 512 * 1024

# Elements are counted by decoding; beyond this many commas the objects for them would cost too much memory.
_MAX_COUNTED = 1_000_000

STRING: Final[bytes] = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
"""A regular expression, with `re.DOTALL`, for a JSON string, or for the beginning of one that the text cuts off.

Possessive: else a string without an end takes quadratic time, and memory for each character.
"""

# What is left out of a row's pattern; a longer row is told by its beginning, which may end within a string.
_STRING = re.compile(STRING, re.DOTALL)
_NUMBERS = b"0123456789+-.eE \t\r\n"
_LONGEST_PATTERN = 16 * 1024

WORTH_A_LOOK: Final = 512
"""From so many bytes on it pays to look whether a list has nothing but numbers."""

_OPENING: Final = 0x5B
_CLOSING: Final = 0x5D

# What is decoded at once: as fast as the whole, and never a large string.
_STEP = 256 * 1024


class PartedText:
    """A text that came in parts, which are put together only for who needs all of it as one."""

    __slots__ = ("_parts", "size")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts
        self.size = sum(map(len, parts))

    def whole(self) -> bytes:
        """All of it."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def between(self, start: int, stop: int) -> list[bytes | memoryview]:
        """Views of what lies between two places, in order; none is empty."""
        found: list[bytes | memoryview] = []
        at = 0
        for part in self._parts:
            first, last = max(start - at, 0), min(stop - at, len(part))
            if first < last:
                found.append(memoryview(part)[first:last])
            at += len(part)
        return found


_NOTHING = PartedText(())


class Spans:
    """Rows of a list as places in its text, each of which becomes a view of it when it is asked for.

    Their `form` is empty unless it is known.
    Views are made in a third of the time that `msgspec.Raw` takes, and mostly all rows travel together.
    """

    __slots__ = ("_ends", "_parted", "_starts", "_view", "form")

    def __init__(
        self,
        text: bytes | memoryview | PartedText,
        starts: Sequence[int],
        ends: Sequence[int],
        form: bytes = b"",
    ) -> None:
        self._parted = text if isinstance(text, PartedText) else _NOTHING
        self._view = None if isinstance(text, PartedText) else memoryview(text)
        self._starts = starts
        self._ends = ends
        self.form = form

    @property
    def _text(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(self._parted.whole())
        return self._view

    def __len__(self) -> int:
        return len(self._starts)

    def beginning(self, size: int) -> bytes:
        """At most so many bytes of the first row; parts stay apart."""
        start, stop = self._starts[0], min(self._ends[0], self._starts[0] + size)
        if self._view is None:
            return b"".join(self._parted.between(start, stop))
        return bytes(self._view[start:stop])

    def __getitem__(self, which: Any) -> Any:
        starts, ends = self._starts[which], self._ends[which]
        if isinstance(which, slice):
            return list(map(self._text.__getitem__, map(slice, starts, ends)))
        return self._text[starts:ends]

    def __iter__(self) -> Iterator[memoryview]:
        return map(self._text.__getitem__, map(slice, self._starts, self._ends))


def find(text: bytes | memoryview, max_rows: int = sys.maxsize) -> Rows:
    """The rows of a list, brackets included.

    Raises `msgspec.DecodeError` if it is none, and `errors.PayloadTooLarge` for more than `max_rows`, before memory is
    spent on them.
    """
    size = len(text)
    if size >= WORTH_A_LOOK and text[size - 1] == _CLOSING:
        found = number_lists.find(text, 1, size - 1, 1, 0, max_rows, 0)
        if found is not None and found[0] == 1 and text[0] == _OPENING:
            form = forms.of(text, found[3]) if found[3] >= 0 else b""
            return cast(Rows, Spans(text, found[1], found[2], form))
    if size <= 2 * max_rows:  # a row takes at least two bytes
        return LIST.decode(text)
    if size <= _MAX_UNCOUNTED:
        rows: Rows = LIST.decode(text)
    else:
        # `1,1,1,…` is refused at the first row too many, before it becomes gigabytes.
        try:
            rows = msgspec.structs.astuple(bounded_rows(max_rows).decode(text))
        except msgspec.ValidationError as error:
            if str(error).startswith("Expected `array` of at most length"):
                raise too_many(max_rows) from None
            raise
        rows = rows[: bisect.bisect_left(rows, True, key=_NO_ROW.__eq__)]
    if len(rows) > max_rows:
        raise too_many(max_rows)
    return rows


@functools.lru_cache(maxsize=2)
def bounded_rows(max_rows: int) -> msgspec.json.Decoder[msgspec.Struct]:
    """A decoder of lists of at most so many rows; making it takes 5 microseconds for each, so make it beforehand.

    msgspec checks the `max_length` of a list once that is complete, but an array-like struct has only so many fields.
    """
    fields = [(f"row{number}", msgspec.Raw, _NO_ROW) for number in range(max_rows)]
    return msgspec.json.Decoder(msgspec.defstruct("Rows", fields, array_like=True, forbid_unknown_fields=True))


def form(rows: Rows, text: bytes | memoryview) -> bytes:
    """That of rows, by the text of their list; raises what `forms.of` does."""
    return (rows.form if isinstance(rows, Spans) else b"") or forms.of(text)


def too_many(max_rows: int) -> errors.PayloadTooLarge:
    """What a caller is told that sent more rows."""
    return errors.PayloadTooLarge(f"more than {max_rows} instances in one request")


def length(row: bytes) -> int:
    """Elements of a row that is a JSON array; 1 for any other.

    Of more than a million commas that have more between them than plain numbers each counts as an element. So does each
    of a row that is nested too deeply to be looked into from here, although it was not when its list was found.
    """
    if not row.startswith(b"["):
        return 1
    commas = row.count(b",")
    if not commas:
        return 0 if not row[1:-1].strip(_SPACE) else 1
    is_flat = b'"' not in row and b"{" not in row and row.rfind(b"[") == 0
    if is_flat or commas > _MAX_COUNTED:
        return commas + 1
    try:
        mask = steps.at_once(beyond_json.masked(row)) if beyond_json.has_halves(row) else None
        return len(LIST.decode(mask or row))
    except RecursionError:
        return commas + 1


def are_integers(inside: bytes) -> bool:
    """Whether a JSON list has nothing but integers in it, by what is inside its brackets, or a piece of that."""
    return not inside.translate(None, _INTEGERS)


def pattern(rows: Rows) -> bytes:
    """The punctuation and literals of the first row, without strings and numbers."""
    if isinstance(rows, Spans):
        text = rows.beginning(_LONGEST_PATTERN)
    else:
        text = bytes(memoryview(rows[0])[:_LONGEST_PATTERN])
    return _STRING.sub(b'"', text).translate(None, _NUMBERS)


def no_json(body: bytes, words: str) -> errors.BadRequest:
    """What is wrong with a body that a decoder refused with these words: what they do not tell, or the words."""
    if _NOTHING_BUT_SPACE.match(body):
        return errors.BadRequest("the body is empty; it must be JSON")
    if body.startswith(_BYTE_ORDER_MARK):
        return errors.BadRequest(
            "the body begins with a byte order mark (the bytes EF BB BF); it must be JSON in UTF-8 without one"
        )
    return errors.BadRequest(words)


def check_utf8(body: bytes | memoryview, step: int = _STEP) -> steps.Steps[None]:
    """Raises `errors.BadRequest`, with the place, for bytes that are not UTF-8; looks at `step` of them at once."""
    if isinstance(body, bytes) and body.isascii():
        return
    view, at = memoryview(body), 0
    while at < len(view):
        try:
            _, used = codecs.utf_8_decode(view[at : at + step], "strict", at + step >= len(view))
        except UnicodeDecodeError as error:
            raise errors.BadRequest(f"the body is not valid UTF-8 (byte {at + error.start})") from None
        at += used
        if at < len(view):
            yield
