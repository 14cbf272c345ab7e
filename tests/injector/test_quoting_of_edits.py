"""Values that an edit changes are written in the author's way: plain stays plain, and quotes stay quotes."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.documents import editing, reading


def edited(text: str, change: Any) -> str:
    [document] = reading.parse(text, "f.yaml")
    after = change(document.data)
    return editing.edited(text, [document], [after], "f.yaml")


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ("0.0.0.0:8080", "0.0.0.0:9083", "0.0.0.0:9083"),
        ("'0.0.0.0:8080'", "0.0.0.0:9083", "'0.0.0.0:9083'"),
        ('"0.0.0.0:8080"', "0.0.0.0:9083", '"0.0.0.0:9083"'),
        ("abc", "8080", '"8080"'),  # a number to any reader
        ("abc", "12:30", '"12:30"'),  # to base 60, in YAML 1.1
        ("abc", "1e3", '"1e3"'),  # a number in YAML 1.2
        ("abc", "yes", '"yes"'),  # a boolean in YAML 1.1
        ("abc", "2026-01-01", '"2026-01-01"'),  # a date
        ("a.b", "1.2", '"1.2"'),
        ("0.0.0.0:8080", "0x1F", '"0x1F"'),
    ],
)
def test_a_plain_value_stays_plain_wherever_every_reader_takes_it_for_a_string(
    before: str, after: str, written: str
) -> None:
    assert edited(f"args:\n- {before}\n", lambda data: {"args": [after]}) == f"args:\n- {written}\n"
    assert edited(f"args: [-b, {before}]\n", lambda data: {"args": ["-b", after]}) == f"args: [-b, {written}]\n"


# --- A file that ends inside a block scalar


@pytest.mark.parametrize("header", ["|", "|2", ">", "|+", "|-"])
def test_lines_behind_a_block_scalar_that_ends_the_file_leave_its_value_alone(header: str) -> None:
    text = f"spec:\n  args:\n    - {header}\n      abc"
    if header == "|2":
        text = "spec:\n  args:\n    - |2\n      abc"
    result = edited(text, lambda data: {"spec": {**data["spec"], "env": ["A"]}})
    [document] = reading.parse(result, "f.yaml")
    assert document.data["spec"]["env"] == ["A"]
    assert document.data["spec"]["args"] == reading.contents(text, "f.yaml")[0]["spec"]["args"]


def test_a_change_elsewhere_leaves_a_block_scalar_at_the_end_as_it_is() -> None:
    text = "a: 1\nscript: |\n  abc"
    assert edited(text, lambda data: {**data, "a": 2}) == "a: 2\nscript: |\n  abc"
