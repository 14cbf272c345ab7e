"""Whatever a manifest looks like, it says what was wanted afterwards, and what was not meant to change did not."""

from __future__ import annotations

import copy
import difflib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector.documents import editing, reading
from tests.injector import manifest_writer

KEYS = st.sampled_from(["name", "labels", "spec", "args", "port", "env", "on", "a.b/c", "x y", "8080"])
SCALARS = st.one_of(
    st.sampled_from(
        ["", "yes", "a: b", "# no", "it's", '"x"', "1:30", "8080", "0644", "two\nlines\n", "é", "- x", "\t"]
    ),
    st.integers(-5, 99999),
    st.booleans(),
    st.none(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
SEEDS = st.integers(0, 2**32)  # for choices too many to draw one by one
OBJECTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=5)


@st.composite
def manifests(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    data = draw(st.lists(OBJECTS, min_size=1, max_size=2))
    writer = manifest_writer.Writer(random.Random(draw(SEEDS)))
    text = writer.pick("", "---\n", "# first\n---\n") + "---\n".join(writer.mapping(each, 0) for each in data)
    text += writer.pick("", "# last\n", "...\n", "---\n")
    if writer.pick(True, False) and not text.endswith(("|\n", "lines\n")):
        text = text.removesuffix("\n")
    return text, data


def mutated(value: Any, chance: random.Random, spare: list[Any]) -> Any:
    """Other data: things added, taken away and exchanged, at any depth."""
    if isinstance(value, dict) and value:
        kept = {key: mutated(held, chance, spare) for key, held in value.items() if chance.random() > 0.1}
        return kept | ({chance.choice(["new", "spec"]): chance.choice(spare)} if chance.random() < 0.3 else {})
    if isinstance(value, list) and value:
        kept_items = [mutated(held, chance, spare) for held in value if chance.random() > 0.1]
        place = chance.randint(0, len(kept_items))
        added = [chance.choice(spare)] if chance.random() < 0.3 else []
        return kept_items[:place] + added + kept_items[place:]
    return chance.choice(spare) if chance.random() < 0.1 else value


def kept(before: Any, after: Any) -> Any:
    """An object keeps its first key at least, as Kubernetes' keep their kind."""
    return {next(iter(before)): 0, **after} if before else before


def changed_to(text: str, wanted: list[Any]) -> str:
    return editing.edited(text, reading.parse(text, "x.yaml"), wanted, "x.yaml")


@given(data=st.data())
def test_any_change_to_any_manifest_can_be_made(data: st.DataObject) -> None:
    text, objects = data.draw(manifests())
    chance, spare = random.Random(data.draw(SEEDS)), data.draw(st.lists(VALUES, min_size=1))
    documents = reading.parse(text, "x.yaml")
    assert [each.data for each in documents if each.data is not None] == objects
    wanted = [kept(each.data, mutated(each.data, chance, spare)) for each in documents]
    after = editing.edited(text, documents, wanted, "x.yaml")
    assert [each.data for each in reading.parse(after, "x.yaml")] == wanted


@given(data=st.data())
def test_what_is_added_takes_no_line_and_no_comment_away(data: st.DataObject) -> None:
    text, _ = data.draw(manifests())
    documents = reading.parse(text, "x.yaml")
    wanted = [each.data and {**each.data, "added": data.draw(VALUES)} for each in documents]
    after = editing.edited(text, documents, wanted, "x.yaml")
    operations = {code for code, *_ in difflib.SequenceMatcher(None, text, after, autojunk=False).get_opcodes()}
    assert operations <= {"equal", "insert"}


@given(data=st.data())
def test_what_was_added_can_be_taken_away_again_to_the_byte(data: st.DataObject) -> None:
    text, _ = data.draw(manifests())
    before = [each.data for each in reading.parse(text, "x.yaml")]
    added = [each and {**each, "added": data.draw(VALUES)} for each in before]
    assert changed_to(changed_to(text, added), before) == text


@given(data=st.data())
def test_nothing_changes_when_nothing_should(data: st.DataObject) -> None:
    text, _ = data.draw(manifests())
    assert changed_to(text, [copy.deepcopy(each.data) for each in reading.parse(text, "x.yaml")]) == text


@given(data=st.data(), indent=st.sampled_from([None, 1, 2, "\t"]))
def test_json_stays_json_with_its_indentation(data: st.DataObject, indent: int | str | None) -> None:
    before = data.draw(OBJECTS)
    text = json.dumps(before, indent=indent, ensure_ascii=False) + "\n"
    chance, spare = random.Random(data.draw(SEEDS)), data.draw(st.lists(VALUES, min_size=1))
    wanted = kept(before, mutated(before, chance, spare))
    after = changed_to(text, [wanted])
    assert json.loads(after) == wanted


@given(data=st.data(), indent=st.sampled_from([None, 1, 2, "\t"]))
def test_what_was_added_to_json_can_be_taken_away_again_to_the_byte(
    data: st.DataObject, indent: int | str | None
) -> None:
    before = data.draw(OBJECTS)
    text = json.dumps(before, indent=indent, ensure_ascii=False)
    wanted = {**before, "added": data.draw(VALUES)}
    after = changed_to(text, [wanted])
    assert after == json.dumps(wanted, indent=indent, ensure_ascii=False)
    assert changed_to(after, [before]) == text


MANIFEST = """\
# Owned by the search team.
apiVersion: v1   # the core group
kind: Pod
metadata:
    labels: {app: web, tier: "front"}
    # annotations: none so far
spec:
    containers:
    - name: app

      image: 'app:1'
      args: ["--port=8080", --verbose]   # the port is well known
      env: []
    # nothing below here

---
"""


def test_lists_and_maps_are_indented_as_the_file_does_it() -> None:
    wanted = reading.parse(MANIFEST, "x")[0].data
    wanted = copy.deepcopy(wanted)
    wanted["metadata"]["annotations"] = {"a": "true", "b": {"c": ["d"]}}
    wanted["spec"]["containers"].append({"name": "carpool", "args": ["x"]})
    wanted["spec"]["containers"][0]["args"][0] = "--port=9083"
    wanted["spec"]["containers"][0]["env"] = [{"name": "KEY", "value": "1"}]
    wanted["metadata"]["labels"]["new"] = "yes"
    assert changed_to(MANIFEST, [wanted, None]) == (
        MANIFEST.replace(
            '"front"}',
            '"front", "new": "yes"}\n    annotations:\n        a: "true"\n        b:\n            c:\n            - d',
        )
        .replace("--port=8080", "--port=9083")
        .replace("env: []", 'env:\n      - name: KEY\n        value: "1"\n    - name: carpool\n      args:\n      - x')
    )


def test_windows_line_ends_are_kept_and_used() -> None:
    text = "a:\r\n  b: 1\r\nc: 2\r\n"
    assert changed_to(text, [{"a": {"b": 1, "d": ["x"]}, "c": 2}]) == "a:\r\n  b: 1\r\n  d:\r\n    - x\r\nc: 2\r\n"


ANCHORED = """\
metadata:
  labels: &labels  # for everything
    app: web
spec:
  selector:
    matchLabels: *labels
  template:
    labels: *labels
"""


def test_an_alias_is_written_out_where_it_is_to_differ_from_its_anchor() -> None:
    wanted = reading.parse(ANCHORED, "x")[0].data
    wanted = {**wanted, "spec": {**wanted["spec"], "template": {"labels": {"app": "web", "new": "1"}}}}
    assert changed_to(ANCHORED, [wanted]) == ANCHORED.removesuffix("    labels: *labels\n") + (
        '    labels:\n      app: web\n      new: "1"\n'
    )


def test_aliases_keep_their_meaning_when_what_they_refer_to_changes() -> None:
    wanted = copy.deepcopy(reading.parse(ANCHORED, "x")[0].data)
    wanted = json.loads(json.dumps(wanted))
    wanted["metadata"]["labels"]["new"] = "1"
    after = changed_to(ANCHORED, [wanted])
    assert reading.parse(after, "x")[0].data == wanted
    assert "labels: &labels  # for everything\n    app: web\n    new:" in after
    assert "*labels" not in after


@pytest.mark.parametrize(
    ("text", "own", "after"),
    [
        ("k: &a x\nm:\n  *a : 1\n  b: 2\n", {"x": 5, "b": 2}, "k: &a x\nm:\n  *a : 5\n  b: 2\n"),
        ("k: &a x\nm: {*a : 1, b: 2}\n", {"b": 2}, "k: &a x\nm: {b: 2}\n"),
    ],
)
def test_an_entry_whose_key_is_an_alias_can_be_changed(text: str, own: dict[str, Any], after: str) -> None:
    assert changed_to(text, [{"k": "x", "m": own}]) == after


MERGED = "base: &base\n  a: 1\n  b: 2\nown:\n  <<: *base\n  c: 3\n"


@pytest.mark.parametrize(
    "own",
    [
        {"a": 1, "b": 2, "c": 4},
        {"a": 5, "b": 2, "c": 3},
        {"a": 1, "b": 2, "c": 3, "d": [4]},
        {"a": 1, "c": 3},
        {"b": 2},
    ],
)
def test_merged_maps_can_be_changed(own: dict[str, Any]) -> None:
    wanted = {"base": {"a": 1, "b": 2}, "own": own}
    assert reading.parse(changed_to(MERGED, [wanted]), "x")[0].data == wanted


def test_a_map_that_is_merged_elsewhere_can_be_changed() -> None:
    wanted = {"base": {"a": 1, "b": 9, "n": 1}, "own": {"a": 1, "b": 2, "c": 3}}
    assert reading.parse(changed_to(MERGED, [wanted]), "x")[0].data == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2\n", r"^x\.yaml:2:1: duplicate key 'a'; remove one of them$"),
        ('{"a": 1,\n "a": 2}', r"^x\.yaml:2:2: duplicate key 'a'"),
        ("a:\n\tb: 1\n", r"^x\.yaml:2:1: .*indent with spaces"),
        ("a: [1, 2\n", r"^x\.yaml:2:1: "),
        ("a: *nobody\n", r"^x\.yaml:1:4: found undefined alias"),
        ("*nobody\n", r"^x\.yaml:1:1: found undefined alias"),
        ("a: .inf\na: 1\nb: c: d\n", r"^x\.yaml:1:4: '\.inf' is no float"),
        ("a: &a [*a]\n", r"^x\.yaml:1:4: this anchor contains itself"),
        ("? [1]\n: 2\n", r"^x\.yaml:1:3: a key must be a string$"),
        ("a: .inf\n", r"^x\.yaml:1:4: '\.inf' is no float that JSON can hold$"),
        ("a: b: c\n", r"^x\.yaml:1:5: mapping values are not allowed here"),
        ("a: \x00\n", r"^x\.yaml:1:1: .*special characters"),
        ("<<: 1\n", r"^x\.yaml:1:5: << merges mappings only$"),
        ("[" * 5000, r"^x\.yaml:1:\d+: maximum depth of 200 exceeded$"),
        ('{"a": 1}\n{"a": 2}\n', r"^x\.yaml:2:1: a second document begins here; put a line with --- between documents"),
        ('{"a": 1}{"a": 2}', r"^x\.yaml:1:9: a second document begins here"),
        (
            "a: {{ .Values.a }}\n",
            r"^x\.yaml:1:5: a key must be a string; .*: helm template CHART \| carpool",
        ),
        (
            "a: 1\n{{- if .Values.b }}\nb: 2\n{{- end }}\n",
            r"^x\.yaml:3:1: .*; if this is a Helm template, render",
        ),
    ],
)
def test_what_cannot_be_read_is_told_with_file_line_and_column(text: str, problem: str) -> None:
    with pytest.raises(reading.Unreadable, match=problem):
        reading.parse(text, "x.yaml")


def test_words_mean_what_they_mean_to_kubectl() -> None:
    text = 'a: yes\nb: 0644\nc: 1:30\nd: 2024-01-01\ne: 1e3\nf: "yes"\n1: x\nno: on.\ng: 0x1F\nh: !!binary aGk=\n'
    assert reading.parse(text, "x")[0].data == {
        "a": True,
        "b": 0o644,
        "c": "1:30",
        "d": "2024-01-01",
        "e": 1000.0,
        "f": "yes",
        "1": "x",
        "false": "on.",
        "g": 31,
        "h": "aGk=",
    }


def test_half_characters_of_json_are_joined() -> None:
    assert reading.parse('{"a": "\\ud83d\\ude00\\/"}', "x")[0].data == {"a": "\U0001f600/"}
