"""Whether the hot path runs compiled, and what decides that.

Wheels that were built with CARPOOL_COMPILE=1 have some modules twice: compiled with mypyc, and as the Python they were
compiled from. Python prefers the compiled ones. `CARPOOL_PURE_PYTHON=1` in the environment says otherwise, for a
debugger or a profiler, or to find out whether a fault is the compiler's.

Compiled modules of carpool and of carpool-sidecar call each other as C does and share the layout of objects in memory.
So those of the sidecar are used only beside the ones they were built with; else the sidecar's run as plain Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import machinery, util
from typing import TYPE_CHECKING

VARIABLE = "CARPOOL_PURE_PYTHON"

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**wanted: object) -> Callable[[type], type]:
        """What mypyc reads of a class, as `allow_interpreted_subclasses`; a package of mypy's would have it else."""
        return lambda decorated: decorated


_MARK = "compiled_"
_plain: set[str] = set()


def wanted() -> bool:
    """Whether the environment allows compiled modules."""
    return os.environ.get(VARIABLE, "").lower() in ("", "0", "false", "no")


def build(folders: Sequence[str]) -> str | None:
    """Which build the compiled modules of a package come from, or None if it has none; `folders` is its `__path__`."""
    for folder in folders:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(_MARK) and "__mypyc." in name:
                return name.removeprefix(_MARK).partition("__mypyc.")[0]
    return None


def choose(folders: Sequence[str], beside: Sequence[str] | None = None) -> None:
    """Have a package's modules loaded as plain Python where its compiled ones are not wanted or do not fit.

    They fit if the package whose `__path__` is `beside` comes from the same build. Has to be called before any module
    of the package is imported, but this one.
    """
    own = build(folders)
    if own is None or (wanted() and (beside is None or (build(beside) == own and not _plain.intersection(beside)))):
        return
    if not _plain:
        sys.path_hooks.insert(0, _plain_finder)
    _plain.update(folders)
    for folder in folders:
        sys.path_importer_cache.pop(folder, None)


def running(*modules: str) -> str:
    """What runs, or would run, of these modules: `compiled`, `python`, or `partly compiled`."""
    specs = [util.find_spec(name) for name in modules]
    compiled = [spec is not None and isinstance(spec.loader, machinery.ExtensionFileLoader) for spec in specs]
    return "compiled" if all(compiled) else "partly compiled" if any(compiled) else "python"


def _plain_finder(folder: str) -> machinery.FileFinder:
    """A path hook: finds Python alone in the folders of the packages that were chosen."""
    if not any(folder == each or folder.startswith(each + os.sep) for each in _plain):
        raise ImportError
    return machinery.FileFinder(folder, (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES))
