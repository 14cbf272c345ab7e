"""The registry of refusals: each row is raised somewhere, with all the facts that its texts name, and nowhere else."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import carpool_injector
from carpool_injector.core import refusals
from carpool_injector.core.refusals import HttpError, Reason, Skip

SOURCES = [path for path in Path(carpool_injector.__file__).parent.rglob("*.py") if path.name != "refusals.py"]
REGISTRIES = {"Reason": Reason, "HttpError": HttpError}


def raised() -> Iterator[tuple[Reason | HttpError, set[str]]]:
    """Each call of a row in the code, with the names of the facts that it gives."""
    for node in (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))):
        row = node.func if isinstance(node, ast.Call) else None
        if isinstance(row, ast.Attribute) and row.attr == "told":
            row = row.value
        owner = row.value if isinstance(row, ast.Attribute) else None
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if isinstance(node, ast.Call) and isinstance(row, ast.Attribute) and name in REGISTRIES:
            yield REGISTRIES[name][row.attr], {str(each.arg) for each in node.keywords}


CALLS = list(raised())


def facts(row: Reason | HttpError) -> set[str]:
    """The facts that a row's texts name."""
    texts = row.words + getattr(row, "fix", "")
    return {name.partition(".")[0] for _, name, _, _ in string.Formatter().parse(texts) if name}


@pytest.mark.parametrize(("row", "given"), CALLS, ids=lambda each: getattr(each, "name", ""))
def test_whoever_refuses_gives_the_facts_that_the_row_names(row: Reason | HttpError, given: set[str]) -> None:
    assert given == facts(row)


def test_every_row_is_used_and_nothing_is_refused_past_the_registry() -> None:
    text = "\n".join(path.read_text() for path in SOURCES)
    rows = [*REGISTRIES["Reason"], *REGISTRIES["HttpError"], *Skip]
    assert [row for row in rows if not re.search(rf"{type(row).__name__}\.{row.name}\b", text)] == []
    assert re.findall(r"\b(?:Refusal|Unanswered)\(", text) == []


@pytest.mark.parametrize("row", [*Reason, *HttpError, *Skip], ids=lambda row: row.name)
def test_codes_are_slugs_that_metrics_can_have_as_labels(row: Reason | HttpError | Skip) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", row if isinstance(row, Skip) else row.code)


def test_what_is_refused_names_the_next_step() -> None:
    assert [row for row in Reason if not row.fix] == [Reason.BAD_ANNOTATION]  # its problems name what is allowed


def test_facts_are_never_read_as_templates() -> None:
    refusal = Reason.NO_SUCH_CONTAINER(name="{0.__class__}", names="{names}")
    assert str(refusal) == "there is no app container '{0.__class__}'; name one of: {names}"


def test_the_closed_set_of_codes_has_them_all() -> None:
    assert {*(row.code for row in Reason), *(row.value for row in Skip)} <= refusals.CODES
