"""Modules that are written in C beside their Python, built for tests of both, where there is a C compiler."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sysconfig
from importlib import machinery, util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def in_c(name: str, folder: Path, *flags: str) -> ModuleType:
    """`carpool_sidecar.NAME` in C: that of the compiled build, or one that is made in `folder`, always so with `flags`.

    What was made there before is taken as it is. Else the compiler gets the flags of the environment's CFLAGS as well.
    Skips the test if there is no compiler.
    """
    present = importlib.import_module(f"carpool_sidecar.{name}")
    if not flags and str(present.__file__).endswith(tuple(machinery.EXTENSION_SUFFIXES)):
        return present
    source = (ROOT / "sidecar" / "carpool_sidecar" / name.replace(".", "/")).with_suffix(".c")
    library = folder / f"{source.stem}{machinery.EXTENSION_SUFFIXES[0]}"
    if library.exists():
        return _loaded(source.stem, library)
    script = runpy.run_path(str(ROOT / ".ci" / "compiled.py"))
    try:
        script["check"](tools=False)
    except script["Problem"] as error:
        pytest.skip(str(error))
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    include = sysconfig.get_path("include")
    subprocess.run(
        [*compiler, "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-shared", "-fPIC", f"-I{include}",
         *os.environ.get("CFLAGS", "").split(), *flags, str(source), "-o", str(library)], check=True,
    )  # fmt: skip
    return _loaded(source.stem, library)


def in_python(name: str) -> ModuleType:
    """`carpool_sidecar.NAME` in Python, whatever the build is."""
    source = (ROOT / "sidecar" / "carpool_sidecar" / name.replace(".", "/")).with_suffix(".py")
    return _loaded(source.stem, source)


def _loaded(name: str, file: Path) -> ModuleType:
    spec = util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
