"""One attack, measured: victims before, during and after it, and the server's memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.attack import attack, attacker, stand, target, verdicts, victim
from tests import loopback

WARM_UP = 0.5
BEFORE = 1.5
AFTER = 1.0
SETTLING = 10.0
"""Seconds that memory has to come back."""

_LIMIT = 2_500.0  # MB that a server may grow to; more ends the attack
_GRACE = 15.0
_LOOK = 0.1
_VICTIMS_PATIENCE = 45.0


def run(chosen: attack.Attack, server: stand.Server, seconds: float | None) -> verdicts.Trial:
    """Attack the server, and look at what that is to others."""
    trial = verdicts.Trial(chosen.name, chosen.title, server.name)
    length = seconds or chosen.seconds
    with stand.Memory(server.child.pid) as memory, _victims(server) as stop:
        time.sleep(WARM_UP)
        before = time.monotonic()
        memory.restart()
        time.sleep(BEFORE)
        trial.memory_before = memory.now()
        began = time.monotonic()
        try:
            trial.told = _attack(chosen, server, length, memory)
        except (ValueError, TypeError, OSError) as error:
            trial.trouble = f"the attacker failed: {error}"
        if trial.told is not None:
            began = trial.told.began  # its process needs a second to start
        ended = time.monotonic()
        trial.memory_after = memory.fallen_to(trial.memory_before + verdicts.MOST_KEPT, SETTLING)
        after = time.monotonic()
        time.sleep(AFTER)
        trial.memory_peak = memory.peak
        trial.memory_after = min(trial.memory_after, memory.now())
        if not server.child.is_running():
            trial.death = f"exit status {server.child.exit_status}: {server.child.log_tail()}"
        try:
            samples = stop()
        except (ValueError, OSError, subprocess.TimeoutExpired) as error:
            trial.trouble = trial.trouble or f"the victims failed: {error}"
            return trial
    trial.before = _between(samples, before, began)
    trial.during = _between(samples, began, ended)
    trial.after = _between(samples, after, float("inf"))
    return trial


def _between(samples: Sequence[victim.Sample], start: float, end: float) -> dict[str, verdicts.Seen]:
    """By kind, of the calls that were due in this time."""
    found: dict[str, list[victim.Sample]] = {}
    for each in samples:
        kind = found.setdefault(each.kind, [])
        if start <= each.due < end:
            kind.append(each)
    return {kind: verdicts.Seen.of(chosen) for kind, chosen in found.items()}


def _attack(chosen: attack.Attack, server: stand.Server, seconds: float, memory: stand.Memory) -> target.Told:
    """Raises `ValueError` with the attacker's words when it fails."""
    command = attacker.command(
        sys.executable,
        chosen.name,
        loopback.HOST,
        server.grpc_port,
        server.http_port or 0,
        server.admin_port or 0,
        seconds,
    )
    with _child(command) as process:
        deadline = time.monotonic() + seconds + _GRACE
        while process.poll() is None:
            if memory.now() > _LIMIT or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return target.Told(time.monotonic() - seconds, seconds=seconds, last_words={"stopped by us": 1})
            time.sleep(_LOOK)
        output, complaint = process.communicate()
    try:
        return target.Told.from_json(output.decode().splitlines()[-1])
    except (IndexError, ValueError, TypeError):
        raise ValueError(complaint.decode(errors="replace").strip()[-2000:] or "it said nothing") from None


@contextlib.contextmanager
def _victims(server: stand.Server) -> Iterator[Callable[[], list[victim.Sample]]]:
    """Victims at work; the function ends them and returns what they saw. It raises `ValueError`, `OSError` and
    `subprocess.TimeoutExpired`."""
    with _child(victim.command(sys.executable, server.grpc_port, server.http_port, server.admin_port)) as process:
        assert process.stdout is not None
        process.stdout.readline()  # they are up

        def stop() -> list[victim.Sample]:
            output, complaint = process.communicate(b"stop\n", timeout=_VICTIMS_PATIENCE)
            if process.returncode:
                raise ValueError(complaint.decode(errors="replace").strip()[-2000:])
            return [victim.Sample(*each) for each in json.loads(output)]

        yield stop


@contextlib.contextmanager
def _child(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """One that is gone at the end of the block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
