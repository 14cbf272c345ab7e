"""Programs that run beside the tests: each has a log, a question that tells when it is ready, and a certain end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
# A little more than the leash gives the command itself.
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
LINES_SHOWN = 30


class ProcessFailed(Exception):
    """A program ended early or was not ready in time; the message ends with the tail of its log."""


def flags(values: Mapping[str, object]) -> list[str]:
    """Command line words, as Go's programs take them."""
    return [f"--{name}={value}" for name, value in values.items()]


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
            self._leash = subprocess.Popen(
                [sys.executable, "-I", str(LEASH), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,  # Ctrl-C is for the tests; they decide what ends, and in which order
            )

    @property
    def pid(self) -> int:
        """Of the leash; what it holds are its children."""
        return self._leash.pid

    @property
    def is_running(self) -> bool:
        return self._leash.poll() is None

    def wait_until_ready(self, is_ready: Callable[[], object], within: float) -> None:
        """Returns when `is_ready` answers true. Raises ProcessFailed after `within` seconds, or when it ends."""

        def settled() -> bool:
            return bool(is_ready()) or not self.is_running

        try:
            eventually(settled, within, f"{self.name} is ready")
        except TimeoutError as late:
            raise ProcessFailed(f"{late}\n{self.tail()}") from None
        if not self.is_running:
            raise ProcessFailed(f"{self.name} ended with status {self._leash.returncode}\n{self.tail()}")

    def tail(self, lines: int = LINES_SHOWN) -> str:
        """See `tail`."""
        return tail(self.log, lines)

    def stop(self) -> None:
        """Ends the program and all it started. Returns when it is gone; a second call does nothing."""
        assert self._leash.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._leash.stdin.close()
        self._leash.wait(STOP_SECONDS)
