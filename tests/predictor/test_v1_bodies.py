"""A v1 body is read the same however it is spaced, and large ones as batchers write them in one go."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_predictor import errors, v1

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SPACING = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")])


@given(st.lists(VALUES, min_size=1, max_size=5), SPACING, st.booleans(), st.sampled_from(["", " ", "\n"]))
def test_all_instances_are_found_as_they_were_written(
    values: list[Any], spacing: tuple[str, str], is_ascii: bool, end: str
) -> None:
    body = (json.dumps({"instances": values}, separators=spacing, ensure_ascii=is_ascii) + end).encode()
    for buffer in (body, bytearray(body)):
        found = v1.parse(buffer)
        assert [json.loads(bytes(row)) for row in found.rows] == values
        assert json.loads(bytes(found.text)) == values
        assert all(bytes(row) in body for row in found.rows)


@pytest.mark.parametrize("rows", [b"1", b"1,2", b'"instances"', b'{"instances":[]}', b"1,1,1,1,1,1,1,1,1,1,1,1"])
@pytest.mark.parametrize("other", [b"[]", b"[1]", b"null", b"[1,2,3]"])
def test_a_second_member_of_the_name_is_refused_wherever_it_hides(rows: bytes, other: bytes) -> None:
    for body in (
        b'{"instances":[%b],"instances":%b}' % (rows, other),
        b'{"instances":%b,"instances":[%b]}' % (other, rows),
    ):
        with pytest.raises(errors.BadRequest, match=r"duplicate member 'instances'|must be a list"):
            v1.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances":[]}',
        b'{"instances":[1,]}',
        b'{"instances":[1]]}',
        b'{"instances":["\xff"]}',
        b'{"instances":[1]}}',
        b'{"instances":[%b]}' % (b"[" * 5000),
    ],
)
def test_a_broken_body_in_the_usual_form_is_refused(body: bytes) -> None:
    with pytest.raises(errors.BadRequest):
        v1.parse(body)


def test_other_members_beside_the_usual_one_are_not_read() -> None:
    assert v1.parse(b'{"instances":[1,2],"more":[3]}').rows == v1.parse(b'{"instances":[1,2]}').rows
