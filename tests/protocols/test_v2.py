"""What JSON, binary data and gRPC share of the v2 protocol: datatypes and elements of BYTES."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.protocols import steps, v2

STRINGS = st.lists(st.binary(max_size=5), max_size=12)


@pytest.mark.parametrize("name", sorted(set(v2.DATATYPES) - {v2.BYTES}))
def test_a_datatypes_letter_has_its_size_in_struct_and_in_numpy(name: str) -> None:
    datatype = v2.DATATYPES[name]
    assert struct.calcsize("<" + datatype.code) == np.dtype("<" + datatype.code).itemsize == datatype.size


@given(STRINGS)
def test_elements_of_bytes_come_back_as_they_were_packed(strings: list[bytes]) -> None:
    assert list(v2.elements(v2.pack(strings))) == strings


@given(STRINGS, st.integers(1, 4))
def test_rows_of_bytes_end_where_their_last_element_does(strings: list[bytes], width: int) -> None:
    rows, left = divmod(len(strings), width)
    data = v2.pack(strings)
    ends = steps.at_once(v2.row_ends(data, rows, width))
    if left:
        assert ends is None
    else:
        assert ends is not None
        cut = [v2.cut(data, 0, ends, row, row + 1) for row in range(rows)]
        assert [list(v2.elements(each)) for each in cut] == [strings[at * width :][:width] for at in range(rows)]


@given(st.binary(max_size=40), st.integers(0, 4), st.integers(0, 4))
def test_whatever_is_found_to_be_so_many_elements_is(data: bytes, rows: int, width: int) -> None:
    ends = steps.at_once(v2.row_ends(data, rows, width))
    if ends is not None:
        assert len(ends) == rows + 1
        assert len(list(v2.elements(data))) == rows * width
