"""Header blocks, decoded, checked and encoded: HPACK (RFC 7541), and what RFC 9113, section 8 says of requests.

The library hpack has the tables. Its decoder copies the rest of a block for every field, which was measured at half of
a small call's time, so this module walks over a block itself; tests compare both decoders. What is sent never enters
the receiver's dynamic table: the same fields are then always the same bytes, and answers, which hardly differ, are
encoded once.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NoReturn

import hpack
from hpack import huffman_table, table

from carpool.compiled import mypyc_attr
from carpool_sidecar import caches
from carpool_sidecar.server.http2 import frames

Headers = tuple[tuple[bytes, bytes], ...]
"""Fields in order, names in lower case; `:status` is the only pseudo-header, and only in an answer."""

NO_TABLE: Final = b"\x20"
"""At the beginning of the first block sent: the sender will use no dynamic table."""

_STATIC: Final = table.HeaderTable.STATIC_TABLE
_FIRST_DYNAMIC: Final = len(_STATIC) + 1
_FIELD_OVERHEAD: Final = 32
"""Bytes that each field counts beside its own (RFC 7541, 4.1)."""

_MOST_FIELDS: Final = 128
"""Fields of a head, as for HTTP/1."""

_HARD_FACTOR: Final = 4
"""A field list of more than this many times the limit is not even read to its end, which costs the connection."""

_MOST_KNOWN: Final = 16 * 1024
"""Bytes of fields that are remembered per connection by the blocks that encode them. A client that has no more to say
than this repeats itself, and idle connections keep their memory. It takes four times as much."""

_LONGEST_KNOWN: Final = 4 * 1024
"""Bytes of one remembered block: enough for a token of some length."""

_MOST_DIGITS: Final = 5
"""Bytes of a number after its first one; 2**32 and more is an error anyway."""

_MOST_SHORT: Final = 128
"""Bytes of a name or string that is worth remembering."""

_MOST_SHORT_BYTES: Final = 1024 * 1024
"""Bytes of all of these."""

_PSEUDO: Final = {b":method", b":path", b":scheme", b":authority"}
_NEEDED: Final = (b":method", b":path", b":scheme")
# Fields that describe a connection of HTTP/1.
_FORBIDDEN: Final = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
# What a name must not contain: control characters, space, capitals, a colon, 0x7f and above.
_BAD_NAME: Final = re.compile(rb"[\x00-\x20A-Z:\x7f-\xff]")


class Head(NamedTuple):
    """How a client's stream begins: a well-formed request head (RFC 9113, 8.3). `headers` has no pseudo-headers."""

    method: str
    path: str
    authority: bytes
    headers: Headers
    content_length: int | None = None


class Decoder:
    """Reads the header blocks of one connection: each block that arrives, in order, as each can change the table."""

    # State. _table: the dynamic one. _known: heads by their block while _table is unchanged.
    __slots__ = ("_known", "_most", "_table", "produced")

    def __init__(self, most: int) -> None:
        self._most = most
        self._table = table.HeaderTable()
        self._known: caches.Cache[bytes, Head] = caches.Cache("http2_heads", _MOST_KNOWN, _LONGEST_KNOWN)
        self.produced = 0
        """Bytes of all decoded fields, counted as limits count them: one byte of a block can become 4 kB."""

    def request(self, block: bytes) -> Head:
        """The head of a request. Raises `Http2StreamError` if it is malformed, `Http2ConnectionError` if not HPACK."""
        known = self._known.get(block)
        if known is not None:
            return known
        fields, size, is_table_changed = self._decode(block)
        head = request_head(self._limited(fields, size))
        if not is_table_changed:
            self._known.put(block, head, size + len(block))
        return head

    def trailers(self, block: bytes) -> None:
        """Check fields after a body, which nothing uses. Raises as `request`."""
        fields, size, _ = self._decode(block)
        check_trailers(self._limited(fields, size))

    def skip(self, block: bytes) -> None:
        """Apply a block that nothing uses to the table. Raises `Http2ConnectionError`."""
        self._decode(block)

    def _limited(self, fields: list[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
        if size > self._most:
            _refuse(f"header fields of {size} bytes, more than {self._most}", frames.Code.ENHANCE_YOUR_CALM)
        if len(fields) > _MOST_FIELDS:
            _refuse(f"{len(fields)} header fields, more than {_MOST_FIELDS}", frames.Code.ENHANCE_YOUR_CALM)
        return fields

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int, bool]:
        try:
            found = self._walk(block)
        except (hpack.HPACKError, IndexError) as error:
            raise frames.Http2ConnectionError(frames.Code.COMPRESSION_ERROR, f"header block: {error}") from error
        self.produced += found[1]
        if found[2]:
            self._known.clear()
        return found

    def _walk(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int, bool]:
        """The fields, their size as limits count it, and whether the table changed."""
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
                raise frames.Http2ConnectionError(
                    frames.Code.ENHANCE_YOUR_CALM, "far too many header fields, or too long"
                )
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
    return _short_decoded[text] if len(text) <= _MOST_SHORT else huffman_decoded(text)


@mypyc_attr(native_class=False)
class _Steps(dict[int, tuple[int, bytes, bool]]):
    """By state << 8 | byte: the next state << 8, the text that is complete with it, and whether a string may end there.

    Steps are made of the library's table when they are first needed. The library itself decodes half a byte at a time,
    at about 1 µs a byte: one header block of 64 KiB would block the event loop for 60 ms.
    """

    def __missing__(self, key: int) -> tuple[int, bytes, bool]:
        state, byte = key >> 8, key & 0xFF
        text, flags = bytearray(), 0
        for half in (byte >> 4, byte & 0x0F):
            state, flags, symbol = huffman_table.HUFFMAN_TABLE[state << 4 | half]
            if flags & huffman_table.HUFFMAN_FAIL:
                raise hpack.HPACKDecodingError("a string is not valid Huffman code")
            if flags & huffman_table.HUFFMAN_EMIT_SYMBOL:
                text.append(symbol)
        step = self[key] = (state << 8, bytes(text), bool(flags & huffman_table.HUFFMAN_COMPLETE))
        return step


_steps: Final = _Steps()


def huffman_decoded(code: bytes) -> bytes:
    """The text of a Huffman-coded string (RFC 7541, 5.2). Raises `hpack.HPACKDecodingError`."""
    state, is_complete = 0, True
    pieces = []
    for byte in code:
        state, text, is_complete = _steps[state | byte]
        pieces.append(text)
    if not is_complete:
        raise hpack.HPACKDecodingError("a string ends in the middle of its Huffman code")
    return b"".join(pieces)


# Fields that new deadlines push out of the table come back, and deadlines repeat themselves.
_short_decoded: Final = caches.Cache("http2_texts", _MOST_SHORT_BYTES, make=huffman_decoded)


# --- requests --------------------------------------------------------------------------------------------------


def request_head(fields: list[tuple[bytes, bytes]]) -> Head:
    """The request head that these fields make. Raises `Http2StreamError`."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[tuple[bytes, bytes]] = []
    length: int | None = None
    for field in fields:
        name, value = field
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                _refuse(f"pseudo-header {name!r} is unknown, a second one, or after other fields")
            _check_value(name, value)
            pseudo[name] = value
            continue
        if not _is_allowed(name):
            _refuse(f"header name {name!r} is not allowed in HTTP/2")
        _check_value(name, value)
        if name == b"te" and value != b"trailers":
            _refuse(f"te is {value!r}; only trailers is allowed")
        if name == b"content-length":
            length = _length(value, length)
        regular.append(field)
    return _head(pseudo, tuple(regular), length)


def check_trailers(fields: list[tuple[bytes, bytes]]) -> None:
    """Raises `Http2StreamError` unless these fields may end a request."""
    for name, value in fields:
        if not _is_allowed(name):
            _refuse(f"header name {name!r} is not allowed in trailers")
        _check_value(name, value)


def _head(pseudo: dict[bytes, bytes], regular: Headers, length: int | None) -> Head:
    for name in _NEEDED:
        if not pseudo.get(name):
            _refuse(f"pseudo-header {name!r} is missing or empty")
    try:
        method, path = pseudo[b":method"].decode("ascii"), pseudo[b":path"].decode("ascii")
    except UnicodeDecodeError:
        _refuse("method and path must be ASCII")
    return Head(method, path, pseudo.get(b":authority", b""), regular, length)


def _is_allowed(name: bytes) -> bool:
    return _is_short_allowed[name] if len(name) <= _MOST_SHORT else _is_well_formed(name)


def _is_well_formed(name: bytes) -> bool:
    return bool(name) and name not in _FORBIDDEN and not _BAD_NAME.search(name)


_is_short_allowed: Final = caches.Cache("http2_names", _MOST_SHORT_BYTES, make=_is_well_formed)


def _check_value(name: bytes, value: bytes) -> None:
    # A regular expression takes thirty times as long, and a reference of one byte can mean 4 kB.
    if b"\0" in value or b"\r" in value or b"\n" in value or value != value.strip(b" \t"):
        _refuse(f"the value of {name!r} has a line break, a NUL, or white space around it")


def _length(value: bytes, before: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or before not in (None, int(value)):
        _refuse(f"content-length {value!r} is not one number")
    return int(value)


def _refuse(reason: str, code: frames.Code = frames.Code.PROTOCOL_ERROR) -> NoReturn:
    raise frames.Http2StreamError(code, reason)


# --- answers ---------------------------------------------------------------------------------------------------


def block(fields: Headers) -> bytes:
    """These fields as a header block that uses no dynamic table."""
    return _blocks[fields]


def _write_block(fields: Headers) -> bytes:
    return b"".join([_field(*pair) for pair in fields])


_blocks: Final = caches.Cache("http2_blocks", 1024 * 1024, make=_write_block)


def _field(name: bytes, value: bytes) -> bytes:
    if (name, value) in _STATIC:
        return bytes((0x80 | _STATIC.index((name, value)) + 1,))
    return _name(name) + _number(len(value), 0x7F) + value


def _name(name: bytes) -> bytes:
    """The beginning of a literal field without indexing."""
    index = _PLACES.get(name, 0)
    return _number(index, 0x0F) + (b"" if index else _number(len(name), 0x7F) + name)


_PLACES: Final = {name: at for at, (name, _) in reversed(list(enumerate(_STATIC, 1)))}


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
