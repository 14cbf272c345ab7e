"""What the tests of the images' scripts share: the scripts as modules, and programs that are only said to be there."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (ROOT / ".ci", ROOT / ".ci" / "image_build")

Program = Callable[[str, str], None]


@pytest.fixture(scope="session")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """Imports one of the scripts, which find each other by their folder as they do when they run."""
    before = list(sys.path)
    sys.path[:0] = map(str, FOLDERS)
    yield importlib.import_module
    sys.path[:] = before


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts programs, as lines of shell, on a PATH that has nothing else but what shells need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "cat", "touch", "dirname"):
        (folder / tool).symlink_to(next(path for path in (f"/bin/{tool}", f"/usr/bin/{tool}") if os.path.exists(path)))
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, words: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{words}\n")
        (folder / name).chmod(0o755)

    return put
