"""A tensor's `data` in JSON: how many elements are in it, and where they are, without reading any of them.

All of it speaks of valid JSON lists. In one with nothing but numbers, literals and lists, commas tell the number of
elements: a tree of lists has one leaf more than it has commas, counting an empty list as a leaf. Strings and objects
may hide commas and brackets, so those are told apart by a decoder.

In batches where some callers speak JSON and some binary, data are converted. The meaning is that of a server which
reads a number as a double, or as an integer of 64 bits, and casts it. Where servers differ or a cast would lose
something - out of range, a number for a string, NaN - nothing is converted: `errors.NotMergeable` sends the caller on
alone, and the predictor says what it thinks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, incremental_scan, json_rows, steps, v2

_decode: Final = msgspec.json.Decoder(msgspec.Raw).decode  # checks that a text is one JSON value, and nothing else
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SPACE: Final = b" \t\r\n"
_OPENING: Final = 0x5B  # [
_CLOSING: Final = 0x5D  # ]
_QUOTE: Final = 0x22  # numbers, as all four: looking for one is faster than for bytes
_BRACE: Final = 0x7B  # {
_NUMERIC: Final = b"0123456789.-+eE "
_BEGIN_NUMBERS: Final = b"0123456789-"
_END_NUMBERS: Final = b"0123456789"
_NO_ELEMENT: Final = (b"", b",", b"[", b"]")
BLANK_OR_LIST: Final = b"[ \t\r\n"
_EDGE: Final = 16  # few write more spaces than that
_OPENINGS: Final = re.compile(rb"[\[ \t\r\n]*")

# Rows of so many elements are found by their ends, narrower ones by their elements.
_WIDE: Final = 16
_FEW: Final = 8
STEP: Final = 512 * 1024
"""Bytes that are looked at in one step."""
WORTH_A_VIEW: Final = 64 * 1024
"""Bytes from which on a view costs less than a copy."""
_PIECE: Final = 64 * 1024  # bytes that are cut up in one step
_ROWS_A_STEP: Final = 8 * 1024
_MOST_ROWS: Final = 128 * 1024  # more would take much memory, and are elements rather than rows

# Each level of lists is read once more where strings are in it.
_DEEPEST: Final = 16

_FLAT: Final = {
    name: msgspec.json.Decoder(list[kind.json_type])  # type: ignore[name-defined]
    for name, kind in v2.DATATYPES.items()
    if kind.json_type is not None
}


def is_list(text: v2.Data) -> bool:
    """Whether a text is one JSON list, with nothing before or after it; what `beyond_json` knows counts as JSON."""
    if not text or text[0] != _OPENING or text[-1] != _CLOSING:
        return False
    try:
        _decode(text)
    except msgspec.MsgspecError:
        mask = steps.at_once(beyond_json.masked(bytes(text)))
        return mask is not None and is_list(mask) and _is_utf8(text)
    except RecursionError:
        return False
    return (type(text) is bytes and text.isascii()) or _is_utf8(text)


def _is_utf8(text: v2.Data) -> bool:
    try:
        steps.at_once(json_rows.check_utf8(text))
    except errors.BadRequest:
        return False
    return True


def outline(elements: int) -> bytes:
    """What is left of a flat list of so many numbers, at least one, without the numbers."""
    return b"[%b]" % (b"," * (elements - 1))


def is_flat(data: v2.Data, outlined: bytes) -> steps.Steps[bool]:
    """Whether a text has this outline.

    One that has, but is none (`[1,,2]`, `[1-]`), has as many commas as the list it claims to be: joined with others it
    makes their list invalid, but never moves an element to another place. Looking closer takes twice as long.
    """
    at = 0
    for start in range(0, len(data), STEP):
        if start:
            yield
        piece = bytes(data[start : start + STEP]).translate(None, _NUMERIC)
        if not outlined.startswith(piece, at):
            return False
        at += len(piece)
    return at == len(outlined) and _has_clean_ends(data)


def is_small_and_flat(data: v2.Data, outlined: bytes) -> bool:
    """The same for some kilobytes, in one go: it is looked for in nearly every request."""
    text = data if type(data) is bytes else bytes(data)
    return text.translate(None, _NUMERIC) == outlined and _has_clean_ends(text)


def _has_clean_ends(text: v2.Data) -> bool:
    if text[1] in _BEGIN_NUMBERS and text[-2] in _END_NUMBERS:
        return True
    first, last = bytes(text[1:_EDGE]).lstrip(b" ")[:1], bytes(text[-_EDGE:-1]).rstrip(b" ")[-1:]
    return first not in _NO_ELEMENT and last not in _NO_ELEMENT


def is_plain(text: v2.Data) -> bool:
    """Whether there are neither strings nor objects in it."""
    return _QUOTE not in text and _BRACE not in text


def has_strings(data: v2.Data, most: int) -> bool:
    """Whether there may be more than so many strings in it: quotes within strings count as well."""
    return bytes(data).count(b'"') > 2 * most


def count(data: v2.Data) -> int:
    """Elements of a list, however it is nested.

    Raises `errors.Unbatchable` for strings or objects in more than 16 lists.
    """
    text = data if type(data) is bytes else bytes(data)
    if _QUOTE in text or _BRACE in text:
        return len(_items(text))
    commas = text.count(b",")
    if text.find(b"[", 1) >= 0:
        return commas + 1 - _empty_lists(text)
    return commas + 1 if commas or text[1:-1].strip(_SPACE) else 0


def depth(text: bytes) -> int:
    """How many lists its first element is in, 1 for a flat list."""
    found = _OPENINGS.match(text)
    return found[0].count(b"[") if found else 0


def leaves(text: bytes) -> list[bytes]:
    """The elements of a list, in order, as they were written; raises `errors.Unbatchable` as `count` does."""
    if not is_plain(text):
        return _items(text)
    found = text.translate(None, b"[] \t\r\n").split(b",")
    return found if all(found) else [each for each in found if each]


def rows(data: v2.Data, count: int, width: int) -> steps.Steps[list[bytes]]:
    """The elements of a list as so many rows of the same width, each with commas between its elements."""
    text, last = bytes(data), len(data) - 1
    if not width:
        return [b""] * count
    found: list[bytes] = []
    if not is_plain(text) or text.find(b"[", 1) >= 0:
        return _joined(leaves(text), width)
    if width >= _WIDE:  # no element is touched
        at, rested, size = 1, 1, last // (count * width) + 1  # of an element, as a first guess
        for _ in range(count - 1):
            end = _skip(text, at, width, size)
            found.append(text[at : end - 1])
            at = end
            if at - rested >= _PIECE:
                rested = at
                yield
        return [*found, text[at:last]]
    if len(text) <= _PIECE:
        return _joined(text[1:last].split(b","), width)
    left: list[bytes] = []
    for piece in pieces(text, 1, last):
        if left or found:
            yield
        left += piece.split(b",")
        whole = len(left) - len(left) % width
        found += _joined(left[:whole], width)
        left = left[whole:]
    return found


def pieces(text: bytes, at: int, stop: int) -> Iterator[bytes]:
    """What is between two places, cut at commas into pieces that take a step each; these commas are left out."""
    while True:
        cut = text.find(b",", at + _PIECE, stop)
        yield text[at : stop if cut < 0 else cut]
        if cut < 0:
            return
        at = cut + 1


def _joined(elements: list[bytes], width: int) -> list[bytes]:
    return elements if width == 1 else list(map(b",".join, zip(*[iter(elements)] * width, strict=True)))


def _skip(text: bytes, at: int, commas: int, size: int) -> int:
    """Where the text goes on after so many commas, of which there are enough."""
    while commas > _FEW:
        step = max(1, commas * size // 2)
        passed = text.count(b",", at, at + step)
        while passed >= commas:  # the last one is looked for below, to be right behind it
            step //= 2
            passed = text.count(b",", at, at + step)
        at += step
        commas -= passed
    for _ in range(commas):
        at = text.index(b",", at) + 1
    return at


# --- lists in bodies --------------------------------------------------------------------------------------------


class Looked(NamedTuple):
    """A large list that was looked through: how many `elements` it has, and its rows if these are lists or strings."""

    elements: int
    rows: json_rows.Rows | None


def data_at(body: bytes, start: int, stop: int) -> v2.Data:
    """What is there: a view of much, a copy of little."""
    return body[start:stop] if stop - start < WORTH_A_VIEW else memoryview(body)[start:stop]


def checked_count(text: v2.Data) -> int:
    """Elements of a text, -1 if it is no list; raises as `count` does."""
    if text[1:2] == b'"' and type(text) is bytes and text.isascii() and _BRACE not in text and text.find(b"[", 1) < 0:
        try:
            return len(_ITEMS.decode(text)) if text[0] == _OPENING and text[-1] == _CLOSING else -1
        except msgspec.DecodeError:
            pass  # half a character is in it, or it is malformed
    return count(text) if is_list(text) else -1


def look(body: bytes, start: int, text: v2.Data, numbers: int) -> steps.Steps[Looked | None]:
    """What is in a text, which begins at a place in a body; None for what is neither a list nor flat (`is_flat`).

    `numbers` is how many are expected, 0 for anything else. Of what has to be looked at in one go, with objects or with
    strings in lists of lists, it tells no elements (-1).
    """
    if 0 < numbers < len(text) and (yield from is_flat(text, outline(numbers))):
        return Looked(numbers, None)
    if len(text) > STEP and text[0] == _OPENING and text[-1] == _CLOSING:
        found = yield from _look_in_pieces(body, start, start + len(text))
        if found is not None:
            return found
    return Looked(-1, None) if is_list(text) else None


def _look_in_pieces(body: bytes, start: int, stop: int) -> steps.Steps[Looked | None]:
    """The same of a list; None if that has to be found at once."""
    if body[start + 1] not in BLANK_OR_LIST and body[start + 1] != _QUOTE:
        elements = yield from _count_flat(body, start + 1, stop - 1)
        return None if elements is None else Looked(elements, None)
    scan = yield from _scanned(body, start, stop)
    if scan is None:
        mask = yield from beyond_json.masked(body)
        scan = None if mask is None else (yield from _scanned(mask, start, stop))
    if scan is None:
        return None
    rows = None if scan.has_too_many else scan.rows(body)
    if body.find(b'"', start, stop) < 0:
        elements = yield from _count_nested(body, start, stop)
        return None if elements is None else Looked(elements, rows)
    if rows is None or body.count(b'"', start, stop) > 2 * v2.MOST_STRINGS:
        return None
    for first in range(0, len(rows), _ROWS_A_STEP):
        if any(each[0] in (_OPENING, _BRACE) for each in rows[first : first + _ROWS_A_STEP]):
            return None
        yield
    return Looked(len(rows), rows)


def _scanned(text: bytes, start: int, stop: int) -> steps.Steps[incremental_scan.IncrementalScan | None]:
    """The list from `start` to before `stop`; None if there is another, or none that can be cut."""
    found = yield from incremental_scan.scan_in_steps(text, start, stop, _MOST_ROWS)
    return found if found is not None and found.end == stop else None


def _count_flat(body: bytes, at: int, stop: int) -> steps.Steps[int | None]:
    """Elements of a list of numbers and literals, without its brackets; None if it is none."""
    elements = 0
    for piece in pieces(body, at, stop):
        if not piece.isascii() or not is_plain(piece) or _OPENING in piece or not piece.strip(_SPACE):
            return None
        try:
            _decode(b"[%b]" % piece)
        except msgspec.DecodeError:
            return None
        elements += piece.count(b",") + 1
        yield
    return elements


def _count_nested(body: bytes, start: int, stop: int) -> steps.Steps[int | None]:
    """`count` for lists of lists without strings; None if there are objects in it."""
    commas = empty = 0
    before = b""
    for at in range(start, stop, STEP):
        piece = body[at : min(stop, at + STEP)]
        if _BRACE in piece:
            return None
        commas += piece.count(b",")
        packed = piece.translate(None, _SPACE)
        empty += packed.count(b"[]") + (before == b"[" and packed[:1] == b"]")
        before = packed[-1:] or before
        yield
    return commas + 1 - empty if commas else None


def _empty_lists(text: bytes) -> int:
    if b" " in text or b"\n" in text or b"\t" in text or b"\r" in text:
        text = text.translate(None, _SPACE)
    return text.count(b"[]")


def items(data: v2.Data) -> list[bytes]:
    """What is in a list, as it was written; raises `msgspec.DecodeError` for what is none."""
    try:
        return list(map(bytes, _ITEMS.decode(data)))
    except msgspec.DecodeError:
        text = bytes(data)
        mask = steps.at_once(beyond_json.masked(text))
        if mask is None:
            raise
        return beyond_json.sliced(text, 0, mask, _ITEMS.decode(mask))


def _items(text: bytes) -> list[bytes]:
    found = items(text)
    for _ in range(_DEEPEST):
        if not any(each.startswith(b"[") for each in found):
            return found
        lists = [items(each) if each.startswith(b"[") else [each] for each in found]
        found = [each for inner in lists for each in inner]
    raise errors.Unbatchable(errors.NotBatched.SHAPE)


# --- to binary and back -----------------------------------------------------------------------------------------


def to_binary(name: str, datatype: str, text: v2.Data) -> steps.Steps[bytes]:
    """The elements of a JSON list, flat or nested, in binary; `name` is the tensor's.

    Raises `errors.NotMergeable` for what is no element of the datatype.
    """
    if datatype not in _FLAT:
        raise _not_convertible(name, f"{datatype} has no form in JSON")
    kind = v2.DATATYPES[datatype]
    packed = yield from packed_in_pieces(datatype, text)
    if packed is not None:
        return packed
    try:
        values = _values(datatype, text)
        if kind.size is None:
            return v2.pack(map(str.encode, values))
        return struct.pack(f"<{len(values)}{kind.code}", *values)
    except (struct.error, OverflowError, UnicodeError, msgspec.MsgspecError) as error:
        raise _not_convertible(name, str(error)) from None


def packed_in_pieces(datatype: str, data: v2.Data) -> steps.Steps[bytes | None]:
    """The same for a large list of numbers; None for anything else, in which something may be wrong."""
    if len(data) < _PIECE or datatype not in _FLAT or datatype == v2.BYTES or not is_plain(data):
        return None
    text = bytes(data)
    layout, decode = v2.DATATYPES[datatype].code, _FLAT[datatype].decode
    found: list[bytes] = []
    for piece in pieces(text, 0, len(text)):
        try:
            values = decode(b"[%b]" % piece.translate(None, b"[]"))
            found.append(struct.pack(f"<{len(values)}{layout}", *values))
        except (struct.error, OverflowError, msgspec.MsgspecError):
            return None
        yield
    return b"".join(found)


def to_json(name: str, datatype: str, data: v2.Data) -> bytes:
    """Binary elements as those of a flat JSON list, without its brackets; an FP32 is written as the double it equals.

    Raises `errors.NotMergeable` for NaN and infinity, for BYTES that are not UTF-8, and for datatypes without a form
    in JSON. BYTES have to be whole (`v2.row_ends`).
    """
    if datatype not in _FLAT:
        raise _not_convertible(name, f"{datatype} has no form in JSON")
    kind = v2.DATATYPES[datatype]
    if kind.size is None:
        try:
            return msgspec.json.encode([str(each, "utf-8") for each in v2.elements(data)])[1:-1]
        except UnicodeDecodeError as error:
            raise _not_convertible(name, str(error)) from None
    text = msgspec.json.encode(struct.unpack(f"<{len(data) // kind.size}{kind.code}", data))
    if kind.json_type is float and b"null" in text:
        raise _not_convertible(name, "NaN and infinity have no form in JSON")
    return text[1:-1]


def _values(datatype: str, text: v2.Data) -> list[Any]:
    decode: Callable[[v2.Data], list[Any]] = _FLAT[datatype].decode
    try:
        return decode(text)
    except msgspec.ValidationError:  # nested, if it is right at all
        return decode(b"[%b]" % b",".join(leaves(bytes(text))))


def _not_convertible(name: str, why: str) -> errors.NotMergeable:
    return errors.NotMergeable(f"tensor {name!r} does not go with others in one call: {why}")
