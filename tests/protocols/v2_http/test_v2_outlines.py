"""What a glance at the characters of a list tells about it: enough to keep one caller's elements from another's."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.protocols import steps
from carpool_sidecar.protocols.v2_http import json_lists


def flat(text: bytes, outlined: bytes) -> bool:
    """Whether it has this outline, of which both ways to look agree."""
    found = steps.at_once(json_lists.is_flat(text, outlined))
    assert json_lists.is_small_and_flat(text, outlined) == found
    return found


NUMBERS = st.sampled_from([b"1", b"-0.5", b"1e400", b"1E-3", b" 2", b"3 ", b"", b"1..2", b"-", b"01", b"1 2", b" "])


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.integers(1, 7))
def test_a_text_with_the_outline_of_so_many_numbers_is_a_list_of_as_many_or_none_at_all(
    found: list[bytes], elements: int
) -> None:
    text = b"[" + b",".join(found) + b"]"
    if flat(text, json_lists.outline(elements)):
        assert text.count(b",") == elements - 1
        with contextlib.suppress(msgspec.DecodeError):
            assert len(msgspec.json.decode(text, type=list[msgspec.Raw])) == elements


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(), min_size=1, max_size=50))
def test_every_flat_list_of_numbers_has_its_outline_however_it_is_spaced(numbers: list[float]) -> None:
    for separator in (b",", b", "):
        text = b"[" + separator.join(msgspec.json.encode(number) for number in numbers) + b"]"
        assert flat(text, json_lists.outline(len(numbers)))
        assert steps.at_once(json_lists.is_flat(memoryview(text), json_lists.outline(len(numbers))))


@pytest.mark.parametrize(
    "text",
    [b"[]", b"[ ]", b"[,1]", b"[1,]", b"[ ,1]", b"[1, ]", b"[[1],2]", b"[1],[2]", b'["1",2]', b"1,2",
     b"[1,2", b"[1,2]]", b"[true,1]",
     b"[1,2],\"x\":[3", b"[null,1]", b"[NaN,1]", b"[1,\t2]"],
)  # fmt: skip
def test_what_is_no_flat_list_of_two_numbers_has_another_outline(text: bytes) -> None:
    assert not flat(text, json_lists.outline(2))


@pytest.mark.parametrize("text", [b"[]", b"[ ]", b"[,]", b"[[]]", b"[                 ]"])
def test_no_number_at_all_is_not_taken_for_one(text: bytes) -> None:
    assert not flat(text, json_lists.outline(1))
