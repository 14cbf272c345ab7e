"""What programs in pods import of this project lies beside them: a missing module shows on a cluster only."""

from __future__ import annotations

import ast

import pytest

from e2e.live.rpc import servers

HERE = ("tests", "e2e", "benchmarks", "carpool_injector", "carpool_predictor")


def imported(source: str) -> set[str]:
    """The files of this project's modules that a source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return {f"{name.replace('.', '/')}.py" for name in found if name.partition(".")[0] in HERE}


@pytest.mark.parametrize("file", servers.FILES)
def test_every_module_that_the_stand_in_for_triton_imports_is_in_the_pod(file: str) -> None:
    assert imported(servers.FILES[file].read_text()) <= servers.FILES.keys()
