"""Hatch's build hook of carpool and carpool-sidecar: with CARPOOL_COMPILE=1 their wheels have the hot path compiled.

.ci/compiled.py says how, and what. Without the variable the hook does nothing, and needs nothing.
"""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_VARIABLE = "CARPOOL_COMPILE"


def _wanted() -> bool:
    return os.environ.get(_VARIABLE, "").lower() not in ("", "0", "false", "no")


def _compiling(root: Path) -> dict[str, Any]:
    for folder in (root, root.parent):
        file = folder / ".ci" / "compiled.py"
        if file.exists():
            return runpy.run_path(str(file))
    raise SystemExit(f"error: {_VARIABLE} is set, but compiling needs the whole checkout, not a source distribution")


class CompileHook(BuildHookInterface[Any]):
    """Adds compiled modules to a wheel, if they are asked for; an editable install is never compiled."""

    def dependencies(self) -> list[str]:
        """What the build needs: the compiler, and the packages whose types the sources use."""
        if not _wanted():
            return []
        core = self.metadata.core
        extras = [need for needs in core.optional_dependencies.values() for need in needs]
        return ["mypy>=2", "setuptools>=65", *(need for need in [*core.dependencies, *extras] if need[:7] != "carpool")]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and list what was compiled."""
        if version == "editable" or not _wanted():
            return
        compiling = _compiling(Path(self.root))
        (package,) = (each for each in compiling["MODULES"] if (Path(self.root) / each).is_dir())
        folder = Path(tempfile.mkdtemp(prefix="carpool-compiled-"))
        try:
            files = compiling["build"]([package], folder)[package]
        except compiling["Problem"] as error:
            raise SystemExit(f"error: {error}") from None
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(folder / file): str(file) for file in files})
        self._folder = folder

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled; the wheel has it."""
        shutil.rmtree(getattr(self, "_folder", ""), ignore_errors=True)
