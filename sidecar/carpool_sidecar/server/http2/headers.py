"""Header blocks (HPACK, RFC 7541): read with the connection's table, written without one.

The tables are those of the library hpack. Its decoder copies the rest of a block for every field
and was measured at half of a small call's time, so the walk over a block is our own; tests hold the two against each
other. What is sent never enters the receiver's dynamic table: the same fields are then always the same bytes, and
answers, which hardly differ, are encoded once.
"""

from __future__ import annotations

import functools

import hpack
from hpack import table

from carpool_sidecar.server.http2 import errors, heads, huffman, streams

_STATIC = table.HeaderTable.STATIC_TABLE
_FIRST_DYNAMIC = len(_STATIC) + 1
_FIELD_OVERHEAD = 32
"""Bytes that each field counts on top of its own (RFC 7541, 4.1)."""

_MOST_FIELDS = 128
"""Fields of a head, as in HTTP/1 here."""

_MOST_KNOWN = 16 * 1024
"""Bytes of fields, counted as above, that are remembered per connection by the blocks that say them: a client that has
no more to say than this repeats itself, and idle connections keep theirs. In memory it is four times as much."""

_LONGEST_KNOWN = 4 * 1024
"""Of one block: enough for a token of some length."""

_MOST_DIGITS = 5
"""Bytes of a number after its first one; 2**32 and more is an error anyway."""

_MOST_SHORT = 128
"""Bytes of a string that is worth remembering."""

_HARD_FACTOR = 4
"""A list of fields so many times the limit is not even read to its end, which costs the connection."""

NO_TABLE = b"\x20"
"""Says, at the beginning of the first block sent, that the sender will use no dynamic table."""


class Decoder:
    """Reads the header blocks of one connection, in order: every block that arrives must go through here."""

    # State: _table, the dynamic one. _known: requests by their block, as long as _table stays as it is; the bytes of
    # their fields are _known_size.
    __slots__ = ("_known", "_known_size", "_most", "_table", "produced")

    def __init__(self, most: int) -> None:
        self._most = most
        self._table = table.HeaderTable()
        self._known: dict[bytes, heads.Request] = {}
        self._known_size = 0
        self.produced = 0
        """Bytes of fields, counted as limits count them, that blocks have become so far: a byte can become 4 kB."""

    def request(self, block: bytes) -> heads.Request:
        """The head of a request. Raises `StreamFault` if it is malformed, `ConnectionFault` if it is not HPACK."""
        known = self._known.get(block)
        if known is not None:
            return known
        fields, size, is_table_changed = self._decode(block)
        request = heads.request(self._limited(fields, size))
        cost = size + len(block)
        if not is_table_changed and cost <= _LONGEST_KNOWN and self._known_size + cost <= _MOST_KNOWN:
            self._known[block] = request
            self._known_size += cost
        return request

    def trailers(self, block: bytes) -> None:
        """Check fields after a body, which nobody asks for. Raises as `request`."""
        fields, size, _ = self._decode(block)
        heads.check_trailers(self._limited(fields, size))

    def skip(self, block: bytes) -> None:
        """Take note of a block that nobody wants. Raises `ConnectionFault`."""
        self._decode(block)

    def _limited(self, fields: list[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
        if size > self._most:
            raise errors.StreamFault(
                errors.Code.ENHANCE_YOUR_CALM, f"header fields of {size} bytes, more than {self._most}"
            )
        if len(fields) > _MOST_FIELDS:
            raise errors.StreamFault(
                errors.Code.ENHANCE_YOUR_CALM, f"{len(fields)} header fields, more than {_MOST_FIELDS}"
            )
        return fields

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int, bool]:
        try:
            found = self._walk(block)
        except (hpack.HPACKError, IndexError) as error:
            raise errors.ConnectionFault(errors.Code.COMPRESSION_ERROR, f"header block: {error}") from error
        self.produced += found[1]
        if found[2]:
            self._known.clear()
            self._known_size = 0
        return found

    def _walk(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int, bool]:
        """The fields, their size as limits count it, and whether the table has changed."""
        fields: list[tuple[bytes, bytes]] = []
        most = self._most * _HARD_FACTOR
        entries = self._table.dynamic_entries
        is_table_changed = False
        at = size = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first > 0x80:
                index, at = (first & 0x7F, at + 1) if first != 0xFF else _integer(block, at, 0x7F)
                field = _STATIC[index - 1] if index < _FIRST_DYNAMIC else entries[index - _FIRST_DYNAMIC]
            elif first & 0xE0 == 0x20:
                at = self._resize(block, at, is_allowed=not fields)
                is_table_changed = True
                continue
            elif first & 0x40:
                field, at = self._literal(block, at, 0x3F)
                self._table.add(*field)
                is_table_changed = True
            elif first == 0x80:
                raise hpack.HPACKDecodingError("an indexed field without an index")
            else:
                field, at = self._literal(block, at, 0x0F)
            fields.append(field)
            size += len(field[0]) + len(field[1]) + _FIELD_OVERHEAD
            if size > most or len(fields) > _MOST_FIELDS * _HARD_FACTOR:
                raise errors.ConnectionFault(errors.Code.ENHANCE_YOUR_CALM, "far too many header fields, or too long")
        return fields, size, is_table_changed

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[tuple[bytes, bytes], int]:
        index = block[at] & mask
        if index == mask:
            index, at = _integer(block, at, mask)
        else:
            at += 1
        if not index:
            name, at = _string(block, at)
        elif index < _FIRST_DYNAMIC:
            name = _STATIC[index - 1][0]
        else:
            name = self._table.dynamic_entries[index - _FIRST_DYNAMIC][0]
        value, at = _string(block, at)
        return (name, value), at

    def _resize(self, block: bytes, at: int, *, is_allowed: bool) -> int:
        size, at = _integer(block, at, 0x1F)
        if not is_allowed or size > table.HeaderTable.DEFAULT_SIZE:
            raise hpack.InvalidTableSizeError(f"a table size of {size} is not allowed here")
        self._table.maxsize = size
        return at


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number whose first byte shares the bits above `mask` with others, and where it ends."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in range(0, 7 * _MOST_DIGITS, 7):
        digit = block[at]
        at += 1
        number += (digit & 0x7F) << shift
        if digit < 0x80:
            return number, at
    raise hpack.HPACKDecodingError("a number of too many bytes")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    size, at = (first & 0x7F, at + 1) if first & 0x7F != 0x7F else _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise hpack.HPACKDecodingError("a string longer than its block")
    text = block[at:end]
    return (_plain(text) if first & 0x80 else text), end


def _plain(text: bytes) -> bytes:
    return _short(text) if len(text) <= _MOST_SHORT else huffman.decode(text)


# Fields that leave the table for new deadlines come back; deadlines repeat themselves.
_short = functools.lru_cache(maxsize=4096)(huffman.decode)


@functools.lru_cache(maxsize=256)
def block(fields: streams.Headers) -> bytes:
    """These fields as a header block that needs no table."""
    return b"".join([_field(*pair) for pair in fields])


def _field(name: bytes, value: bytes) -> bytes:
    if (name, value) in _STATIC:
        return bytes((0x80 | _STATIC.index((name, value)) + 1,))
    return _name(name) + _number(len(value), 0x7F) + value


@functools.lru_cache(maxsize=1024)
def _name(name: bytes) -> bytes:
    """The beginning of a literal field without indexing."""
    index = next((at for at, (known, _) in enumerate(_STATIC, 1) if known == name), 0)
    return _number(index, 0x0F) + (b"" if index else _number(len(name), 0x7F) + name)


def _number(number: int, mask: int) -> bytes:
    if number < mask:
        return bytes((number,))
    digits = bytearray((mask,))
    number -= mask
    while number > 0x7F:
        digits.append(0x80 | number & 0x7F)
        number >>= 7
    digits.append(number)
    return bytes(digits)
