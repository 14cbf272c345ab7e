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
from typing import cast

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, form_scan, forms, frames, json_rows, number_lists, steps

LARGE = 512 * 1024
"""From so many bytes on a list is worth being scanned in steps."""

STEP = 256 * 1024
"""Bytes of a body that are scanned in one step."""

_skip_all = msgspec.json.Decoder(msgspec.Raw).decode
_SPACE = b" \t\r\n"
_STRUCTURE = (b"[", b"]", b"{", b"}", b'"')
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b"".join(_STRUCTURE)))
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}

_PIECE = 64 * 1024  # less is kept until there is more
_LONGEST = 1024 * 1024  # what is not cut until then is no list of many values
_DEEPEST = 64
_EDGE = 64  # white space at a cut is shorter
_MOST_WRONG = 2  # guesses, before there are none any more
_MOST_TRIES = 8
_LONGEST_ESCAPE = 12  # `\ud83d\ude00`


class IncrementalScan:
    """Fed with all that follows the opening bracket of a list, part by part, finds its rows, and where it ends.

    The bracket is at the place `at`, and all places count from where that does. It gives up on any text that it cannot
    cut. `starts` and `ends` of the rows are not noted any more once there are more than `max_rows`. With `in_detail` it
    finds the rows' form as well: in detail, or else without; then `lacks_form` says that it gave up for that.
    """

    # State: _stack has the brackets that are open at _at, the place from which on the _rest is not scanned yet;
    # _is_in_string if a string is open as well. _wrong guesses. _has_else once there was something else than lists of
    # numbers. It wants_more until the list has its end, or it has given up. _form of what is scanned, and the _nesting
    # of numbers, -1 once it does not tell the form.
    def __init__(self, at: int, max_rows: int = sys.maxsize, in_detail: bool | None = None) -> None:
        self._at = at + 1
        self._max_rows = max_rows
        self._stack = b"["
        self._is_in_string = False
        self._rest = b""
        self._wrong = 0
        self._has_else = False
        self._in_detail = in_detail
        self._form = b"["
        self._nesting = 0 if in_detail is False else -1
        self.lacks_form = False
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.has_too_many = False
        self.end = -1
        """Behind the closing bracket, once that was there."""
        self.wants_more = True

    def feed(self, part: bytes) -> None:
        """What follows."""
        if not self.wants_more:
            return
        if len(self._rest) + len(part) < _PIECE:
            self._rest += part
        elif not self._cut(part):
            self._stop()
        elif self.end >= 0:
            self.wants_more = False

    def finish(self) -> bool:
        """There is no more; whether the list had its end."""
        if self.wants_more:
            rest, last = self._rest, self._rest.rfind(b"]")
            is_taken = last >= 0 and (self._take_numbers(rest[:last], is_last=True) or self._take(b"", rest, last, b""))
            if not (is_taken or self._close(rest)):
                self._stop()
        return self.end >= 0

    def rows(self, text: bytes | json_rows.PartedText) -> json_rows.Rows:
        """Those of the list in the text that was fed; raises `errors.PayloadTooLarge` for more than `max_rows`."""
        if self.has_too_many:
            raise json_rows.too_many(self._max_rows)
        return cast(json_rows.Rows, json_rows.Spans(text, self.starts, self.ends, self.form))

    @property
    def form(self) -> bytes:
        """That of the rows; empty if it was not wanted."""
        return b"" if self._in_detail is None else forms.short(self._form + b"]")

    def _stop(self) -> None:
        self.wants_more = False
        self._rest = b""
        self.starts, self.ends = [], []

    # --- cuts --------------------------------------------------------------------------------------------------

    def _cut(self, part: bytes) -> bool:
        """Scan as much as can be of the rest and this part; False if it cannot be cut."""
        if self._take_numbers(part):
            return True
        if self._wrong < _MOST_WRONG and not self._is_in_string:
            # Nearly always the rest is short and the cut in this part: the two need not be put together twice.
            cut = _guess((self._rest[:_EDGE] + part[:_EDGE])[:_EDGE], part)
            if cut > 0:
                if self._take(self._rest, part, cut, self._stack):
                    return True
                self._wrong += 1
        data = self._rest + part
        if self._is_in_string and b'"' not in data:
            return self._take(b"", data, _between_characters(data), self._stack, True)
        # Any text: all its quotes and brackets are looked at.
        masked = data.replace(b"\\\\", b"xx").replace(b'\\"', b"xx") if b"\\" in data else data
        cut, is_inside = _last_comma(masked, self._is_in_string), False
        if cut < 0 or len(data) - cut > _PIECE:
            inside = self._place_in_string(data, masked)
            if inside > 0:
                cut, is_inside = inside, True
        if cut < 0:
            if self._close(data):
                return True
            self._rest = data  # there is no place to cut yet
            return len(data) < _LONGEST
        stack = self._stack_after(masked[:cut])
        return self._close(data) if not stack else self._take(b"", data, cut, stack, is_inside)

    def _take_numbers(self, part: bytes, is_last: bool = False) -> bool:
        """Take as much as can be, or all of the last part, if it is nothing but lists of numbers; nothing is copied."""
        if self._has_else:
            return False
        self._has_else = True  # unless it turns out otherwise
        rest = b"" if is_last else self._rest
        cut = len(part) if is_last else part.rfind(b",")
        if cut < 0:
            return False
        first = part.find(b",", 0, cut)
        first = cut if first < 0 else first
        head, room = rest + part[:first], self._max_rows - len(self.starts)
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
        self._has_else = False
        self.starts += starts
        self.ends += ends
        self._at += len(rest) + cut + 1
        if is_last:
            self.end = self._at
        else:
            self._stack = b"[" * depth
            self._rest = part[cut + 1 :]
        return True

    def _close(self, data: bytes) -> bool:
        """Take what is left of the list, if that ends somewhere in the data."""
        prefix = _opened(self._stack, self._is_in_string)
        try:
            json_rows.LIST.decode(prefix + data)
            return False
        except msgspec.DecodeError as error:
            found = _TRAILING.search(str(error))
        except RecursionError:
            return False
        stop = -1 if found is None else data.rfind(b"]", 0, int(found[1]) - len(prefix))
        return stop >= 0 and self._take(b"", data, stop, b"")

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
        last = max([masked.rfind(mark) for mark in _STRUCTURE])
        left = masked[: last + 1].translate(None, _ALL_BUT_STRUCTURE)
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
            if len(stack) < 2 or _CLOSING[stack[-1]] != closing:
                return None
            stack = stack[:-1]
        stack += left[len(left) - opened :]
        return stack if b"]" not in stack and b"}" not in stack else None

    def _take(self, rest: bytes, data: bytes, cut: int, stack: bytes, ends_in_string: bool = False) -> bool:
        """Scan the rest, and data up to a comma, to a place within a string, or to the list's end; whether they fit.

        `stack` are the brackets that are open then; there are none at the list's end.
        """
        if len(stack) > _DEEPEST:
            return False
        prefix, suffix = _opened(self._stack, self._is_in_string), _closed(stack, ends_in_string) if stack else b"]"
        text = b"".join((prefix, rest, memoryview(data)[:cut], suffix))
        # Nothing, or a bracket at the wrong side, would be a list of its own but is none with a comma beside it.
        stop = len(text) - len(suffix)
        if not self._is_in_string:
            first = text[len(prefix) : min(stop, len(prefix) + _EDGE)].lstrip(_SPACE)[:1]
            if first == b"}" or (first == b"]" and len(self._stack) > 1) or (not first and (stack or self.starts)):
                return False
        if not ends_in_string and text[max(len(prefix), stop - _EDGE) : stop].rstrip(_SPACE)[-1:] in b"[{":
            return False
        try:
            if not text.isascii():
                steps.at_once(json_rows.check_utf8(text))
            found = None if self.has_too_many else json_rows.LIST.decode(text)
            if found is None:
                _skip_all(text)
        except (msgspec.MsgspecError, errors.BadRequest, RecursionError):
            return False
        if found is not None:
            if not self._add_form(text, len(prefix), stop):
                return False
            self._note(text, found, len(prefix), len(stack) > 1 or ends_in_string)
        self._nesting = -1
        self._at += stop - len(prefix) + (not ends_in_string)
        self._rest = data[cut + (not ends_in_string) :]
        self._stack, self._is_in_string = stack, ends_in_string
        if not stack:
            self.end = self._at
        return True

    def _add_form(self, text: bytes, start: int, stop: int) -> bool:
        """Add what is scanned to the form, if one is wanted; False if that cannot be."""
        if self._in_detail is not None and not self.lacks_form:
            form = form_scan.scan(self._form, text, start, stop, self._in_detail)
            self.lacks_form = form is None
            self._form = form or b""
        return not self.lacks_form

    def _note(self, text: bytes, found: list[msgspec.Raw], shift: int, goes_on: bool) -> None:
        """Where rows start and end; the first row in `text` may be the end of one, the last the beginning of one."""
        began_before = len(self._stack) > 1 or self._is_in_string
        self.has_too_many = len(self.starts) + len(found) - began_before > self._max_rows
        if self.has_too_many:
            return
        # The list's own bracket; then a row that began earlier has what is before it that is not its own.
        at = 1 if began_before else frames.next_row(text, 1)
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
                at = frames.next_row(text, at + size)
        self.starts += starts[1:] if began_before else starts
        self.ends += ends[:-1] if goes_on else ends


def scan_in_steps(
    text: bytes, start: int, stop: int, max_rows: int = sys.maxsize, with_form: bool = False
) -> steps.Steps[IncrementalScan | None]:
    """Find the rows of the list that begins at a place, and its end, at `stop` at the latest.

    None if that is for others to tell.
    """
    if not text.startswith(b"[", start, stop):
        return None
    in_detail = False if with_form else None
    while True:
        scan = IncrementalScan(start, max_rows, in_detail)
        at, size = start + 1, _PIECE  # the first piece tells whether there are too many rows
        while at < stop and scan.wants_more:
            scan.feed(text[at : min(at + size, stop)])
            at, size = at + size, STEP
            yield
        if scan.finish():
            return scan
        if in_detail is not False or not scan.lacks_form:
            return None
        in_detail = True


def list_in_steps(
    text: bytes,
    mask: bytes,
    start: int,
    stop: int,
    max_rows: int = sys.maxsize,
    scan: IncrementalScan | None = None,
    with_form: bool = False,
) -> steps.Steps[json_rows.Rows]:
    """The rows of any list, of which one that is large may have been scanned; `mask` is JSON of the same size.

    Raises what `json_rows.find` does.
    """
    if scan is None and stop - start >= LARGE:
        scan = yield from scan_in_steps(mask, start, stop, max_rows, with_form)
        if scan is not None and (scan.end != stop or scan.has_too_many):
            scan = None
    if scan is not None:
        return scan.rows(text)
    found = json_rows.find(mask[start:stop], max_rows)
    return found if mask is text else beyond_json.sliced(text, start, mask, found)


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
