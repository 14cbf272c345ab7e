"""`make wheels`: what a release has, and what is said where it cannot be built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests import test_distributions

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".ci" / "wheels.py"


def make(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


def test_without_a_compiler_there_is_a_plain_wheel_and_a_source_distribution_of_each(tmp_path: Path) -> None:
    out = tmp_path / "dist"
    ended = make(str(out), "--only", "plain", CC=str(tmp_path / "no-compiler"))
    assert ended.returncode == 0, ended.stderr
    version = test_distributions.PROJECTS["carpool"]["version"]
    expected = {f"{name}-{version}" for name in test_distributions.FOLDERS}
    assert {path.name.removesuffix("-py3-none-any.whl") for path in out.glob("*.whl")} == expected
    assert {path.name.removesuffix(".tar.gz") for path in out.glob("*.tar.gz")} == expected


def test_what_lies_in_the_folder_is_never_taken_for_part_of_a_release(tmp_path: Path) -> None:
    (tmp_path / "carpool-0.0.1-py3-none-any.whl").touch()
    ended = make(str(tmp_path), "--only", "plain")
    assert ended.returncode == 1
    assert re.match(r"wheels: error: \S+ is not empty: ", ended.stderr)


def test_an_interpreter_that_is_not_here_is_named_before_anything_is_built(tmp_path: Path) -> None:
    ended = make(str(tmp_path), "--python", "python9.9")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "there is no interpreter python9.9 here" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_compiled_wheels_are_refused_and_the_remedy_is_said(tmp_path: Path) -> None:
    ended = make(str(tmp_path), CC=str(tmp_path / "no-compiler"))
    assert ended.returncode == 1
    assert re.search(r"there is no C compiler .*; install one", ended.stderr)
