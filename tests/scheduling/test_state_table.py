"""The table of the scheduler's mutable state names all of it, and every method that changes it."""

from __future__ import annotations

import ast
import importlib
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import carpool
from carpool.scheduling import scheduler
from tests.scheduling.driven import DrivenScheduler

CONSTANT = {"_clock", "_new_id"}
# What only asks; every other method of a part may change it.
QUESTIONS = {
    "admission.refusal", "policy.learned", "learned_limits.smallest",
    "learned_limits.smallest_bytes", "learned_limits.kept_apart", "learned_limits.queue_of", "learned_limits.of",
}  # fmt: skip


def test_each_rule_names_what_carries_it_out():
    rules = ast.get_docstring(source()).partition("Its rules")[2].partition("\nEvery method")[0]
    for rule in re.split(r"\n(?=\d+\. )", rules)[1:]:
        named = re.findall(r"`([a-z_]*\.?[A-Z]?\w*\.?\w+)`", rule)
        assert named, rule
        for name in named:
            found = scheduler if name.startswith("Scheduler") else importlib.import_module("carpool.scheduling")
            for step in name.split("."):
                if isinstance(found, types.ModuleType) and not hasattr(found, step):
                    found = importlib.import_module(f"{found.__name__}.{step}")
                else:
                    found = getattr(found, step)


def rows() -> Iterator[tuple[str, set[str]]]:
    """Each attribute with the methods that the table says write it; a row may go on in the next line.

    Words in a row that are no method's name tell of those outside who write it too.
    """
    head, *lines = scheduler.STATE.replace(",\n ", ", ").strip().splitlines()
    start = head.index("written by")
    for line in lines:
        yield line.split()[0], {name for name in re.split(r",\s*", line[start:].strip()) if " " not in name}


def path_of(node: ast.expr) -> list[str]:
    """`self.a.b` as `[a, b]`; empty for anything else."""
    if isinstance(node, ast.Attribute):
        before = path_of(node.value)
        return [*before, node.attr] if before or (isinstance(node.value, ast.Name) and node.value.id == "self") else []
    return []


def source() -> ast.Module:
    """The scheduler's file: a compiled module knows neither its source nor its docstring."""
    return ast.parse(Path(carpool.__file__).with_name("scheduling").joinpath("scheduler.py").read_text())


def methods() -> list[ast.FunctionDef]:
    (body,) = [node for node in source().body if isinstance(node, ast.ClassDef) and node.name == "Scheduler"]
    return [node for node in ast.walk(body) if isinstance(node, ast.FunctionDef)]


def writers() -> dict[str, set[str]]:
    """Each attribute with the methods that assign to it or call what may change it, as the source has them."""
    found: dict[str, set[str]] = defaultdict(set)
    for method in methods():
        if method.name == "__init__":
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                path = path_of(node.value if isinstance(node, ast.Subscript) else node)
                found[path[0] if path else ""].add(method.name)
            elif isinstance(node, ast.Call):
                path = path_of(node.func)
                if len(path) > 1 and ".".join(path[:2]) not in QUESTIONS:
                    found[path[0]].add(method.name)
    return found


def attributes(core: scheduler.Scheduler) -> set[str]:
    """The names of an object's attributes; those of a compiled class are descriptors that can be set."""
    if hasattr(core, "__dict__"):
        return set(vars(core))
    asked = {name for name, value in vars(scheduler.Scheduler).items() if isinstance(value, types.GetSetDescriptorType)}
    return asked - {method.name for method in methods()}


def test_the_table_lists_every_attribute_that_may_change(driven: DrivenScheduler) -> None:
    assert sorted(name for name, _ in rows()) == sorted(attributes(driven.core) - CONSTANT)


def test_the_table_lists_the_methods_that_write_each_attribute() -> None:
    assert dict(rows()) == {name: writers()[name] for name, _ in rows()}
