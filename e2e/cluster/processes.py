"""Other programs: run to their end, or beside the tests with a log, a readiness check and a certain end."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

WATCHDOG = Path(__file__).with_name("parent_watchdog.py")
# A little more than the watchdog gives the command itself.
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
LINES_SHOWN = 30
# What a shell, and coreutils' `timeout`, report for these.
NO_SUCH_PROGRAM = 127
OUT_OF_TIME = 124
SECONDS = 60.0


class ProcessFailed(Exception):
    """A program ended early or was not ready in time; the message ends with the tail of its log."""


def flags(values: Mapping[str, object]) -> list[str]:
    """Command line words, as Go's programs take them."""
    return [f"--{name}={value}" for name, value in values.items()]


def answers_ok(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET is answered with 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def eventually(question: Callable[[], object], within: float, what: str) -> None:
    """Asks until the answer is true. Raises TimeoutError, with `what` was waited for, after `within` seconds."""
    deadline = time.monotonic() + within
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within:g} s")
        time.sleep(POLL_SECONDS)


def tail(log: Path, lines: int = LINES_SHOWN) -> str:
    """The last lines of a log, under a line that says where the whole of it lies."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else ["(there is none)"]
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in text)])


class Process:
    """A running program. It ends with `stop`, and also when the process that made this object ends in any way."""

    def __init__(self, name: str, command: Sequence[str], log: Path, folder: Path | None = None) -> None:
        """Starts it, in `folder` (None: where the tests run), with its output appended to `log`."""
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", str(WATCHDOG), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,  # Ctrl-C reaches the tests alone; they stop processes in order
            )

    @property
    def pid(self) -> int:
        """The process id of the watchdog; the program is its child."""
        return self._watchdog.pid

    @property
    def is_running(self) -> bool:
        return self._watchdog.poll() is None

    def wait_until_ready(self, is_ready: Callable[[], object], within: float) -> None:
        """Returns when `is_ready` answers true. Raises ProcessFailed after `within` seconds, or when it ends."""

        def settled() -> bool:
            return bool(is_ready()) or not self.is_running

        try:
            eventually(settled, within, f"{self.name} is ready")
        except TimeoutError as late:
            raise ProcessFailed(f"{late}\n{self.tail()}") from None
        if not self.is_running:
            raise ProcessFailed(f"{self.name} ended with status {self._watchdog.returncode}\n{self.tail()}")

    def tail(self, lines: int = LINES_SHOWN) -> str:
        """See `tail`."""
        return tail(self.log, lines)

    def stop(self) -> None:
        """Ends the program and all it started. Returns when it is gone; a second call does nothing."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.stdin.close()
        self._watchdog.wait(STOP_SECONDS)


class Done(NamedTuple):
    """How a program ended, and what it printed."""

    status: int
    output: str = ""
    errors: str = ""

    @property
    def words(self) -> str:
        """Its errors, or else its output, on one line."""
        return " ".join((self.errors.strip() or self.output.strip()).split()) or f"it ended with status {self.status}"


class Run(Protocol):
    """A way to run programs: `run` below, or a fake of it."""

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
