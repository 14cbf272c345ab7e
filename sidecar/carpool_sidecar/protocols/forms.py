"""Which rows may be in one call: those of one form.

Many servers make one table or one array of all rows of a call. pandas takes the columns of the first row, in its
order, and leaves gaps where a row lacks one; numpy makes `1` beside `"x"` a text, `true` beside `7` a number, and a
whole number beyond 2**53 beside a fraction another number. Then what a caller gets depends on who is beside it. So
requests meet only if their rows have the same form: the names of members in order, the nesting of lists, and the kinds
of values. If a request has rows of several forms, that is one more form, and the order of its rows matters; a part of
such a request, which may begin with other rows, meets nobody.

Values, white space and the lengths of lists are no part of a form: which servers take only lists of one length shows
when they refuse others. Whole numbers and fractions are one kind, as clients write 1.0 as 1, unless a whole number in
the request may be beyond 2**53: then whole numbers, fractions, signs and sizes are told apart everywhere in it.

Of rows that a server makes one table of more has to agree (`of_table`): a column has the type that all its values fit,
so a whole number among fractions becomes a fraction, and where a list is too short, or a value is null, there is a gap.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import form_scan

scan: Final = form_scan.scan
"""The form of text in pieces: what `of` makes a digest of, or does again in detail, where it is needed."""

LONG: Final = 256
"""Bytes of a form that is not kept longer than this: names are text of callers."""

# Each number is in two lists, of which the outer one has one that is complete: rows of numbers.
_FLAT: Final = 2 | 1 << 6

_PARTS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|.', re.DOTALL)

TEXTS: Final = b"[s]"
"""The form of a list of texts."""

ANY: Final = b""
"""What stands for the form of rows of which any may meet."""

_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NESTED: Final = b"[{"
# In a table, by their first bytes: values that are no numbers, lists or objects.
_KINDS: Final = {ord('"'): b"s", ord("t"): b"b", ord("f"): b"b", ord("n"): b"0"}
_DIGITS: Final = 18  # of a whole number; more may not fit 64 bits, and numpy takes another type for those
# Each is looked at, which takes half a microsecond, so 64 MB of them would hold the event loop for half a minute.
_MOST_VALUES: Final = 20_000
# Numbers in detail without their signs, which no type of a column depends on unless they are large.
_UNSIGNED, _NEGATIVE = 4, 16  # of the bits of `form_scan`, which in C has no names for them
_SIGNLESS: Final = bytes(
    byte & ~_NEGATIVE if byte & 0xE0 == 0x80 and not byte & _UNSIGNED else byte for byte in range(256)
)


def of(text: bytes | memoryview, nesting: int = -1) -> bytes:
    """The form of rows, by the text of their list; or a digest, if it is long. The `nesting` may be known by
    `number_lists.find`.

    Raises `errors.Unbatchable` for a form of more than 64 KiB, such as that of very many lists or objects that differ.
    """
    if nesting == _FLAT:
        return b"[[n]]"
    if nesting >= 0:
        return short(of_numbers(nesting, 1) + b"]")
    found = form_scan.scan(b"", text, 0, len(text), False)
    if found is None:
        found = form_scan.scan(b"", text, 0, len(text), True)
        if found is None:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    return found if len(found) <= LONG else short(found)


def of_numbers(nesting: int, depth: int) -> bytes:
    """The form of a text up to a comma behind lists of numbers, of which `depth` are open; for `nesting` see
    `number_lists.find`."""
    leaf, begun = nesting & 63, nesting >> 6
    form = b""
    for level in range(1, depth + 1):
        inner = leaf - level
        has_values = level == depth or begun >> (level - 1) & 1
        form += b"[" + (b"[" * inner + b"n" + b"]" * inner if has_values else b"")
    return form


def short(form: bytes) -> bytes:
    """A form, or a digest if it is long: nearly everything else about a request is shorter."""
    return form if len(form) <= LONG else hashlib.blake2b(form, digest_size=16).digest()


def may_be_several(form: bytes) -> bool:
    """Whether rows that have this form together may be of more than one, each by itself; a digest does not tell."""
    depth = count = 0
    for part in _PARTS.findall(form):
        if part in b"]}":
            depth -= 1
        elif not part.startswith(b'"'):
            count += depth == 1
            depth += part in b"[{"
    return count > 1 or depth != 0 or (form != ANY and not form.startswith(b"["))


# --- tables -----------------------------------------------------------------------------------------------------


def of_table(rows: Sequence[msgspec.Raw]) -> Hashable:
    """Equal for rows with the same names or number of members, and the same kinds of values in each place, those of one
    form where they are lists or objects.

    Raises `errors.Unbatchable` for rows that differ in their names, in their number of members, or in being lists or
    objects at all, and for rows with more than 20,000 values, as far as commas tell.
    """
    if sum([bytes(row).count(b",") for row in rows]) > _MOST_VALUES:
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    begins = {memoryview(row)[0] for row in rows}
    if begins.isdisjoint(_NESTED):
        return frozenset([_kind(row) for row in rows])
    if len(begins) > 1:
        raise errors.Unbatchable(errors.NotBatched.SHAPE)
    if begins == {_NESTED[0]}:
        values: list[Sequence[msgspec.Raw]] = [_LIST.decode(row) for row in rows]
        heads: set[bytes] = {b"%d" % len(each) for each in values}
    else:
        objects = [_OBJECT.decode(row) for row in rows]
        values = [tuple(each.values()) for each in objects]
        heads = {msgspec.json.encode(list(each)) for each in objects}
    if len(heads) > 1:
        raise errors.Unbatchable(errors.NotBatched.SHAPE)
    columns = [frozenset([_kind(value) for value in column]) for column in zip(*values, strict=True)]
    return short(heads.pop()), tuple(columns)


def _kind(value: msgspec.Raw) -> bytes:
    """What a column with such a value has to have room for."""
    text = bytes(value)
    known = _KINDS.get(text[0])
    if known is not None:
        return known
    if text[0] in _NESTED:
        form = form_scan.scan(b"", b"[%b]" % text, 0, len(text) + 2, True)
        if form is None:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        parts = [part if part.startswith(b'"') else part.translate(_SIGNLESS) for part in _PARTS.findall(form)]
        return short(b"".join(parts))
    if b"." in text or b"e" in text or b"E" in text:
        return b"fraction"
    return b"whole" if len(text) <= _DIGITS else b"large"
