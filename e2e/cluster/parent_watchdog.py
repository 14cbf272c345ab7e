"""Runs a command until its parent process ends: the end of stdin ends the command and all that it has started.

A test run can be killed so that no clean-up code runs. The kernel closes its pipes even then, so the watchdog reads
from a pipe that the parent keeps open. It is a script that imports the standard library alone, because it is started
once for each component:

    python parent_watchdog.py COMMAND [ARGUMENTS]

Exits with the command's status, or 128 plus the signal that ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

# How long a component may take to end after SIGTERM.
GRACE_SECONDS = 10.0


def end(command: subprocess.Popen[bytes]) -> None:
    """Stops the command's process group, with SIGTERM and then with SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(GRACE_SECONDS)
    # Also after a polite end: what the command started may still run.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)


def main() -> int:
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_for_the_end_of_stdin() -> None:
        while os.read(0, 1024):
            pass
        end(command)

    threading.Thread(target=wait_for_the_end_of_stdin, daemon=True).start()
    status = command.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
