"""Patches, applied with a library that others use."""

from __future__ import annotations

import copy

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector.core import edits

KEYS = st.sampled_from(["a", "b", "a/b", "~", "~1", "", "containers"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(0, 1), st.floats(0, 1, width=16), st.text(max_size=2))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


def same(one, other):
    """Equal as JSON: 1, 1.0 and true are three things."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(OBJECTS, OBJECTS)
def test_a_patch_turns_one_object_into_the_other(before, after):
    kept = copy.deepcopy(before)
    assert same(jsonpatch.apply_patch(before, edits.json_patch(before, after)), after)
    assert same(before, kept)


@given(OBJECTS)
def test_equal_objects_have_an_empty_patch(thing):
    assert edits.json_patch(thing, copy.deepcopy(thing)) == []


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a": 1}, {"a": 1.0}, [{"op": "replace", "path": "/a", "value": 1.0}]),
        ({"a": None}, {}, [{"op": "remove", "path": "/a"}]),
        ({}, {"x/y~z": 1}, [{"op": "add", "path": "/x~1y~0z", "value": 1}]),
        ({"l": [1]}, {"l": [1, 2]}, [{"op": "add", "path": "/l/-", "value": 2}]),
        ({"l": [1, 2, 3]}, {"l": [1]}, [{"op": "remove", "path": "/l/2"}, {"op": "remove", "path": "/l/1"}]),
        ({"l": []}, {"l": {}}, [{"op": "replace", "path": "/l", "value": {}}]),
    ],
)  # fmt: skip
def test_operations_name_the_place_that_differs(before, after, operations):
    assert edits.json_patch(before, after) == operations
