"""Rules in an annotation: what the injector accepts, the sidecar starts with, and the other way round."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel import yaml

from carpool_injector.core import list_form, list_rules, plain_yaml
from carpool_sidecar import config as sidecar_config
from carpool_sidecar.protocols.lists import rules

Object = dict[str, Any]


def accepted(text: str) -> bool:
    try:
        list_rules.check(text)
    except ValueError:
        return False
    return True


def problem(text: str) -> str:
    with pytest.raises(ValueError, match=r"^(must|rule) ") as caught:
        list_rules.check(text)
    return str(caught.value)


def starts(text: str) -> bool:
    """Whether the sidecar takes it."""
    try:
        rules.load([text])
    except ValueError:
        return False
    return True


def test_the_built_in_rules_are_the_sidecars_with_the_fields_that_others_have_to_go_with() -> None:
    theirs = {
        name: {
            "list": [place.text for place in rule.rows],
            "answers": [place.text for place in rule.answers],
            "scalar": rule.scalar,
            "token_ids": rule.token_ids,
            "index": rule.index,
            "ignore": rule.ignore,
            "along": [place.text for place in rule.along],
            "answers_along": [place.text for place in rule.answers_along],
            "kinds": list(rule.kinds),
            "rank_by": list(rule.rank_by),
            "top": list(rule.top),
            "query": [place.text for place in rule.query],
            "return_if": list(rule.return_if),
            "return_as": [place.text for place in rule.return_as],
        }
        for name, rule in rules.built_in().items()
    }
    unsaid = {
        "scalar": "alone",
        "token_ids": False,
        "index": None,
        "ignore": (),
        "along": [],
        "answers_along": [],
        "kinds": [],
        "rank_by": [],
        "top": [],
        "query": [],
        "return_if": [],
        "return_as": [],
    }
    ours = {name: {**unsaid, **fields} for name, fields in list_form.BUILT_IN.items()}
    for fields in ours.values():
        fields |= {
            key: [fields[key]]
            for key in ("list", "answers", "along", "kinds", "rank_by", "top", "query", "return_if", "return_as")
            if isinstance(fields[key], str)
        }
    assert ours == theirs
    assert list(ours) == list(theirs)


def test_every_field_of_the_sidecars_rules_is_known() -> None:
    theirs = {info.alias or name for name, info in rules.Rule.model_fields.items()} - {"name"}
    assert set(list_form._Rule.model_fields) == theirs


@pytest.mark.parametrize("name", list_form.BUILT_IN)
def test_every_built_in_rule_is_one_that_could_be_ones_own(name: str) -> None:
    rule = rules.built_in()[name]
    text = json.dumps({"mine": rules._aliased({key: getattr(rule, key) for key in rule.model_fields_set - {"name"}})})
    assert accepted(text)
    assert starts(text)


PLACES = st.sampled_from(["$", "a", "a.b", "a.*", "*", "a..b", "", "a b", "ä.b", "$.a", "input", 7, None, ["a"]])
PATHS = st.sampled_from(["/", "**/embed", "/v1/*/e", "/a**", "embed", "**", "/a?b", "/a b", "/ä", "", 7])
MEMBERS = st.sampled_from(["user", "input", "index", "", "a.b", 7])


def several(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return items | st.lists(items, max_size=3)


FIELDS = {
    "path": several(PATHS),
    "list": several(PLACES),
    "answers": several(PLACES),
    "extends": st.sampled_from([*list_form.BUILT_IN, "mine", 7]),
    "about": st.sampled_from(["a line", "", 7]),
    "along": several(PLACES),
    "scalar": st.sampled_from(["wrapped", "unwrapped", "by_row", "alone", "bare", True]),
    "alone_with": several(PLACES),
    "alone_if": several(PLACES),
    "token_ids": st.sampled_from([True, False, "true", 1]),
    "same_members": st.sampled_from([True, False, "yes", 0]),
    "kinds": several(st.sampled_from(["string", "list", "object", "number", "null", 7])),
    "index": MEMBERS | st.none(),
    "rank_by": several(MEMBERS),
    "query": several(PLACES),
    "return_if": several(MEMBERS),
    "return_as": several(PLACES),
    "shared": several(PLACES),
    "ignore": several(MEMBERS),
    "max_batch_size": st.sampled_from([1, 32, 100_000, 0, 100_001, -1, "32", True, None]),
    "max_bytes": st.sampled_from([1, 2**31, 0, 2**31 + 1, 1.5, "32", True, None]),
    "max_characters": st.sampled_from([1, 2**31, 0, 2**31 + 1, 1.5, "32", True, None]),
    "max_tokens": st.sampled_from([1, 512, 0, "32", None]),
    "characters_a_token": st.sampled_from([4, 0.1, 100, 0, 101, "4", "x", True, None]),
    "one_query": several(PATHS),
    "key_headers": several(st.sampled_from(["api-key", "X-Key", "a b", "", 7])),
    "error": st.sampled_from([None, "$message", {"error": {"message": "$message", "code": None}}, [1, True]]),
    "lst": st.just("a"),
    "name": st.just("mine"),
}
GOOD = {"path": "**/embed", "list": "a", "answers": "b"}


@st.composite
def tables(draw: st.DrawFn) -> Object:
    names = st.sampled_from(["mine", "my-2.nd_rule", "Mine", "-a", "a" * 63, "a" * 64, "mlflow", ""])
    found: Object = {}
    for name in draw(st.lists(names, max_size=2, unique=True)):
        chosen = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=3))
        base = draw(
            st.sampled_from([GOOD, GOOD, {"extends": "tfserving-columns"}, {"extends": "openai-embeddings"}, {}])
        )
        found[name] = draw(st.sampled_from([7, None, []])) if not chosen and not base else base
        if isinstance(found[name], dict):
            found[name] = {**found[name], **{key: draw(FIELDS[key]) for key in sorted(chosen)}}
    return found


@given(tables())
@example({"mine": {"extends": "tfserving-columns", "token_ids": True}})
@example({"mine": {"extends": "openai-embeddings", "ignore": "input"}})
@example({"mine": {"extends": "openai-embeddings", "answers": "a.*"}})
@example({"mine": {"extends": "mlflow", "list": "dataframe_split.index"}})
@example({"mine": {"extends": "mlflow", "list": "instances", "ignore": "dataframe_split"}})
@example({"mine": {**GOOD, "along": "a.b"}})
@example({"mine": {**GOOD, "list": "$", "along": "c"}})
@example({"mine": {**GOOD, "list": "*", "along": "c"}})
@example({"mine": {**GOOD, "along": "c", "ignore": "c"}})
@example({"mine": {**GOOD, "along": ["c", "c"]}})
@example({"mine": {**GOOD, "shared": ["c", "c"]}})
@example({"mine": {**GOOD, "max_tokens": 5, "characters_a_token": 4}})
@example({"mine": {"extends": "rerank", "list": "a.*"}})
@example({"mine": {"extends": "rerank", "list": "$", "top": []}})
@example({"mine": {"extends": "rerank", "return_as": "a"}})
@example({"mine": {"extends": "rerank", "return_as": []}})
@example({"mine": {"extends": "rerank", "query": []}})
@example({"mine": {**GOOD, "query": "a"}})
@example({"mine": {**GOOD, "max_tokens": 5, "characters_a_token": "4"}})
@example({"mine": {**GOOD, "max_tokens": 5, "characters_a_token": True}})
def test_the_injector_accepts_exactly_the_rules_that_the_sidecar_starts_with(table: Object) -> None:
    text = json.dumps(table)
    assert accepted(text) == starts(text)


@given(tables())
def test_what_is_wrong_is_told_in_few_plain_words(table: Object) -> None:
    told = next(list_form.problems(table), "")
    assert told.isprintable()
    assert len(told) < 800


WORDS = st.sampled_from(
    ["a", "b: ", "a: ", "- ", "? ", "\n", "\n  ", " ", "{", "}", "[", "]", ",", ": ", "#", "'", '"', "|\n", ">\n",
     "yes", "true", "~", "0o7", "017", "1e3", "1.5", "0x1F", "-1", "12", "2024-01-31", "12:30", "<<", "=", "&a ", "*a",
     "!x ", "---\n", "%YAML 1.1\n", "\t", "é", "\x07", "\u2028", "\ufeff", "...\n"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=12).map("".join))
@example("a: 'x'\n---\n")
@example("a: |#\nb: 1")
def test_yaml_that_is_read_is_read_alike_by_the_sidecars_reader(text: str) -> None:
    try:
        found = plain_yaml.read(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ends are fine
        return
    if isinstance(found, dict):  # nothing else gets any further
        assert yaml.YAML(typ="safe", pure=True).load(io.StringIO(text)) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: ]\nb: 1\n", "must be YAML: line 1: did not find expected node content"),
        ("{a: {extends: rerank, kinds: number}}", "'query' needs rows of the 'kinds' string or object"),
        ("a:\n\tb: 1\n", "must be YAML: line 2: the character \\t is not allowed here"),
        ("\ud800:\n b: 1\n", "must be YAML: line 1: the character \\ud800 is not allowed here"),
        ("a: 1\na: 2\n", "must be YAML: line 2: 'a' stands twice"),
        ("a: &x {b: 1}\nc: *x\n", "anchors and aliases (&a, *a) are not allowed here"),
        (
            "mine:\n  path: **/embed\n",
            "line 2: did not find expected alphabetic or numeric character; quote what begins",
        ),
        ("a: !!python/name:os.system 1\nb: 1", "tags (!a) are not allowed here"),
        ("a: yes\nb: 1", "write 'yes' in quotes"),
        ("a: 1\n---\nb: 1\n", "there must be one document"),
        ("{" + "[" * 8000, "nested deeper than 16 levels"),
        ("\n".join(["# long"] * 3000), "at most 16,384 bytes"),
        ("- a\n- b\n", "must be a mapping of names to rules"),
        ("{}", "must be a mapping of names to rules"),
        ("mine:\n  lst: a\n", "rule 'mine': field 'path' is required; field 'list' is required; field 'answers' is"),
        ("{mine: {extends: openai, path: /a}}", "rule 'mine': field 'extends' must be one of openai-embeddings, tei"),
        ("{Mine: {}}", "rule 'Mine': its name must be a-z, 0-9"),
        ("{mine: {path: /a, list: b, answers: c, max_batch_size: 0}}", "field 'max_batch_size': must be greater than"),
        ("{mine: {path: /a, list: b, answers: c, scalar: bare}}", "field 'scalar': must be 'wrapped', 'unwrapped'"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_with_line_rule_and_field(text: str, told: str) -> None:
    assert told in problem(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("openai", "did you mean openai-embeddings?"),
        ("mlflow, tei-embed", "must be built-in rules (openai-embeddings, tei-embed, hf-toolkit, mlflow, "),
        ("mlflow\n", "must be built-in rules"),
        ("rules.yaml", "or absolute paths of mounted YAML files"),
        ("/etc/../secret.yaml", "or absolute paths of mounted YAML files"),
        ("mlflow,,tei-embed", "comma-separated; or rules as YAML text"),
        ("mlflow,mlflow", "must name each rule and each file once"),
        (",".join(f"/rules/{number}.yaml" for number in range(33)), "must name at most 32 rules and files"),
    ],
)
def test_names_that_cannot_be_used_are_refused_with_those_that_can(text: str, told: str) -> None:
    assert told in problem(text)


@pytest.mark.parametrize("text", ["", "mlflow", ",".join(list_form.BUILT_IN)])
def test_what_names_say_is_what_the_sidecar_has(text: str) -> None:
    settings = sidecar_config.load([f"--lists={list_rules.check(text)}"])
    assert ",".join(settings.lists) == text


@given(st.text(max_size=60) | st.sampled_from(["mlflow", "a\nb", "{a: 1}", " {a", "\n{", "mlflow\n", "/a/b.yaml"]))
def test_yaml_is_told_from_names_as_the_sidecar_tells_it(text: str) -> None:
    assert list_rules.is_yaml(text) == rules.is_text(text)
