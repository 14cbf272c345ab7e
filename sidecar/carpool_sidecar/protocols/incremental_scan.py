"""Large bodies, scanned while they arrive.

Scanning 16 MB at once holds the event loop, and everybody on it, for ten milliseconds or more. But a body that is one
list of nested lists of numbers can be cut at any comma: with the lists that are open there opened again in front of
each piece, and closed after it, each piece is a JSON list of its own, and all are valid exactly if the body is.
Strings and objects would hide commas and brackets, so bodies with those are left to `v1.parse_request`, and so is
whatever is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import msgspec

from carpool_sidecar.protocols import json_rows, v1

LARGE = 2 * 1024 * 1024
"""From so many bytes on it is worth it: a smaller body takes up to two milliseconds at once, and fewer in all."""

_SPACE = b" \t\r\n"
_BETWEEN = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]"))
_PIECE = 64 * 1024  # less is kept until there is more
_DEEPEST = 64
_EDGE = 64  # white space at a cut is shorter


class IncrementalScan:
    """Fed with all parts of one body in order, finds its instances; it gives up on any body that is not so simple."""

    # State: _depth of open lists at _at, the place in the body from which on the _rest is not scanned yet; _starts and
    # _ends of the rows so far. _is_over once it has given up.
    def __init__(self, max_rows: int = sys.maxsize) -> None:
        self._max_rows = max_rows
        self._member = b""
        self._depth = self._at = 0
        self._rest = b""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._is_over = False

    def feed(self, part: bytes) -> None:
        """The next bytes of the body."""
        if self._is_over:
            return
        if not self._member:
            part = self._skip_start(self._rest + part)
        if b'"' in part or b"{" in part:
            self._give_up()
        elif len(self._rest) + len(part) < _PIECE:
            self._rest += part
        else:
            self._cut(part)

    def payload(self, body: bytes) -> v1.Payload | None:
        """The payload of the `body` that was fed; None if it is for `v1.parse_request` to tell."""
        end = len(self._rest.rstrip(_SPACE)) - 1
        last, brace = self._rest[:end].rstrip(_SPACE), self._rest[end : end + 1]
        if self._is_over or not self._member or brace != b"}" or not self._take([last], _rise(last)) or self._depth:
            return None
        view = memoryview(body)
        rows = [msgspec.Raw(view[start:stop]) for start, stop in zip(self._starts, self._ends, strict=True)]
        return v1.Payload(self._member, body, view[body.index(b"[") : self._at - 1], rows, b"") if rows else None

    def _give_up(self) -> None:
        self._is_over = True
        self._rest = b""

    def _skip_start(self, data: bytes) -> bytes:
        match = v1.ONLY_REQUEST_MEMBER.match(data)
        if match is None:
            self._give_up()
            return b""
        self._member, self._at, self._rest = match[1], match.end(), b""
        return data[match.end() :]

    def _cut(self, part: bytes) -> None:
        if b"," not in part:
            part, self._rest = self._rest + part, b""
        cut = part.rfind(b",")
        tail = part[cut + 1 :]
        risen = _rise(self._rest) + _rise(part) - _rise(tail)
        if cut < 0 or not self._take([self._rest, memoryview(part)[:cut]], risen) or not self._depth:
            self._give_up()
        else:
            self._rest = tail

    def _take(self, piece: Sequence[bytes | memoryview], risen: int) -> bool:
        """Scan the bytes from `_at` to before a comma, or to the end of the list; whether they can be part of one."""
        before, after = self._depth, self._depth + risen
        if not 0 <= after <= _DEEPEST:
            return False
        text = b"".join((b"[" * before, *piece, b"]" * after))
        # Nothing, or a bracket at the wrong side, would be a list of its own but is none with a comma beside it.
        stop = len(text) - after
        first, last = text[before : min(stop, before + _EDGE)].lstrip(_SPACE), text[max(before, stop - _EDGE) : stop]
        if not first or (before and first.startswith(b"]")) or last.rstrip(_SPACE)[-1:] in (b"", b"["):
            return False
        try:
            found = json_rows.LIST.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return False
        self._depth = after
        is_noted = self._note(text, found, before, after)
        self._at += stop - before + 1
        return is_noted

    def _note(self, text: bytes, found: list[msgspec.Raw], before: int, after: int) -> bool:
        """Where rows start and end; the first row in `text` may be the end of one, the last the beginning of one."""
        if len(self._starts) + len(found) > self._max_rows:
            return False
        shift = self._at - before
        # The list's own bracket; then a row that began earlier has the other brackets before it that are not its own.
        at = 1 if before > 1 else _skip(text, text.index(b"[") + 1)
        for number, row in enumerate(found):
            if number or before < 2:
                self._starts.append(shift + at)
            if number < len(found) - 1 or after < 2:
                self._ends.append(shift + at + len(row))
                at = _skip(text, at + len(row))
        return True


def _skip(text: bytes, at: int) -> int:
    """Where the next row begins after `at`, where a row ended or none was."""
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _rise(piece: bytes) -> int:
    """How many more lists it opens than it closes."""
    if b"[" not in piece and b"]" not in piece:
        return 0
    brackets = piece.translate(None, _ALL_BUT_BRACKETS)
    opened = brackets.count(b"[")
    return 2 * opened - len(brackets)
