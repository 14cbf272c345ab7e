"""What the rows of a request have in common, for servers that make one table of all rows of a call.

pandas and numpy choose the type of a column by all its values: a whole number among fractions becomes a fraction, and
beyond 2**53 another number; a number among texts becomes a text; where a list is too short, or a value is null, there
is a gap. So only requests whose rows have the same members, of the same kinds, may meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import forms, json_rows

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])

_WHOLE, _LARGE, _FRACTION, _TEXT, _TRUTH, _NULL, _LIST, _MEMBERS = (1 << place for place in range(8))
_MARKS = {ord('"'): _TEXT, ord("t"): _TRUTH, ord("f"): _TRUTH, ord("n"): _NULL, ord("["): _LIST, ord("{"): _MEMBERS}
_NESTED = _LIST | _MEMBERS
# More digits may not fit 64 bits, and numpy takes another type for those.
_DIGITS = 18
# Names are text of callers, and what they are part of is kept.
_LONG = 1024
# Each is looked at, which takes half a microsecond, so 64 MB of them would hold the event loop for half a minute.
_MOST_VALUES = 20_000


def of(rows: Sequence[msgspec.Raw]) -> Hashable:
    """Equal for rows with the same names or number of members, and the same kinds of values in each place, those of one
    form where they are lists or objects.

    Raises `errors.Unbatchable` for rows that differ in their names, in their number of members, or in being lists or
    objects at all, and for rows with more than 20,000 values, as far as commas tell.
    """
    if sum([bytes(row).count(b",") for row in rows]) > _MOST_VALUES:
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    marks = {_mark(row) for row in rows}
    if not marks & {_LIST, _MEMBERS}:
        return _together(marks)
    if len(marks) > 1:
        raise errors.Unbatchable(errors.NotBatched.SHAPE)
    if marks == {_LIST}:
        values: list[Sequence[msgspec.Raw]] = [json_rows.LIST.decode(row) for row in rows]
        names: Iterable[Hashable] = {len(each) for each in values}
    else:
        objects = [_OBJECT.decode(row) for row in rows]
        values = [tuple(each.values()) for each in objects]
        names = {tuple(each) for each in objects}
    (name, *others) = names
    if others:
        raise errors.Unbatchable(errors.NotBatched.SHAPE)
    by_column = list(zip(*values, strict=True))
    columns = bytes([_together(map(_mark, column)) for column in by_column])
    inner = _together(_inside(value) for each in values for value in each) if any(m & _LIST for m in columns) else 0
    nested = b""
    if any(m & _NESTED for m in columns):
        found = [sorted({forms.of(b"[%b]" % value) for value in each if _mark(value) & _NESTED}) for each in by_column]
        nested = hashlib.blake2b(repr(found).encode(), digest_size=16).digest()
    if isinstance(name, tuple) and sum(map(len, name)) > _LONG:
        name = hashlib.blake2b(repr(name).encode(), digest_size=16).digest()
    return name, columns, inner, nested


def _mark(value: msgspec.Raw) -> int:
    """The kind of a value."""
    view = memoryview(value)
    mark = _MARKS.get(view[0])
    if mark is not None:
        return mark
    text = bytes(view)
    if b"." in text or b"e" in text or b"E" in text:
        return _FRACTION
    return _WHOLE if len(text) <= _DIGITS else _LARGE


def _inside(value: msgspec.Raw) -> int:
    """The kinds of everything in a list, and in lists in it; 0 for what is no list. Raises `RecursionError`."""
    if _mark(value) != _LIST:
        return 0
    return _together(_mark(each) | _inside(each) for each in json_rows.LIST.decode(value))


def _together(marks: Iterable[int]) -> int:
    found = 0
    for mark in marks:
        found |= mark
    return found
