"""The targets of `make fuzz` can be run, hold on a few inputs, and are told by name."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from benchmarks.fuzz import targets


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_target_takes_any_bytes(name: str) -> None:
    target = targets.load(name)
    generator = random.Random(name)
    for size in (0, 1, 10, 100, 1000):
        target(generator.randbytes(size))


def test_an_unknown_target_is_told_with_those_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", "http3"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no target 'http3'; there are forms, numbers, json" in ended.stderr
