"""Runs other programs, behind an interface that tests can stand in for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import NamedTuple, Protocol

# What a shell, and coreutils' `timeout`, report for these.
NO_SUCH_PROGRAM = 127
OUT_OF_TIME = 124
SECONDS = 60.0


class Done(NamedTuple):
    """How a program ended, and what it printed."""

    status: int
    output: str = ""
    errors: str = ""

    @property
    def words(self) -> str:
        """What it complained about, on one line."""
        return " ".join((self.errors.strip() or self.output.strip()).split()) or f"it ended with status {self.status}"


class Run(Protocol):
    """A way to run programs: `run` below, and what stands in for it."""

    def __call__(
        self, *words: str, seconds: float = SECONDS, show: bool = False, environment: Mapping[str, str] | None = None
    ) -> Done: ...


def run(
    *words: str, seconds: float = SECONDS, show: bool = False, environment: Mapping[str, str] | None = None
) -> Done:
    """Runs a program to its end, for `seconds` at most; `show` lets its errors through to ours. Never raises.

    The status is 127 where there is no such program, and 124 where it was ended because its time was up.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        return Done(NO_SUCH_PROGRAM, errors=f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Done(OUT_OF_TIME, errors=f"{words[0]} was ended after {seconds:g} s")
    return Done(done.returncode, done.stdout, done.stderr or "")
