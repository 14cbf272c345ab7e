"""Requests whose rows depend on each other travel alone: with others in the call each would be answered otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import steps
from carpool_sidecar.protocols.lists import codec, rules

DEPENDENT = [
    ("openai-embeddings", {"model": "m", "input": ["a", "b"]}, {"late_chunking": True}),
    ("openai-embeddings", {"model": "m", "input": "a"}, {"late_chunking": True}),
    ("hf-toolkit", {"inputs": ["a", "b"]}, {"parameters": {"batch_size": 8}}),
    ("mlflow", {"inputs": ["a", "b"]}, {"params": {"batch_size": 8}}),
]


def reason(by: codec.Codec, body: dict[str, Any]) -> str | None:
    """Why a request is not batched, at once and in steps."""
    text = json.dumps(body).encode()
    found = []
    for parse in (by.parse, lambda *given: steps.at_once(by.parse_in_steps(*given))):
        try:
            parse(text, 100)
            found.append(None)
        except errors.Unbatchable as verdict:
            found.append(verdict.reason)
    assert found[0] == found[1]
    return found[0]


def rule_of(name: str) -> codec.Codec:
    return codec.Codec([rules.built_in()[name]], lambda: 0.0)


@pytest.mark.parametrize(("rule", "body", "others"), DEPENDENT)
def test_a_request_whose_rows_depend_on_each_other_travels_alone(rule, body, others):
    by = rule_of(rule)
    assert reason(by, body) is None
    assert reason(by, body | others) == "dependent_rows"
    assert reason(by, others | body) == "dependent_rows"
    assert reason(by, body) is None


@pytest.mark.parametrize("value", [False, None])
def test_a_member_that_says_no_keeps_nobody_apart(value):
    by = rule_of("openai-embeddings")
    assert reason(by, {"model": "m", "late_chunking": value, "input": ["a"]}) is None


@pytest.mark.parametrize("value", [True, 1, 0, "", "false", [], {}])
def test_any_other_value_does(value):
    assert reason(rule_of("openai-embeddings"), {"input": ["a"], "late_chunking": value}) == "dependent_rows"


def test_members_of_that_name_elsewhere_do_not_matter():
    by = rule_of("openai-embeddings")
    assert reason(by, {"input": ["late_chunking"], "metadata": {"late_chunking": True}}) is None


def test_large_requests_travel_alone_as_well():
    body = {"input": ["text"] * 300_000, "late_chunking": True}
    by = rule_of("openai-embeddings")
    with pytest.raises(errors.Unbatchable):
        steps.at_once(by.parse_in_steps(json.dumps(body).encode(), 1_000_000))


def test_a_rule_of_ones_own_names_such_members():
    chosen = rules.load(["{mine: {path: /x, list: rows, answers: rows, alone_if: [mode.whole, joint]}}"])
    by = codec.Codec(chosen, lambda: 0.0)
    assert reason(by, {"rows": [1]}) is None
    assert reason(by, {"rows": [1], "mode": {"whole": False}}) is None
    assert reason(by, {"rows": [1], "mode": {"whole": 1}}) == "dependent_rows"
    assert reason(by, {"rows": [1], "joint": "yes"}) == "dependent_rows"


def test_a_rule_that_extends_a_built_in_one_keeps_them_or_names_its_own():
    body = {"input": ["a"], "late_chunking": True}
    text = "{kept: {extends: openai-embeddings}, own: {extends: openai-embeddings, alone_if: []}}"
    kept, own = [codec.Codec([rule], lambda: 0.0) for rule in rules.load([text])]
    assert reason(kept, body) == "dependent_rows"
    assert reason(own, body) is None
