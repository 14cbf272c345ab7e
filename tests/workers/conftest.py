"""Pools that are stopped after each test, and programs that start workers."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from carpool.workers import pool, worker

ROOT = pathlib.Path(__file__).parent.parent.parent

On = Callable[..., pool.Processes[..., Any]]


def never_pausing() -> worker.Backoff:
    return worker.Backoff(0.0)


def pausing_for_ever() -> worker.Backoff:
    return worker.Backoff(3600.0, 3600.0)


@pytest.fixture
def on() -> Iterator[On]:
    """`on(model, *args, devices=("cpu",), **options)`: a pool."""
    made: list[pool.Processes[..., Any]] = []

    def on(model: Any, *args: Any, devices: tuple[str, ...] = ("cpu",), **options: Any) -> pool.Processes[..., Any]:
        made.append(pool.processes(model, *args).on(*devices, **{"pauses": never_pausing} | options))
        return made[-1]

    yield on
    for each in made:
        each.stop(timeout=0.0)


@pytest.fixture
def pipe(tmp_path: pathlib.Path) -> pathlib.Path:
    """A named pipe: whoever reads it waits until another opens it for writing, and the other way round."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def program(tmp_path: pathlib.Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`program(source, *arguments)`: a running Python program that may import `carpool` and `tests`."""
    running: list[subprocess.Popen[str]] = []

    def program(source: str, *arguments: object) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source))
        process = subprocess.Popen(
            [sys.executable, str(path), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        running.append(process)
        return process

    yield program
    for process in running:
        process.kill()
        process.communicate()
