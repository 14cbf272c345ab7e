"""Minutes of mixed load on one sidecar or, where the hot path is compiled, on two beside each other: does memory grow?

    python -m benchmarks.soak --seconds 240

Small, middling and large bodies, what an ingress sends (`mix.py`), and connections for a single request, half of whose
callers leave before the answer. Prints the memory as it goes. Exits with 1 if a sidecar dies, logs a warning, counts an
internal error, or answers something else than the load asked for.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import random
import re
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

import carpool_sidecar
from benchmarks import bodies, client, load, mix, processes, wrk
from benchmarks.peers import stub
from carpool import compiled
from tests import loopback

READY_SECONDS = 120.0
SETTLE_SECONDS = 3.0  # after which what large bodies took is given back
_PATH = "/v1/models/echo:predict"
_LOADS: dict[str, tuple[int, int]] = {"37 B": (37, 32), "8 kB": (8_000, 32), "1.5 MB": (1_500_000, 8)}
_MIXED_SIZE, _MIXED_CONNECTIONS = 200, 32
_INTERNAL = re.compile(r"(?m)^carpool_internal_errors_total\{.*\} (?!0\.0$)\S+$")


@dataclass(frozen=True)
class Side:
    """A sidecar that runs."""

    name: str
    child: processes.Child
    port: int
    admin_port: int

    @property
    def megabytes(self) -> float:
        return float(psutil.Process(self.child.pid).memory_info().rss / 1e6)

    def faults(self) -> list[str]:
        """What went wrong inside it."""
        if not self.child.is_running():
            return [f"it ended with status {self.child.exit_status}", self.child.log_tail()]
        counted = client.get(f"http://{processes.HOST}:{self.admin_port}/metrics", timeout=10).decode()
        return [*self.child.log_tail().splitlines(), *_INTERNAL.findall(counted)]


def _post(side: Side, name: str, seconds: float) -> load.Measurement:
    size, connections = _LOADS[name]
    return wrk.measure(f"http://{processes.HOST}:{side.port}{_PATH}", bodies.exact(size), connections, seconds, None)


def _mixed(side: Side, name: str, seconds: float) -> load.Measurement:
    host = f"{processes.HOST}:{side.port}"
    prepared = mix.requests("mixed", host, _PATH, _MIXED_SIZE)
    measured = wrk.measure(f"http://{host}{_PATH}", b"", _MIXED_CONNECTIONS, seconds, None, prepared=prepared)
    # Bodies that are no JSON are part of it.
    if measured.errors.get("status", 0) <= 2 * mix.refused("mixed", measured.requests) + 1:
        measured.errors.pop("status", None)
    return measured


def _short(side: Side, name: str, seconds: float) -> load.Measurement:
    body, chance = bodies.exact(bodies.SMALLEST), random.Random(1)
    head = f"POST {_PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    count, start = 0, time.monotonic()
    while time.monotonic() < start + seconds:
        with socket.create_connection((processes.HOST, side.port), timeout=30) as connection:
            connection.sendall(head.encode() + body)
            if chance.random() < 0.5 and not connection.recv(4096).startswith(b"HTTP/1.1 200 "):
                return load.Measurement(count, seconds, 0, 0, {"status": 1})
        count += 1
        time.sleep(0.005)
    return load.Measurement(count, seconds, 0, 0)


_ALL = {**dict.fromkeys(_LOADS, _post), "mixed": _mixed, "short connections": _short}


def soak(sides: Sequence[Side], seconds: float, every: float) -> list[str]:
    """Put the load on all of them at once; returns what went wrong."""
    faults = []
    with concurrent.futures.ThreadPoolExecutor(len(sides) * len(_ALL)) as pool:
        running = {
            (side.name, name): pool.submit(send, side, name, seconds) for side in sides for name, send in _ALL.items()
        }
        start = time.monotonic()
        while concurrent.futures.wait(running.values(), timeout=every).not_done:
            told = ", ".join(f"{side.name} {side.megabytes:.1f} MB" for side in sides if side.child.is_running())
            print(f"{time.monotonic() - start:5.0f} s: {told}", flush=True)
    time.sleep(SETTLE_SECONDS)
    for side in sides:
        found = {name: running[side.name, name].result() for name in _ALL}
        print(f"{side.name}: " + ", ".join(f"{each.requests:,} {name}" for name, each in found.items()))
        print(f"  afterwards {side.megabytes:.1f} MB" if side.child.is_running() else "  gone")
        faults += [f"{side.name}, {name}: {each.errors}" for name, each in found.items() if any(each.errors.values())]
        faults += [f"{side.name}: {fault}" for fault in side.faults()]
    return faults


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when nothing went wrong; memory is for the reader to judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, metavar="X", help="how long (default: %(default)s)")
    parser.add_argument(
        "--every", type=float, default=15.0, metavar="X", help="between two lines (default: %(default)s)"
    )
    wanted = parser.parse_args(argv)
    builds = [carpool_sidecar.build(), *(["python"] if carpool_sidecar.build() != "python" else [])]
    with contextlib.ExitStack() as stack:
        (behind,) = loopback.free_ports(1)
        stack.enter_context(processes.running("stub", stub.command(sys.executable, behind))).wait_until_ready(
            processes.ready_url(behind), READY_SECONDS
        )
        sides = []
        for build in builds:
            port, admin = loopback.free_ports(2)
            command = processes.sidecar_command(port, behind, admin, ["--policy", "window", "--max-latency", "5"])
            pure = {compiled.VARIABLE: "1"} if build == "python" else {}
            side = Side(build, stack.enter_context(processes.running(build, command, None, pure)), port, admin)
            side.child.wait_until_ready(processes.ready_url(admin), READY_SECONDS)
            sides.append(side)
        faults = soak(sides, wanted.seconds, wanted.every)
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
