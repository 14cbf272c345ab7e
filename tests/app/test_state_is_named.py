"""The package's first page names all state of the data path: which class holds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import carpool_sidecar

ROOT = Path(str(carpool_sidecar.__file__)).parent
SIMULATED = ROOT / "planning"
CHANGES = {
    "append", "appendleft", "add", "pop", "popitem", "popleft", "discard", "clear", "update", "extend", "remove",
    "put_nowait", "set", "move_to_end", "insert",
}  # fmt: skip


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
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and SIMULATED not in path.parents and keeps_state(node):
                yield f"{module}.{node.name}"


def test_all_state_of_the_data_path_is_named_on_the_first_page() -> None:
    named = re.findall(r"(?m)^\| `([\w.]+)` \|", carpool_sidecar.__doc__ or "")
    assert sorted(named) == sorted(holders())
