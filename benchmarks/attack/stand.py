"""The servers of a run: a sidecar with its predictor, or plain grpcio; started here, on loopback."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from benchmarks import machine, processes
from benchmarks.attack import backend
from tests import loopback

READY_SECONDS = 60.0
_LOOK = 0.05


@dataclass(frozen=True)
class Server:
    """What is attacked. `http_port` is None where there is no HTTP to be attacked."""

    name: str
    child: processes.Child
    grpc_port: int
    http_port: int | None
    admin_port: int | None = None


@contextlib.contextmanager
def carpool(more: Sequence[str] = (), files: int | None = None) -> Iterator[Server]:
    """The sidecar as it is by default or with `more` flags, and its predictor. It may have so many `files` open."""
    port, grpc_port, admin_port, behind_http, behind_grpc = loopback.free_ports(5)
    flags = ["--grpc-port", str(grpc_port), "--component-grpc-port", str(behind_grpc), "--host", loopback.HOST, *more]
    command = processes.sidecar_command(port, behind_http, admin_port, flags)
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sidecar", *command]
    with (
        processes.running("predictor", backend.command(sys.executable, behind_http, behind_grpc)) as behind,
        processes.running("sidecar", command) as sidecar,
    ):
        behind.wait_until_ready(processes.ready_url(behind_http), READY_SECONDS)
        sidecar.wait_until_ready(processes.ready_url(admin_port), READY_SECONDS)
        yield Server("carpool", sidecar, grpc_port, port, admin_port)


@contextlib.contextmanager
def grpcio(_: Sequence[str] = (), __: int | None = None) -> Iterator[Server]:
    """The same service from grpcio's asyncio server, without anything in front."""
    http_port, grpc_port = loopback.free_ports(2)
    with processes.running("grpcio", backend.command(sys.executable, http_port, grpc_port)) as child:
        child.wait_until_ready(processes.ready_url(http_port), READY_SECONDS)
        yield Server("grpcio", child, grpc_port, None)


SERVERS = {"carpool": carpool, "grpcio": grpcio}


class Memory:
    """Watches the memory of a process, in MB, for the length of a `with` block."""

    # State: the peak since the last `restart`.
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0.0

    def now(self) -> float:
        """0 when the process is gone."""
        try:
            return machine.rss_megabytes(self._pid)
        except psutil.NoSuchProcess:
            return 0.0

    def restart(self) -> None:
        """Forget the peak."""
        self.peak = self.now()

    def fallen_to(self, most: float, patience: float) -> float:
        """Wait until it is no more than that, or for so many seconds; returns what it is then."""
        deadline = time.monotonic() + patience
        while (found := self.now()) > most and time.monotonic() < deadline:
            time.sleep(_LOOK)
        return found

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK):
            self.peak = max(self.peak, self.now())
