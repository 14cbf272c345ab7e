"""Large lists in JSON, scanned piece by piece: while their body arrives, or in steps.

Scanning 16 MB at once holds the event loop, and everybody on it, for ten milliseconds or more. But a list can be cut
behind any of its values, however deep: with the lists and objects that are open there opened again in front of each
piece, and closed after it, each piece is a JSON list of its own, and all are valid exactly if the whole is. A long
string can be cut between two characters in the same way.

Where a piece may end is guessed by what a comma stands between, as the decoder finds out whether it was right: a piece
that ends in a string, or in other lists than thought, is no JSON. Only after wrong guesses all quotes and brackets are
looked at. Whatever is still wrong then is left to those who read the whole.
"""

from __future__ import annotations

import itertools
import operator
import re
import sys
from collections.abc import Sequence
from typing import cast

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import form_scan, forms, json_rows, number_lists, steps

_SPACE = b" \t\r\n"
_BETWEEN = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_NOTHING = re.compile(rb"(?=(\[))")
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]"))
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_CLOSING = {ord("["): b"]", ord("{"): b"}"}

STEP = 256 * 1024
"""Bytes of a body that are scanned in one step."""

_PIECE = 64 * 1024  # less is kept until there is more
_LONGEST = 1024 * 1024  # what is not cut until then is no list of many values
_LONGEST_HEAD = 4096
_LONGEST_TAIL = 64 * 1024
_DEEPEST = 64
_EDGE = 64  # white space at a cut is shorter
_MOST_WRONG = 2  # guesses, before there are none any more
_MOST_TRIES = 8
_LONGEST_ESCAPE = 12  # `\ud83d\ude00`


class IncrementalScan:
    """Fed with all parts of one body in order, finds the rows of a list in it, and checks that it is one.

    `head` is the pattern of what stands before the list; its first group has the list's name. What is fed begins at the
    place `at` of the body. It gives up on a list of more than `max_rows` rows, and on any text that it cannot cut.
    With `in_detail` it finds the rows' form as well: in detail, or else without; then `lacks_form` says that it gave up
    for that.
    """

    # State: _stack has the brackets that are open at _at, the place in the body from which on the _rest is not scanned
    # yet; _is_in_string if a string is open as well. _starts and _ends of the rows so far. _start of the list, what is
    # _before it, its _end once it is found, and the _tail behind it. _wrong guesses. _has_else once there was something
    # else than lists of numbers. _is_over once it has given up. _form of what is scanned, and the _nesting of
    # numbers, -1 once it does not tell the form.
    def __init__(
        self, head: re.Pattern[bytes], max_rows: int = sys.maxsize, at: int = 0, in_detail: bool | None = None
    ) -> None:
        self._head = head
        self._max_rows = max_rows
        self._stack = b""
        self._is_in_string = False
        self._at = self._start = at
        self._wrong = 0
        self._end = -1
        self._rest = self._before = self._tail = b""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._has_else = self._is_over = False
        self._in_detail = in_detail
        self._form = b"["
        self._nesting = 0 if in_detail is False else -1
        self.lacks_form = False
        self.name = b""
        """That of the list, once it is there."""

    def feed(self, part: bytes) -> None:
        """The next bytes of the body."""
        if self._is_over:
            return
        if not self.name:
            part = self._skip_head(self._rest + part)
        if self._end >= 0:
            self._add_tail(part)
        elif len(self._rest) + len(part) < _PIECE:
            self._rest += part
        elif not self._cut(part):
            self._give_up()

    def rows(self, body: bytes | json_rows.PartedText) -> tuple[json_rows.Rows, int, int, bytes] | None:
        """The rows of the list in the `body` that was fed, where the list starts and ends, brackets included, and the
        rest of the body with `[0]` for the list.

        None if it is for others to tell what the body is.
        """
        if self._is_over or not self.name or (self._end < 0 and not self._finish()):
            return None
        rows = cast(json_rows.Rows, json_rows.Spans(body, self._starts, self._ends))
        return rows, self._start, self._end, b"%b[0]%b" % (self._before, self._tail)

    def form(self) -> bytes:
        """That of the rows that were found."""
        return forms.short(self._form + b"]")

    def feed_in_steps(self, body: bytes, start: int = 0, stop: int = sys.maxsize) -> steps.Steps[None]:
        """What a body has between two places, part by part, as long as that makes a difference."""
        for at in range(start, min(stop, len(body)), STEP):
            if self._is_over:
                break
            self.feed(body[at : min(at + STEP, stop)])
            yield

    def _give_up(self) -> None:
        self._is_over = True
        self._rest = self._tail = b""
        self._starts, self._ends = [], []

    # --- the text around the list ------------------------------------------------------------------------------

    def _skip_head(self, data: bytes) -> bytes:
        match = self._head.match(data)
        if match is None:
            if len(data) >= _LONGEST_HEAD:
                self._give_up()
            self._rest = data
            return b""
        self.name, self._rest, self._stack = match[1], b"", b"["
        self._before = data[: match.end()]
        self._start = self._at + match.end()
        self._at = self._start + 1
        return data[match.end() + 1 :]

    def _add_tail(self, part: bytes) -> None:
        self._tail += part
        if len(self._tail) > _LONGEST_TAIL:
            self._give_up()

    def _finish(self) -> bool:
        """The end of the list is in the rest."""
        last = self._rest.rstrip(_SPACE)
        inner = last[:-1].rstrip(_SPACE)
        is_end = last.endswith(b"}") and inner.endswith(b"]")
        inner = inner[:-1]
        if is_end and (self._take_numbers(b"", inner, is_last=True) or self._take((inner,), b"", False, b"]")):
            self._tail = b"}"
            return True
        return self._close(self._rest)

    def _close(self, data: bytes) -> bool:
        """The list ends somewhere in the data, and what follows is not its own."""
        prefix = _opened(self._stack, self._is_in_string)
        try:
            json_rows.LIST.decode(prefix + data)
            return False
        except msgspec.DecodeError as error:
            found = _TRAILING.search(str(error))
        except RecursionError:
            return False
        if found is None:
            return False
        stop = data.rfind(b"]", 0, int(found[1]) - len(prefix))
        if stop < 0 or not self._take((data[:stop],), b"", False, b"]"):
            return False
        self._rest = b""
        self._add_tail(data[stop + 1 :])
        return not self._is_over

    # --- cuts --------------------------------------------------------------------------------------------------

    def _cut(self, part: bytes) -> bool:
        """Scan as much as can be of the rest and this part; False if it cannot be cut."""
        if self._take_numbers(self._rest, part):
            return True
        if self._wrong < _MOST_WRONG and not self._is_in_string:
            # Nearly always the rest is short and the cut in this part: the two need not be put together twice.
            cut = _guess((self._rest[:_EDGE] + part[:_EDGE])[:_EDGE], part)
            if cut > 0:
                if self._take((self._rest, memoryview(part)[:cut]), self._stack, False):
                    self._rest = part[cut + 1 :]
                    return True
                self._wrong += 1
        data = self._rest + part
        if self._is_in_string and b'"' not in data:
            return self._cut_string(data)
        has_strings = self._is_in_string or b'"' in data or b"{" in data or b"{" in self._stack
        return self._cut_carefully(data) if has_strings else self._cut_numbers(data)

    def _take_numbers(self, rest: bytes, part: bytes, is_last: bool = False) -> bool:
        """Take as much as can be, or all of the last part, if it is nothing but lists of numbers; nothing is copied."""
        if self._has_else:
            return False
        self._has_else = True  # unless it turns out otherwise
        first, cut = part.find(b","), len(part) if is_last else part.rfind(b",")
        first = cut if first < 0 else first
        if cut < 0:
            return False
        head, room = rest + part[:first], self._max_rows - len(self._starts)
        found = number_lists.find(head, 0, len(head), len(self._stack), self._at, room, self._nesting)
        if found is None:
            return False
        depth, starts, ends, nesting = found
        if first < cut:
            found = number_lists.find(part, first + 1, cut, depth, self._at + len(rest), room - len(starts), nesting)
            if found is None:
                return False
            depth, more_starts, more_ends, nesting = found
            starts += more_starts
            ends += more_ends
        if is_last and depth != 1:
            return False
        if nesting >= 0:
            self._form = forms.of_numbers(nesting, depth)
        elif not (self._add_form(head, 0, len(head)) and self._add_form(part, min(first + 1, cut), cut)):
            return False
        self._nesting = nesting
        self._starts += starts
        self._ends += ends
        self._has_else = False
        self._at += len(rest) + cut + 1
        if is_last:
            self._end = self._at
        else:
            self._stack = b"[" * depth
            self._rest = part[cut + 1 :]
        return True

    def _cut_numbers(self, data: bytes) -> bool:
        """The same where there are neither strings nor objects."""
        cut = data.rfind(b",")
        if cut < 0:
            return self._keep(data)
        after = len(self._stack) + _rise(data) - _rise(data[cut:])
        if after < 1 or not self._take((memoryview(data)[:cut],), b"[" * after, False):
            return False
        self._rest = data[cut + 1 :]
        return True

    def _keep(self, data: bytes) -> bool:
        """There is no place to cut yet."""
        self._rest = data
        return len(data) < _LONGEST

    def _cut_carefully(self, data: bytes) -> bool:
        """The same for any text: all its quotes and brackets are looked at."""
        masked = data
        if b"\\" in data:
            masked = data.replace(b"\\\\", b"xx").replace(b'\\"', b"xx")
        is_odd = self._is_in_string
        cut = _last_comma(masked, is_odd)
        if cut < 0 or len(data) - cut > _PIECE:
            inside = self._place_in_string(data, masked)
            if inside > 0:
                stack = self._stack_after(masked[:inside])
                if stack is None:
                    return self._close(data)
                if not self._take((memoryview(data)[:inside],), stack, True):
                    return False
                self._rest = data[inside:]
                return True
        if cut < 0:
            return self._close(data) or self._keep(data)
        stack = self._stack_after(masked[:cut])
        if stack is None:
            return self._close(data)
        if not stack or not self._take((memoryview(data)[:cut],), stack, False):
            return False
        self._rest = data[cut + 1 :]
        return True

    def _cut_string(self, data: bytes) -> bool:
        """Nothing but more of a string."""
        cut = _between_characters(data)
        if not self._take((memoryview(data)[:cut],), self._stack, True):
            return False
        self._rest = data[cut:]
        return True

    def _place_in_string(self, data: bytes, masked: bytes) -> int:
        """Where to cut a value that is a string without an end; 0 if there is none."""
        quotes = masked.count(b'"')
        if (quotes + self._is_in_string) % 2 == 0:
            return 0
        opening = masked.rfind(b'"')  # -1 if the string began in a piece before
        if opening >= 0 and not _is_value(masked[max(0, opening - _EDGE) : opening], opening, self._stack, data):
            return 0
        cut = _between_characters(data)
        return cut if cut > opening + 1 else 0

    def _stack_after(self, masked: bytes) -> bytes | None:
        """The brackets that are open after this text; None if the list itself is closed in it, or something is odd."""
        left = masked.translate(None, _ALL_BUT_STRUCTURE)
        if self._is_in_string:
            left = b'"' + left
        left = left.replace(b'""', b"")
        if b'"' in left:
            left = b"".join(left.split(b'"')[::2])
        before = len(left) + 1
        while len(left) < before:
            before = len(left)
            left = left.replace(b"[]", b"").replace(b"{}", b"")
        stack = self._stack
        opened = len(left.lstrip(b"]}"))
        for closing in left[: len(left) - opened]:
            if len(stack) < 2 or _CLOSING[stack[-1]][0] != closing:
                return None
            stack = stack[:-1]
        stack += left[len(left) - opened :]
        return stack if b"]" not in stack and b"}" not in stack else None

    def _take(
        self, piece: Sequence[bytes | memoryview], stack: bytes, ends_in_string: bool, ending: bytes | None = None
    ) -> bool:
        """Scan the bytes from `_at` to before a comma, or to within a string; whether they can be part of the list.

        `stack` are the brackets that are open then; there are none at the list's end, where it is closed by `ending`.
        """
        if len(stack) > _DEEPEST:
            return False
        prefix = _opened(self._stack, self._is_in_string)
        suffix = _closed(stack, ends_in_string) if ending is None else ending
        text = b"".join((prefix, *piece, suffix))
        # Nothing, or a bracket at the wrong side, would be a list of its own but is none with a comma beside it.
        stop = len(text) - len(suffix)
        if not self._is_in_string:
            first = text[len(prefix) : min(stop, len(prefix) + _EDGE)].lstrip(_SPACE)[:1]
            if first in (b"", b"}") or (first == b"]" and len(self._stack) > 1):
                return False
        if not ends_in_string and text[max(len(prefix), stop - _EDGE) : stop].rstrip(_SPACE)[-1:] in b"[{":
            return False
        try:
            if not text.isascii():
                json_rows.check_utf8(text)
            found = json_rows.LIST.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, errors.BadRequest, RecursionError):
            return False
        if not self._add_form(text, len(prefix), stop):
            return False
        self._nesting = -1
        is_noted = self._note(text, found, len(prefix), len(stack) > 1 or ends_in_string)
        self._at += stop - len(prefix) + (not ends_in_string)
        if ending is not None:
            self._end = self._at
        self._stack, self._is_in_string = stack, ends_in_string
        return is_noted

    def _add_form(self, text: bytes, start: int, stop: int) -> bool:
        """Add what is scanned to the form, if one is wanted; False if that cannot be."""
        if self._in_detail is not None and not self.lacks_form:
            form = form_scan.scan(self._form, text, start, stop, self._in_detail)
            self.lacks_form = form is None
            self._form = form or b""
        return not self.lacks_form

    def _note(self, text: bytes, found: list[msgspec.Raw], shift: int, goes_on: bool) -> bool:
        """Where rows start and end; the first row in `text` may be the end of one, the last the beginning of one."""
        if len(self._starts) + len(found) > self._max_rows:
            return False
        began_before = len(self._stack) > 1 or self._is_in_string
        # The list's own bracket; then a row that began earlier has what is before it that is not its own.
        at = 1 if began_before else _skip(text, 1)
        shift = self._at - shift
        sizes = list(map(len, found))
        if sum(sizes) + len(sizes) == len(text) - at:  # nothing but commas between them
            starts = list(itertools.accumulate(sizes[:-1], _behind_comma, initial=shift + at))
            ends = list(map(operator.add, starts, sizes))
        else:
            starts, ends = [], []
            for size in sizes:
                starts.append(shift + at)
                ends.append(shift + at + size)
                at = _skip(text, at + size)
        self._starts += starts[1:] if began_before else starts
        self._ends += ends[:-1] if goes_on else ends
        return True


def rows_in_steps(
    body: bytes, start: int, stop: int, max_rows: int = sys.maxsize, of: bytes | None = None
) -> steps.Steps[json_rows.Rows | None]:
    """The rows of the list from `start` to before `stop`, brackets included; what is around it is not looked at.

    They are those `of` another text if the body is that text's mask. None if it is for others to tell what is there.
    """
    return (yield from _in_steps(IncrementalScan(_NOTHING, max_rows, start), body, start, stop, of))


def rows_and_form_in_steps(
    body: bytes, start: int, stop: int, max_rows: int = sys.maxsize
) -> steps.Steps[tuple[json_rows.Rows, bytes] | None]:
    """Rows in the same way, and their form."""
    for in_detail in (False, True):
        scan = IncrementalScan(_NOTHING, max_rows, start, in_detail)
        rows = yield from _in_steps(scan, body, start, stop, body)
        if rows is not None:
            return rows, scan.form()
        if not scan.lacks_form:
            break
    return None


def _in_steps(
    scan: IncrementalScan, body: bytes, start: int, stop: int, of: bytes | None
) -> steps.Steps[json_rows.Rows | None]:
    yield from scan.feed_in_steps(body, start, stop)
    scan.feed(b"}")  # as it stands behind a list that is the last member
    found = scan.rows(body if of is None else of)
    return None if found is None or found[2] != stop else found[0]


def _behind_comma(at: int, size: int) -> int:
    return at + size + 1


def _opened(stack: bytes, is_in_string: bool) -> bytes:
    """What opens these brackets, and a string in them if one is open."""
    inner = stack if is_in_string else stack[:-1]
    return inner.replace(b"{", b'{"":') + (b'"' if is_in_string else stack[-1:])


def _closed(stack: bytes, is_in_string: bool) -> bytes:
    closing = stack[::-1].replace(b"[", b"]").replace(b"{", b"}")
    return b'"' + closing if is_in_string else closing


def _guess(start: bytes, data: bytes) -> int:
    """The last comma in the data between two values like the one that `start` begins with; -1 if there is none."""
    begun = start.lstrip(_SPACE)
    opened = begun[: len(begun) - len(begun.lstrip(b"[{"))]
    if not opened and begun[:1] != b'"':
        return data.rfind(b",")
    before, after = (_closed(opened, False), opened) if opened else (b'"', b'"')
    if before[-1:] not in data:  # a single byte is looked for ten times as fast
        return -1
    for between in (b",", b", "):
        found = data.rfind(before + between + after)
        if found >= 0:
            return found + len(before)
    return -1


def _last_comma(masked: bytes, is_in_string: bool) -> int:
    """The last comma that is in no string; -1 if there is none, or it is not soon found."""
    stop = len(masked)
    for _ in range(_MOST_TRIES):
        cut = masked.rfind(b",", 0, stop)
        if cut < 0 or (masked.count(b'"', 0, cut) + is_in_string) % 2 == 0:
            return cut
        stop = masked.rfind(b'"', 0, cut)
        if stop < 0:
            return -1
    return -1


def _is_value(before: bytes, opening: int, stack: bytes, data: bytes) -> bool:
    """Whether a string that begins behind this text is no name of a member; if that is wrong, the decoder tells."""
    last = before.rstrip(_SPACE)[-1:]
    if not last:
        return stack.endswith(b"[")
    return last in b":[" or (last == b"," and b"{" not in stack and b"{" not in data[:opening])


def _between_characters(data: bytes) -> int:
    """The last place but the end, in a string, that is within no escape and no character of several bytes; or 0."""
    stop = len(data) - 1
    slash = data.rfind(b"\\", max(0, stop - _LONGEST_ESCAPE), stop)
    if slash >= 0:
        # A backslash that follows none begins an escape. Two halves of a surrogate pair stay together.
        window = max(0, slash - 64 * _LONGEST_ESCAPE)
        for _ in range(_MOST_TRIES):
            slash = len(data[window : slash + 1].rstrip(b"\\")) + window
            if slash <= window:
                return 0
            before = data[max(0, slash - 6) : slash].lower()
            if not (before.startswith(b"\\u") and before[2:4] in (b"d8", b"d9", b"da", b"db")):
                break
            slash -= 6
        stop = slash
    while stop > 0 and data[stop] & 0xC0 == 0x80:
        stop -= 1
    return max(0, stop)


def _skip(text: bytes, at: int) -> int:
    """Where the next row begins after `at`, where a row ended or none was."""
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _rise(piece: bytes) -> int:
    """How many more lists it opens than it closes."""
    # Mostly they are at its beginning, if at all.
    brackets = piece[: max(piece.rfind(b"["), piece.rfind(b"]")) + 1].translate(None, _ALL_BUT_BRACKETS)
    opened = brackets.count(b"[")
    return 2 * opened - len(brackets)
