"""gRPC: the Go program that is predictor and callers at once (`rpc/main.go`), and what it reports.

ghz, the usual tool, takes twice the CPU for a request, on a core that it would share with the predictor, and looks at
no answer.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Sequence

from benchmarks import golang, load, machine, processes
from benchmarks.v2 import cells, stand

SOURCE = pathlib.Path(__file__).with_name("rpc")


class LoadFailed(Exception):
    """The callers did not report figures; `str()` is what they printed instead."""


def program(cache: pathlib.Path) -> golang.Program:
    """It, built in a folder of `cache`."""
    return golang.Program(SOURCE, cache.resolve() / "rpc" / "rpc", "the gRPC callers and their predictor")


def serve(built: pathlib.Path, port: int) -> list[str]:
    """What starts the predictor."""
    return [str(built), "serve", "-address", f"{processes.HOST}:{port}"]


def measure(built: pathlib.Path, on: stand.Stand, seconds: float, port: int | None = None) -> stand.Sample:
    """One round, each answer checked, of the sidecar or straight to the predictor's `port`. Raises `LoadFailed`."""
    command = [str(built), "load", "-address", f"{processes.HOST}:{port or on.grpc_port}"]
    numbers = {"callers": cells.CONNECTIONS, "connections": cells.RPC_CONNECTIONS, "seconds": seconds}
    command += [word for name, value in numbers.items() for word in (f"-{name}", str(value))]
    cpu = 0.0

    def put_load_on() -> load.Measurement:
        nonlocal cpu
        measured, cpu = parse(_output(command, seconds, on.cores.load))
        return measured

    found = on.observe(put_load_on)
    found.load_busy = cpu / seconds
    return found


def parse(output: str) -> tuple[load.Measurement, float]:
    """The figures in what the callers printed, and their CPU seconds. Raises `LoadFailed` when there are none."""
    try:
        figures = json.loads(output)
        told = {name: figures[name] for name in ("requests", "seconds", "p50", "p99", "errors")}
        return load.Measurement(**told), float(figures["cpu"])
    except (ValueError, KeyError, TypeError):
        raise LoadFailed(output.strip() or "the callers printed nothing") from None


def _output(command: Sequence[str], seconds: float, cores: set[int] | None) -> str:
    with machine.pinned(cores):
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds + load.PATIENCE, check=False)
    return result.stdout + result.stderr
