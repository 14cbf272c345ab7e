"""Imports modules of a large package without what the package itself would import along with them.

`kubernetes` and `kubernetes.aio` import two clients whole, with requests, urllib3, oauthlib and websocket: 11 MB of
memory that nobody here uses, a seventh of what the injector may take.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_package_code(*packages: str) -> Iterator[None]:
    """Within, modules of these packages (outer ones first) are imported without running the packages' `__init__`.

    Afterwards the packages are as if never imported: whoever imports them gets them whole. A package that was already
    imported is left alone. Raises ModuleNotFoundError.
    """
    added = []
    try:
        for package in packages:
            if package not in sys.modules:
                sys.modules[package] = importlib.util.module_from_spec(_spec_of(package))
                added.append(package)
        yield
    finally:
        for package in added:
            del sys.modules[package]


def _spec_of(package: str) -> importlib.machinery.ModuleSpec:
    parent = package.rpartition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(package, sys.modules[parent].__path__ if parent else None)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return spec
