"""Huffman codes are read as the library hpack reads them."""

from __future__ import annotations

from collections.abc import Callable

import hpack
import pytest
from hpack import huffman, huffman_constants, huffman_table
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.server.http2 import headers

ENCODER = huffman.HuffmanEncoder(huffman_constants.REQUEST_CODES, huffman_constants.REQUEST_CODES_LENGTH)


def outcome(decode: Callable[[bytes], bytes], code: bytes) -> bytes | None:
    try:
        return decode(code)
    except hpack.HPACKDecodingError:
        return None


@given(st.binary(max_size=200))
def test_every_text_comes_back(text: bytes) -> None:
    assert headers.huffman_decoded(ENCODER.encode(text)) == text


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_as_by_the_library(code: bytes) -> None:
    assert outcome(headers.huffman_decoded, code) == outcome(huffman_table.decode_huffman, code)


@pytest.mark.parametrize("code", [b"\xff", b"\xff\xff\xff\xff", b"\x1f\xff", b"\x00"])
def test_endings_are_judged_as_by_the_library(code: bytes) -> None:
    assert outcome(headers.huffman_decoded, code) == outcome(huffman_table.decode_huffman, code)
