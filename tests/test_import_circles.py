"""Imports have one direction: no module imports, by whatever way round, a module that imports it.

Product, tests, end-to-end tests and build scripts are one graph. Imports inside functions and under TYPE_CHECKING
count: they would only hide that two modules cannot be understood apart.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Folders that no import of ours leads to.
FOREIGN = {"build", "dist", "out"}


def import_roots() -> list[Path]:
    """Where Python looks for our packages: the checkout, a distribution's folder in it, the folder of the scripts."""
    return [ROOT, *(file.parent for file in ROOT.glob("*/pyproject.toml")), ROOT / ".ci"]


def modules() -> dict[str, Path]:
    """All our modules by the names that they are imported by."""
    roots = import_roots()
    found = {}
    for root in roots:
        for top in sorted(root.iterdir()):
            if top in roots or top.name.startswith(".") or top.name in FOREIGN or (top / "pyvenv.cfg").exists():
                continue
            for file in [top] if top.suffix == ".py" else sorted(top.rglob("*.py")):
                found[dotted_name(file.relative_to(root))] = file
    return found


def dotted_name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, package: str) -> Iterator[tuple[str, str]]:
    """Each import in a module of that package: a dotted name, and what is taken from it ("" for the whole)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((origin, alias.name) for alias in node.names)


def graph(sources: Mapping[str, str], packages: set[str]) -> dict[str, set[str]]:
    """For each module which of the others it imports. A package stands for its `__init__`, where something is in it."""
    found: dict[str, set[str]] = {}
    for name, source in sources.items():
        package = name if name in packages else name.rpartition(".")[0]
        targets = {
            f"{origin}.{taken}" if f"{origin}.{taken}" in sources else origin
            for origin, taken in imported(source, package)
        }
        found[name] = {target for target in targets if target in sources and target != name}
    return found


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle, each imported by the next; empty where there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_a_module_that_imports_it() -> None:
    files = modules()
    packages = {name for name, file in files.items() if file.name == "__init__.py"}
    imports = graph({name: file.read_text() for name, file in files.items()}, packages)
    assert len(imports) > 100, "the modules were not found"
    assert circle(imports) == [], "each of these is imported by the next one"


@pytest.mark.parametrize(
    "import_of_b",
    [
        "from shop import b",
        "import shop.b",
        "from shop.b import price",
        "from . import b",
        "from .b import price",
        "def later():\n    from shop import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop import b",
    ],
)
def test_a_circle_is_found_however_it_is_imported(import_of_b: str) -> None:
    sources = {"shop": "", "shop.a": import_of_b, "shop.b": "from shop import c", "shop.c": "from shop import a"}
    assert sorted(set(circle(graph(sources, {"shop"})))) == ["shop.a", "shop.b", "shop.c"]


def test_a_package_that_offers_what_its_modules_have_is_no_circle() -> None:
    sources = {"shop": "from shop.a import price", "shop.a": "from shop import b", "shop.b": "import json"}
    assert circle(graph(sources, {"shop"})) == []


def test_a_module_that_takes_from_the_package_what_that_takes_from_it_is_a_circle() -> None:
    sources = {"shop": "from shop.a import price", "shop.a": "from shop import __version__"}
    assert sorted(set(circle(graph(sources, {"shop"})))) == ["shop", "shop.a"]
