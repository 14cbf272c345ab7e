"""What the tests of the images' scripts share: the scripts as modules, and programs that are only said to be there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ci_scripts import script

__all__ = ["program", "script"]

Program = Callable[[str, str], None]


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
