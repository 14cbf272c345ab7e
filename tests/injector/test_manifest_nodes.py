"""Both readers of YAML see the same in a manifest, and none can be made to use more memory than the file is worth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector.documents import reading
from tests.injector.test_manifest_edits import manifests

ROOT = Path(__file__).parents[2]
OF_THE_PROJECT = sorted([*ROOT.glob("manifests/**/*.yaml"), *ROOT.glob("tests/injector/golden/**/*.yaml")])
CORNERS = [
    "", "---\n", "--- a\n", "# only words\n", "a:\n", "- \n-\n", "a: &x\n- 1\n", "{a: b, c}\n", "? a\n: b\n",
    "a: |+\n  x\n\n\nb: >-\n  y\n  z\n", "a: 'it''s'\nb: \"\\u00e9\\n\"\n", "[a, {b: c}, ]\n", "a: !!str 1\n",
    "&a a: &b b\nc: *b\n", "<<: {a: 1}\nb: 2\n", "a: 1:30\nb: y\nc: 0644\nd: 2024-01-01\ne: ~\nf: .5\ng: 1e3\n",
    "a: é # ü\nb: \U0001f600\nc: x\n", "a: 1\r\nb:\r\n  - c\r\n", '{"a":1,"b":[true,null]}', "a: x\n  y\nb: c\n",
    "a: [http://x:80/y, a:b]\n", "--- # first\na: 1\n...\n# between\n---\nb: 2\n",
]  # fmt: skip


def seen(text: str, reader: reading.Reader) -> list[Any]:
    """Everything that is used of a text: what is written, tags, data and places."""
    return [list(_seen(root)) for root in reading.parse(text, "x", [reader])]


def _seen(node: reading.Node) -> Iterator[Any]:
    place = None if node.is_absent else node.start
    yield node.tag, node.style, node.is_flow, node.text, node.data, place, node.end, node.base is None
    for key, value in node.held if node.base is None else []:
        yield from _seen(key) if key else ()
        yield from _seen(value)


@given(manifest=manifests())
def test_libyaml_and_ruamel_see_the_same_in_any_manifest(manifest: tuple[str, Any]) -> None:
    assert seen(manifest[0], reading.read_by_libyaml) == seen(manifest[0], reading.read_by_ruamel)


@pytest.mark.parametrize("text", CORNERS)
def test_libyaml_and_ruamel_agree_on_the_corners_of_yaml(text: str) -> None:
    assert seen(text, reading.read_by_libyaml) == seen(text, reading.read_by_ruamel)


@pytest.mark.parametrize("path", OF_THE_PROJECT, ids=lambda path: str(path.relative_to(ROOT)))
def test_libyaml_and_ruamel_agree_on_the_manifests_of_this_project(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert seen(text, reading.read_by_libyaml) == seen(text, reading.read_by_ruamel)


@pytest.mark.parametrize("text", ["a: 1\n", "- [a, {b: c}]\n"])
def test_a_text_that_the_first_reader_objects_to_is_read_by_the_next(text: str) -> None:
    def objecting(text: str) -> Iterator[Any]:
        yield from list(reading.read_by_libyaml(text))[:3]
        raise yaml.YAMLError("no")

    [found] = reading.parse(text, "x", [objecting, reading.read_by_ruamel])
    assert list(_seen(found)) == seen(text, reading.read_by_ruamel)[0]


def bomb(levels: int) -> str:
    below = (f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, levels))
    return "".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]\n", *below, "kind: Pod\n"])


@pytest.mark.parametrize("reader", [reading.read_by_libyaml, reading.read_by_ruamel])
@pytest.mark.parametrize("levels", [6, 12, 60])
def test_aliases_that_blow_up_are_refused_where_they_stand(levels: int, reader: reading.Reader) -> None:
    with pytest.raises(reading.Unreadable, match="more than 100000 values"):
        reading.parse(bomb(levels), "x", [reader])


def test_a_file_of_many_documents_cannot_blow_up_in_small_steps() -> None:
    with pytest.raises(reading.Unreadable, match=r"^x:\d+:\d+: aliases make this more than 100000 values"):
        reading.parse("---\n".join([bomb(5)] * 100), "x")


def test_merged_maps_count_as_what_they_bring() -> None:
    maps = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 9))
    with pytest.raises(reading.Unreadable, match="write fewer of them"):
        reading.parse(f"a0: &a0 {{x: 1, y: 2}}\n{maps}", "x")


@given(count=st.integers(1, 60))
def test_aliases_as_people_use_them_are_read(count: int) -> None:
    text = "base: &base {a: [1, 2, 3], b: {c: d}}\n" + "".join(f"k{n}: *base\n" for n in range(count))
    assert len(reading.parse(text, "x")[0].data) == count + 1


def test_a_very_large_list_is_no_bomb() -> None:
    assert len(reading.contents("[" + "1," * 150_000 + "1]", "x")[0]) == 150_001
