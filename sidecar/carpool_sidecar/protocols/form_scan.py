"""The form of JSON text, written while the text is read; forms.py says what forms are for.

A form has `s` for a text, `b` for true and false, `0` for null and `n` for a number; a list has brackets around the
forms of its values, of which those that are as the one before them are left out; an object has braces around its
members, each the name as it is written, quotes included, and the form of its value. In detail a number is a byte from
0x80 on, with the bits of `Bits`, and numbers beside each other in a list are one that has the bits of all. Of the
outermost list, that of the rows, all forms are left out that any row before had, and all numbers are one.

What is open behind a part of a text is told by the form up to there, so a text may come in pieces. `form_scan.c` has
the same function. It is built with the compiled modules, and Python prefers it to this file.
"""

from __future__ import annotations

import enum
import re

LONGEST = 64 * 1024
"""Bytes of a form, the value that is being read included."""
DEEPEST = 1000
"""Lists and objects within each other."""
MOST_ROWS = 256
"""Forms that the rows of one list have, beside numbers."""


class Bits(enum.IntFlag):
    """What a number may be, in detail."""

    WHOLE = 1
    FRACTION = 2
    UNSIGNED = 4
    """Only without a sign it is one of 64 bits."""
    HUGE = 8
    """It does not fit 64 bits."""
    NEGATIVE = 16


_NUMBERS = 0x80
_MOST_DIGITS = 20  # and a sign, of a whole number in 64 bits
_LEAST, _MOST = -(2**63), 2**63 - 1
_DIGITS = 16  # of a whole number that may be beyond 2 ** 53
_OBJECT = -2
_QUOTE, _COLON = b'":'
_SPACE = b" \t\r\n"
_BRACKETS = (b"[", b"]", b"{", b"}")
# By the first bytes of values that are no lists or objects; those of numbers may be Infinity and NaN.
_KINDS = {_QUOTE: b"s", ord("t"): b"b", ord("f"): b"b", ord("n"): b"0", **dict.fromkeys(b"-0123456789IN", b"n")}

# Names with their colons, other strings, brackets, numbers with all that stand beside them, words.
_TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"[ \t\r\n]*+:|"|\\?\Z)|[\[\]{}]'
    rb"|[-0-9][-+.0-9eE, \t\r\n]*+(?:Infinity|NaN)?+|[A-Za-z]++",
    re.DOTALL,
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_FORM_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|.', re.DOTALL)
_NUMBER = re.compile(rb"[^, \t\r\n]++")
_WHOLE_NUMBER = re.compile(rb"-?[0-9]+")
_BIG_NUMBER = re.compile(rb"(?<![-+.0-9eE])-?+[0-9]{16,}+(?![.eE])")

# Digits become 0, what may stand between two of one number a point, what may stand before a number a comma; brackets
# stay, and all else is an x.
_OUTLINE = bytes(
    ord("0") if byte in b"0123456789" else ord(".") if byte in b".eE+" else ord(",") if byte in b",- \t\r\n"
    else byte if byte in b"[]" else ord("x") for byte in range(256)
)  # fmt: skip
_BIG = b"0" * _DIGITS
# Short lists as nearly everybody writes them: of numbers, of lists of numbers, of texts.
_SHORT = 512
_SMALL_NUMBER = rb"-?+[0-9]{1,15}+(?![0-9])[.0-9eE+-]*+"
_SMALL_NUMBERS = rb"%b(?:, ?+%b)*+" % (_SMALL_NUMBER, _SMALL_NUMBER)
_USUAL = re.compile(
    rb'\[(?:%b|(\[%b\](?:, ?+\[%b\])*+)|("[^"\\]*+"(?:, ?+"[^"\\]*+")*+))\]'
    % (_SMALL_NUMBERS, _SMALL_NUMBERS, _SMALL_NUMBERS)
)
_USUAL_FORMS = (b"[n]", b"[[n]]", b"[s]")


def scan(form: bytes, text: bytes | memoryview, start: int, stop: int, in_detail: bool) -> bytes | None:
    """The form of what came before and of `text` from `start` to `stop`.

    `form` is that of what came before, empty if nothing did. A text may be cut at a comma, which neither piece needs to
    have, or within a string that is a value, between two characters: then the form ends in a quote. Of what is no JSON
    the form is anything.

    None for a form of more than `LONGEST` bytes, `DEEPEST` levels or `MOST_ROWS` rows, for a name that is cut, and,
    unless `in_detail`, for a whole number of 16 digits or more.
    """
    if not form and not in_detail and stop - start <= _SHORT:
        usual = _USUAL.fullmatch(text, start, stop)
        if usual is not None:
            return _USUAL_FORMS[usual.lastindex or 0]
    piece = bytes(text[start:stop])
    if not in_detail:
        outline = piece.translate(_OUTLINE)
        # From behind, as Python then looks for the comma first.
        if b"x" not in outline and (b"," + outline.replace(b"[", b",")).rfind(b"," + _BIG) < 0:
            if not form and outline.startswith(b"[[") and outline.endswith(b"0]]"):
                rows = 1 if outline.find(b"[", 2) < 0 else outline.count(b"[") - 1
                if rows == 1 or outline.count(b"0],[") + outline.count(b"0],,[") == rows - 1:
                    return b"[[n]]"
            if form.endswith(b"[n") and b"[" not in outline and b"]" not in outline:
                return form
    try:
        return _Scan(form, in_detail).look(piece)
    except _NoForm:
        return None


class _NoForm(Exception):
    """There is none that can be told."""


class _Scan:
    # State: the form so far; of each list or object that is open, and of the text itself, where in the form it begins,
    # and of a list where its last value does, -1 if it has none, of others _OBJECT; the forms of _rows, and where that
    # of rows that are numbers is, 0 if there is none.
    def __init__(self, form: bytes, in_detail: bool) -> None:
        self._in_detail = in_detail
        self._form = bytearray()
        self._begins, self._last = [0], [_OBJECT]
        self._rows: set[bytes] = set()
        self._number = 0
        tokens = _FORM_TOKEN.findall(form)
        self._is_in_string = tokens[-1:] == [b'"']  # a value's: names are never cut
        for token in tokens[:-1] if self._is_in_string else tokens:
            if token in _BRACKETS:
                self._take(token)
            elif token[0] == _QUOTE:
                self._put(token)
            else:
                self._put_value(token)

    def look(self, text: bytes) -> bytes:
        at = 0
        if self._is_in_string:
            rest = _REST_OF_STRING.match(text)
            if rest is None:
                return bytes(self._form + b'"')
            at = rest.end()
        tokens = _TOKEN.findall(text, at)
        is_cut = bool(tokens) and tokens[-1][0] == _QUOTE and not _STRING.match(tokens[-1])
        form, kinds, open_ones = self._form, _KINDS, self._last
        for token in tokens[:-1] if is_cut else tokens:
            kind = kinds.get(token[0])
            if kind is None:
                self._take(token)
            elif token[-1] == _COLON:
                self._put(token[:-1].rstrip(_SPACE))
            elif kind == b"n" and (self._in_detail or len(token) >= _DIGITS):
                self._put_numbers(token)
            elif open_ones[-1] == _OBJECT and len(form) < LONGEST:
                form += kind
            else:
                self._put_value(kind)
        if is_cut:
            if len(open_ones) > 1 and open_ones[-1] == _OBJECT and form[-1] != _QUOTE:
                raise _NoForm  # within a name
            self._put_value(b"s")
            form += b'"'
        return bytes(form)

    def _take(self, bracket: bytes) -> None:
        if bracket in (b"[", b"{"):
            if len(self._last) > DEEPEST:
                raise _NoForm
            self._begins.append(len(self._form))
            self._last.append(_OBJECT if bracket == b"{" else -1)
            self._put(bracket)
        else:
            if len(self._last) == 1:
                raise _NoForm
            self._put(bracket)
            self._last.pop()
            self._end_value(self._begins.pop())

    def _put(self, token: bytes) -> None:
        if len(self._form) + len(token) > LONGEST:
            raise _NoForm
        self._form += token

    def _put_value(self, kind: bytes) -> None:
        self._put(kind)
        self._end_value(len(self._form) - 1)

    def _put_numbers(self, numbers: bytes) -> None:
        """One, or several with commas between them, in a list."""
        if not self._in_detail:
            if _BIG_NUMBER.search(numbers):
                raise _NoForm
            self._put_value(b"n")
            return
        for number in _NUMBER.findall(numbers):
            self._put_value(bytes((_NUMBERS | _bits(number),)))

    def _end_value(self, at: int) -> None:
        """A value is complete, whose form begins at a place of the form: one that is as the last one is left out."""
        last, form = self._last[-1], self._form
        if last == _OBJECT:
            return
        if len(self._last) == 2:
            self._end_row(at)
        elif last >= 0 and at - last == 1 == len(form) - at and _is_number(form[last]) and _is_number(form[at]):
            form[last] |= form[at]
            del form[at:]
        elif last >= 0 and form[last:at] == form[at:]:
            del form[at:]
        else:
            self._last[-1] = at

    def _end_row(self, at: int) -> None:
        """The same of a row: one that is as any one before is left out."""
        row = bytes(self._form[at:])
        if len(row) == 1 and _is_number(row[0]):
            if self._number:
                self._form[self._number] |= row[0]
                del self._form[at:]
            else:
                self._number = at
        elif row in self._rows:
            del self._form[at:]
        elif len(self._rows) == MOST_ROWS:
            raise _NoForm
        else:
            self._rows.add(row)


def _is_number(byte: int) -> bool:
    return byte == ord("n") or byte & 0xE0 == _NUMBERS


def _bits(number: bytes) -> int:
    if not _WHOLE_NUMBER.fullmatch(number):
        return Bits.FRACTION
    bits = Bits.WHOLE | (Bits.NEGATIVE if number.startswith(b"-") else 0)
    value = int(number) if len(number) <= _MOST_DIGITS else 1 << 64
    if _LEAST <= value <= _MOST:
        return bits
    return bits | (Bits.UNSIGNED if 0 <= value < 1 << 64 else Bits.HUGE)
