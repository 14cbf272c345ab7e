"""Probes and hooks have one home: `pods` has their shape, `references` reads and changes them, and nobody else does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import carpool_injector

CORE = Path(str(carpool_injector.__file__)).parent / "core"
MEMBERS = {"readinessProbe", "livenessProbe", "startupProbe", "postStart", "preStop", "lifecycle"}
VIEWS = {
    "handlers", "actions", "http_get", "tcp_socket", "readiness_probe", "liveness_probe", "startup_probe", "lifecycle",
    "post_start", "pre_stop",
}  # fmt: skip


def named(path: Path) -> Iterator[str]:
    """The fields of probes and hooks that a module names: of the view, or of a container's JSON."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in VIEWS:
            yield node.attr
        if isinstance(node, ast.Constant) and node.value in MEMBERS:
            yield str(node.value)


def test_only_the_list_of_references_reads_or_changes_probes_and_hooks() -> None:
    found = {str(path.relative_to(CORE)): set(named(path)) for path in CORE.rglob("*.py")}
    knowing = {name for name, fields in found.items() if fields}
    # The sidecar's own container is built with probes and a hook.
    assert knowing == {"pods.py", "references.py", "container.py"}
    assert found["container.py"] <= MEMBERS
