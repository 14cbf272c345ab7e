"""Rows of several callers are in one table only if each caller's rows make the same columns alone."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols.lists import codec, rules


def key(value: Any, rule: str = "mlflow") -> Any:
    """The batch key of a body."""
    by = codec.Codec([rules.built_in()[rule]], clock=lambda: 0.0)
    return by.parse(json.dumps(value).encode(), 1000).key


def records(*rows: Any) -> dict[str, Any]:
    return {"dataframe_records": [*rows]}


def split(*rows: Any) -> dict[str, Any]:
    return {"dataframe_split": {"columns": ["a", "b"], "data": [*rows]}}


def inputs(*rows: Any) -> dict[str, Any]:
    return {"inputs": [*rows]}


@pytest.mark.parametrize("form", [records, split, inputs])
@pytest.mark.parametrize(
    "values",
    [1, 10**18, 1.5, "x", True, None, [1], [1.5], ["x"], [[1]], {"c": 1}, (1, 1.5), (1, None), (1, "x"), ([1], [1.5])],
    ids=repr,
)
def test_columns_of_other_kinds_never_meet_and_those_of_the_same_kinds_do(form, values):
    def asked(column: Any) -> Any:
        rows = column if isinstance(column, tuple) else (column,)
        return form(*[{"a": each, "b": 0} if form is records else [each, 0] for each in rows])

    others = [1, 10**18, 1.5, "x", True, None, [1], [1.5], ["x"], {"c": 1}, (1, 1.5), (1, None), (1, "x"), ([1], [1.5])]
    for other in others:
        are_alike = other == values and type(other) is type(values)
        assert (key(asked(other)) == key(asked(values))) is are_alike


def test_other_values_of_the_same_kinds_meet():
    assert key(records({"a": 1, "b": "x"})) == key(records({"a": -25, "b": ""}, {"a": 0, "b": "long"}))
    assert key(split([1, 2.5])) == key(split([3, 1e9], [4, 0.5]))
    assert key(inputs([[1, 2], [3]])) == key(inputs([[4, 5], [6]]))
    assert key(inputs(1, 2)) == key(inputs(3))


def test_the_order_of_rows_does_not_matter():
    for rows in itertools.permutations([[1, None], [2.5, "x"]]):
        assert key(split(*rows)) == key(split([1, None], [2.5, "x"]))


@pytest.mark.parametrize(("one", "other"), [([1, 2], [1]), ([1], [1, 2, 3]), ([], [1])])
def test_rows_of_other_lengths_never_meet(one, other):
    assert key(split(one)) != key(split(other))
    with pytest.raises(errors.Unbatchable):
        key(split(one, other))


def test_rows_with_other_names_never_meet():
    assert key(records({"a": 1})) != key(records({"b": 1}))
    assert key(records({"a": 1, "b": 1})) != key(records({"b": 1, "a": 1}))
    with pytest.raises(errors.Unbatchable):
        key(records({"a": 1}, {"b": 1}))


@pytest.mark.parametrize("rows", [([1], {"a": 1}), ([1], 1), ({"a": 1}, None)])
def test_rows_that_are_no_table_are_not_batched(rows):
    with pytest.raises(errors.Unbatchable):
        key(inputs(*rows))


def test_rules_without_it_let_rows_of_any_length_meet():
    assert key({"inputs": [[1, 2]]}, "tei-embed") == key({"inputs": [[1]]}, "tei-embed")


def test_many_names_do_not_make_keys_without_end():
    by = codec.Codec([rules.built_in()["mlflow"]], clock=lambda: 0.0)
    for number in range(1000):
        payload = by.parse(json.dumps(records({f"member {number}": 1})).encode(), 10)
    assert len(payload.template._keys) <= 64
