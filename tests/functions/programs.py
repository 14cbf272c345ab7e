"""Runs a program in an interpreter of its own, for promises about its end, its forks and its signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]

# Not `-X dev`: with that asyncio complains of each step that takes long, as all do on a busy machine.
_CHECKS = ["-X", "faulthandler", "-W", "error", "-W", "ignore:.*fork:DeprecationWarning"]

_PREFACE = """
import asyncio, atexit, faulthandler, os, signal, sys, threading, time
import carpool
faulthandler.register(signal.SIGUSR1)  # what hangs says where

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write: lines of threads and forks stay whole
"""


def run_program(
    source: str, *, status: int = 0, errors: str | None = "", seconds: int = 20, checks: bool = True
) -> list[str]:
    """The lines that a program says, which ends by itself with this status and has written only `errors` to stderr.

    `errors=None` allows any. With `checks` all warnings are errors. In the program
    `carpool` is imported, and `say(…)` writes a line.
    """
    program = subprocess.Popen(
        [sys.executable, *(_CHECKS if checks else ()), "-c",
         _PREFACE + textwrap.dedent(source)],
        cwd=_ROOT, env=os.environ | {"PYTHONPATH": str(_ROOT)}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    hangs = False
    try:
        said, complaints = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        hangs = True
        program.send_signal(signal.SIGUSR1)
        time.sleep(0.5)  # for the traceback
        os.killpg(program.pid, signal.SIGKILL)
        said, complaints = program.communicate()
    assert not hangs, f"it hangs\n{said}\n{complaints}"
    assert program.returncode == status, f"status {program.returncode}\n{said}\n{complaints}"
    assert errors is None or complaints == errors, complaints
    return said.splitlines()
