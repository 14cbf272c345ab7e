"""One measurement: a child in the environment of a system, on its core, its figures or why there are none."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
from typing import Any

from benchmarks import machine
from benchmarks.library import systems

CHILD = pathlib.Path(__file__).with_name("inside") / "child.py"
START_SECONDS = 25.0  # to import, to build and to end, beside what the cell itself takes
LAST_LINES = 3


class Failed(Exception):
    """No figures: the message says why, in a line."""


def measure(system: systems.System, job: dict[str, Any], cache: pathlib.Path, cores: set[int] | None) -> dict[str, Any]:
    """Run the job and return its figures. `cores` are for systems of one process; others have all.

    Whatever the child leaves running is killed with it. Raises `Failed`.
    """
    job = {"system": system.adapter, "callers": 64, **job}
    argv = [str(system.python(cache)), str(CHILD), json.dumps(job)]
    limit = START_SECONDS + 2 * job.get("seconds", 0.0)
    # Into files: a pipe stays open for as long as a grandchild lives.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        with machine.pinned(cores if system.own_process else None):
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=_environment(), start_new_session=True
            )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {limit:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return _figures(_content(out), _content(log), child.returncode)


def _environment() -> dict[str, str]:
    """Ours without what would let a system see another's packages, or ask anybody outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"RAY_USAGE_STATS_ENABLED": "0", "BENTOML_DO_NOT_TRACK": "True", "DO_NOT_TRACK": "1"}


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def _figures(out: str, log: str, status: int) -> dict[str, Any]:
    with contextlib.suppress(IndexError, json.JSONDecodeError):
        found = json.loads(out.splitlines()[-1])
        if isinstance(found, dict):
            return found
    last = [line.strip() for line in log.splitlines() if line.strip()][-LAST_LINES:]
    raise Failed(f"ended with {status}: {' | '.join(last)}"[:300])
