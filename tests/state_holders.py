"""Which classes keep state: the reading behind the tests that hold tables of state to the code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

_CHANGES = {
    "append", "appendleft", "add", "pop", "popitem", "popleft", "discard", "clear", "update", "extend", "remove",
    "put_nowait", "set", "move_to_end", "insert", "put", "drop",
}  # fmt: skip


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or call changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        yield from node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        yield node.func.value


def _is_own(target: ast.expr) -> bool:
    """Whether it is an attribute of `self`, or something in one."""
    return any(isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(target))


def _keeps_state(node: ast.ClassDef) -> bool:
    """Whether a method besides `__init__` changes the object."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = [part for each in methods if each.name != "__init__" for part in ast.walk(each)]
    return any(_is_own(target) for part in inner for target in _changed(part))


def holders(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """File and name of each class that changes itself after it was made."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and _keeps_state(node):
                yield path, node.name
