"""Which requests' rows have equal lengths, by what their payloads tell."""

from __future__ import annotations

import pytest

from carpool_sidecar.batching import row_shapes
from carpool_sidecar.protocols import v1


def shape(instances: str) -> object:
    return row_shapes.of(v1.parse_request(b'{"instances":[%b]}' % instances.encode()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1,2,3]", "[4.5,-6e7,8]"),
        ("[1,2,3]", "[ 1 , 2 , 3 ]"),
        ("[true,null]", "[false,true]"),
        ("[[1,2],[3,4]]", "[[5,6],[7,8]]"),
        ('{"ids":[1,2],"mask":[1,1]}', '{"ids":[3,4],"mask":[0,1]}'),
        ('"short"', '"a longer text, with [brackets, and commas]"'),
        ("1", "2"),
        ("[1,2],[3,4]", "[5,6]"),
        (f"[{'1,' * 20_000}1]", f"[{'1.25,' * 20_000}1]"),
        (f"[{'[1,2,3],' * 9_000}[1,2,3]]", f"[{'[1.5,2,3],' * 9_000}[1,2,3]]"),
    ],
)
def test_rows_of_equal_lengths_have_one_shape(one: str, other: str) -> None:
    assert shape(one) == shape(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1,2,3]", "[1,2]"),
        ("[[1,2,3]]", "[[1,2]]"),
        ("[[1,2],[3,4]]", "[[1,2],[3,4],[5,6]]"),
        ('{"ids":[1,2]}', '{"ids":[1,2,3]}'),
        (f"[{'1,' * 20_000}1]", f"[{'1,' * 20_001}1]"),
        (f"[{'[1,2,3],' * 9_000}[1,2,3]]", f"[{'[1,2],' * 9_000}[1,2]]"),
        (f"[{'[[1,2],[1,2]],' * 9_000}[[1,2]]]", f"[{'[[1,2]],' * 9_000}[[1,2]]]"),
    ],
)
def test_rows_of_other_lengths_have_another(one: str, other: str) -> None:
    assert shape(one) != shape(other)


def test_rows_of_several_lengths_have_none() -> None:
    assert shape("[1,2],[1,2,3]") is None
