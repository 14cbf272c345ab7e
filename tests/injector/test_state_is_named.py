"""The package's first page names all state that outlives a review: which class holds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import carpool_injector

ROOT = Path(str(carpool_injector.__file__)).parent
LONG_LIVED = ("api", "certificates", "webhook")
CHANGES = {"append", "add", "pop", "popitem", "discard", "clear", "update", "extend", "remove", "put_nowait", "set"}


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or call changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        yield from node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        yield node.func.value


def is_own(target: ast.expr) -> bool:
    """Whether it is an attribute of `self`, or something in one."""
    return any(isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(target))


def keeps_state(node: ast.ClassDef) -> bool:
    """Whether a method besides `__init__` changes the object."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = [part for each in methods if each.name != "__init__" for part in ast.walk(each)]
    return any(is_own(target) for part in inner for target in changed(part))


def holders() -> Iterator[str]:
    for path in (path for part in LONG_LIVED for path in (ROOT / part).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and keeps_state(node):
                yield f"{path.parent.name}.{path.stem}.{node.name}"


def test_all_state_that_outlives_a_review_is_named_on_the_first_page() -> None:
    named = re.findall(r"(?m)^\| `([\w.]+)` \|", carpool_injector.__doc__ or "")
    assert sorted(named) == sorted(holders())


def test_the_files_to_read_first_are_there() -> None:
    named = re.findall(r"(?m)^\d\. `([\w/]+\.py)`:", carpool_injector.__doc__ or "")
    assert len(named) == 5
    assert all((ROOT / name).is_file() for name in named)
