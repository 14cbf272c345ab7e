"""The scripts of `.ci` as modules. They are no package: they find each other by their folder, as when they run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / ".ci", ROOT / ".ci" / "image_build")


@pytest.fixture(scope="session")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """Imports one of the scripts by its name."""
    before = list(sys.path)
    sys.path[:0] = map(str, FOLDERS)
    yield importlib.import_module
    sys.path[:] = before
