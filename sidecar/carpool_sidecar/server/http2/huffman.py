"""Huffman-coded strings (RFC 7541, 5.2), a byte at a time.

The library's decoder takes half a byte at a time, at about 1 µs a byte: one header block of 64 KiB would hold the event
loop for 60 ms. Its table serves here to make steps of whole bytes, each when it is first needed.
"""

from __future__ import annotations

import hpack
from hpack import huffman_table

_COMPLETE, _EMIT, _FAIL = huffman_table.HUFFMAN_COMPLETE, huffman_table.HUFFMAN_EMIT_SYMBOL, huffman_table.HUFFMAN_FAIL


class _Steps(dict[int, tuple[int, bytes, bool]]):
    """By state << 8 | byte: the next state << 8, the text that is complete with it, and whether all may end there."""

    def __missing__(self, key: int) -> tuple[int, bytes, bool]:
        state, byte = key >> 8, key & 0xFF
        text, flags = bytearray(), 0
        for half in (byte >> 4, byte & 0x0F):
            state, flags, symbol = huffman_table.HUFFMAN_TABLE[state << 4 | half]
            if flags & _FAIL:
                raise hpack.HPACKDecodingError("a string is not valid Huffman code")
            if flags & _EMIT:
                text.append(symbol)
        step = self[key] = (state << 8, bytes(text), bool(flags & _COMPLETE))
        return step


_steps = _Steps()


def decode(code: bytes) -> bytes:
    """The text of a code. Raises `hpack.HPACKDecodingError`."""
    state, is_complete = 0, True
    pieces = []
    for byte in code:
        state, text, is_complete = _steps[state | byte]
        pieces.append(text)
    if not is_complete:
        raise hpack.HPACKDecodingError("a string ends in the middle of its Huffman code")
    return b"".join(pieces)
