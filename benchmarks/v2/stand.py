"""The stand: a stub and a sidecar on their cores, one round of load on them, and what it came to."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvloop

from benchmarks import client, load, machine, metrics, processes, stub_server, wrk
from benchmarks.peers import ground, samples
from benchmarks.v2 import cells, stub, traffic
from tests import loopback

_CHECKED, _LARGE_CHECKED = 512, 32
_LARGE = 100_000


@dataclass
class Sample(samples.Sample):
    """One round, with what it was to others: `behind_busy` is the predictor's share of the core that it shares with
    the load, `load_busy` the load's (None where it does not say), `others_busy` everybody else's on the sidecar's."""

    behind_busy: float | None = None
    load_busy: float | None = None
    batch: float | None = None
    others_busy: float | None = None


class WrongAnswers(Exception):
    """Answers were missing, or somebody else's; `str()` says how many."""


class Stand:
    """A sidecar and the stub behind it. `port`, `grpc_port` are the sidecar's, `component_port` the stub's."""

    def __init__(self, cores: ground.Cores) -> None:
        self.cores = cores
        self.port, self.grpc_port, self.component_port, self._admin_port = loopback.free_ports(4)
        self._sidecar: processes.Child
        self._behind: processes.Child

    @contextlib.contextmanager
    def http(self, flags: Sequence[str], behind: str = stub.MODULE) -> Iterator[Stand]:
        """In front of a stub for HTTP, the module named, for the length of a `with` block."""
        with self._running(stub_server.command(sys.executable, behind, self.component_port), flags):
            yield self

    @contextlib.contextmanager
    def rpc(self, command: Callable[[int], Sequence[str]], flags: Sequence[str]) -> Iterator[Stand]:
        """In front of the predictor for gRPC that `command` starts on a port, for the length of a `with` block."""
        ports = ["--grpc-port", str(self.grpc_port), "--component-grpc-port", str(self.component_port)]
        with self._running(command(self.component_port), [*ports, *flags]):
            yield self

    @contextlib.contextmanager
    def _running(self, behind: Sequence[str], flags: Sequence[str]) -> Iterator[None]:
        command = processes.sidecar_command(self.port, self.component_port, self._admin_port, flags)
        with contextlib.ExitStack() as stack:
            self._behind = stack.enter_context(processes.running("stub", behind, self.cores.load))
            self._sidecar = stack.enter_context(processes.running("sidecar", command, self.cores.peer))
            ready = processes.ready_url(self._admin_port)  # not before the stub is there
            self._sidecar.wait_until_ready(ready, ground.READY_SECONDS)
            yield

    def check(self, sent: traffic.Traffic, connections: int) -> None:
        """Send different bodies from all connections at once. Raises `WrongAnswers` unless everybody gets its own."""
        count = _CHECKED if sent.size < _LARGE else _LARGE_CHECKED
        right: set[int] = set()

        def look_at(number: int, status: int, answer: bytes) -> None:
            if status == 200 and sent.is_own(number, answer):
                right.add(number)

        requests = (client.post(processes.HOST, sent.path, sent.body(number), sent.headers) for number in range(count))
        with machine.pinned(self.cores.load):
            address = (processes.HOST, self.port)
            uvloop.run(load.closed_loop(address, requests, min(count, connections), on_answer=look_at))
        if len(right) < count:
            raise WrongAnswers(f"{count - len(right)} of {count} answers to {sent.name} were missing or wrong")

    def measure(self, sent: traffic.Traffic, connections: int, seconds: float) -> Sample:
        """One round of one format from wrk. Raises `wrk.WrkFailed`."""
        url, body = f"http://{processes.HOST}:{self.port}{sent.path}", sent.body(cells.BATCH)
        return self.observe(lambda: wrk.measure(url, body, connections, seconds, self.cores.load, headers=sent.headers))

    def observe(self, put_load_on: Callable[[], load.Measurement]) -> Sample:
        """What a load does to the two."""
        cores = self.cores.peer
        neighbours = machine.Neighbours([self._sidecar.pid], cores) if cores else None
        before, behind, start = self._reading(), machine.cpu_seconds(self._behind.pid), time.monotonic()
        measured = put_load_on()
        after, elapsed = self._reading(), time.monotonic() - start
        found = Sample(measured.requests, measured.rate, measured.p50, measured.p99, dict(measured.errors))
        used = after["cpu"] - before["cpu"]
        found.cpu_per_request = used / measured.requests if measured.requests else None
        found.busy = used / elapsed
        found.behind_busy = (machine.cpu_seconds(self._behind.pid) - behind) / elapsed
        found.batch = metrics.mean_batch_size(before, after)
        found.others_busy = neighbours.share() if neighbours else None
        return found

    def _reading(self) -> dict[str, float]:
        return {**metrics.read(self._admin_port), "cpu": machine.cpu_seconds(self._sidecar.pid)}
