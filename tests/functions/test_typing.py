"""The library is typed end to end: two checkers infer of the examples what these say, and find the mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent / "typing"
ROOT = Path(__file__).parents[2]

CHECKERS = {
    "mypy": ["mypy", "--strict", "--warn-unused-ignores", str(EXAMPLES)],
    "pyright": ["pyright", "--warnings", "--pythonpath", sys.executable, "--project", str(EXAMPLES)],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_infer_what_the_examples_say_and_find_the_mistakes(checker: str) -> None:
    """Examples assert the inferred types; lines with a mistake say so, and would be complained of if they had none."""
    module, *arguments = CHECKERS[checker]
    made = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=110,
        env=os.environ | {"PYRIGHT_PYTHON_GLOBAL_NODE": "0", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
