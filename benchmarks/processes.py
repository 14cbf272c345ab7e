"""Child processes of a run: started on given cores, watched until ready, always stopped.

Children get a session of their own, so that Ctrl-C reaches only the program in front, which then stops them one by
one. What they print goes to a file whose tail explains a failure.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import psutil

from benchmarks import client, machine

HOST = "127.0.0.1"

# Logs a person can read in a terminal. A predictor whose model cannot be loaded keeps trying, as it should in a pod;
# here the first error line ends the wait.
_LOGS = ("--log-format", "text", "--log-level", "warning")
_ERROR_LINE = re.compile(r"^[\d:]+ ERROR ", re.MULTILINE)


class ChildFailed(Exception):
    """A child ended or did not become ready. `str()` says which and what to do; `log` is the tail of its output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Child:
    """One running child process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._output = output

    @property
    def command(self) -> str:
        """What was run, as one would type it."""
        program, *rest = map(str, self._process.args)  # type: ignore[arg-type]
        return shlex.join([pathlib.Path(program).name, *rest])

    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """As `subprocess.Popen.returncode` has it; None while it runs."""
        return self._process.poll()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        return "\n".join(self._log().splitlines()[-lines:])

    def _log(self) -> str:
        return pathlib.Path(self._output.name).read_text(errors="replace")

    def wait_until_ready(self, url: str, timeout: float, pause: float = 0.1) -> None:
        """Return once `url` answers 200.

        Raises `ChildFailed` when the child ends or logs an error before that, or when time runs out.
        """
        deadline = time.monotonic() + timeout
        while not _answers_ok(url):
            if not self.is_running():
                code = self._process.returncode
                raise ChildFailed(f"the {self.name} ended with exit code {code}", self.log_tail())
            if _ERROR_LINE.search(self._log()):
                raise ChildFailed(f"the {self.name} logged an error while it started", self.log_tail())
            if time.monotonic() > deadline:
                message = f"the {self.name} was not ready after {timeout:.0f} s ({url})"
                raise ChildFailed(message, self.log_tail())
            time.sleep(pause)

    def stop(self, patience: float = 10.0) -> None:
        """Ask it to end, wait, and end it and its own children by force if it does not."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.pid).children(recursive=True)
        if self.is_running():
            self._process.terminate()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for orphan in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    cores: set[int] | None = None,
    env: Mapping[str, str] | None = None,
    folder: pathlib.Path | None = None,
) -> Iterator[Child]:
    """Run a command for the length of a `with` block, on the given cores, in `folder` if that is given.

    `env` is added to the environment.
    """
    with tempfile.NamedTemporaryFile(prefix=f"carpool-{name}-", suffix=".log") as output:
        with machine.pinned(cores):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **(env or {})},
            )
        child = Child(name, process, output)
        try:
            yield child
        finally:
            child.stop()


def predictor_command(port: int, arguments: Sequence[str]) -> list[str]:
    """The predictor of this distribution, under this Python."""
    return [sys.executable, "-m", "carpool_predictor", "--port", str(port), *_LOGS, *arguments]


def sidecar_command(port: int, component_port: int, admin_port: int, arguments: Sequence[str]) -> list[str]:
    """The sidecar of this distribution, under this Python, quick to stop."""
    ports = ["--port", str(port), "--component-port", str(component_port), "--admin-port", str(admin_port)]
    return [sys.executable, "-m", "carpool_sidecar", *ports, "--quiet-period", "0", *_LOGS, *arguments]


def ready_url(port: int) -> str:
    """Where the predictor, and the sidecar on its admin port, say whether they are ready."""
    return f"http://{HOST}:{port}/readyz"


def _answers_ok(url: str) -> bool:
    try:
        client.get(url, timeout=2)
    except (OSError, http.client.HTTPException):  # refused, reset, timed out, or a status such as 503
        return False
    return True
