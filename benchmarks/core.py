"""`python -m benchmarks.core`: policies before a predictor that is faster than the sidecar's own core.

The predictor takes `--service` milliseconds for a batch of n, one batch after another, as a GPU would, or in `--stages`
that overlap, as where one batch is read while another is computed. It is part of this process, and so are the callers:
one loop that never sleeps, on one core, and the sidecar on the other. Requests are compressed, which costs the sidecar
more than the client, so that the sidecar's core is what is full. First callers who ask again at once show what is
possible; then requests come as a Poisson stream at shares of that, for the adaptive policy and for windows, in turns.
`carpool-sidecar plan` tells what it expects of the adaptive policy from what was recorded there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import heapq
import json
import pathlib
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import client, command_line, machine, metrics, processes
from benchmarks.peers import poisson
from carpool_sidecar.planning import service_times
from tests import loopback

PATH = "/v1/models/fast:predict"
READY_SECONDS = 30.0
MOST_OUTSTANDING = 2048
PREDICTION = b"0.5"
_RECEIVE = 1 << 20


class Device:
    """The predictor: HTTP/1.1 on a socket of its own, answers when they are due. `turn` does what can be done now."""

    # State: connections with what came on them, answers by the time they are due, and when each stage is free.
    def __init__(self, port: int, service: service_times.Service, stages: Sequence[float] = (1.0,)) -> None:
        self._service = service
        self._stages = stages
        self._listener = socket.create_server((processes.HOST, port))
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._buffers: dict[socket.socket, bytes] = {}
        self._due: list[tuple[float, int, socket.socket, int]] = []
        self._free = [0.0] * len(stages)
        self._count = 0

    def close(self) -> None:
        for each in (self._listener, *self._buffers):
            each.close()
        self._selector.close()

    def turn(self) -> None:
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                connected, _ = self._listener.accept()
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(connected, selectors.EVENT_READ)
                self._buffers[connected] = b""
            else:
                self._read(key.fileobj)  # type: ignore[arg-type] # all others are sockets
        while self._due and self._due[0][0] <= time.perf_counter():
            _, _, connected, rows = heapq.heappop(self._due)
            if connected in self._buffers:
                connected.sendall(_answer(rows))

    def _read(self, connected: socket.socket) -> None:
        data = connected.recv(_RECEIVE)
        if not data:
            self._selector.unregister(connected)
            del self._buffers[connected]
            connected.close()
            return
        whole = self._buffers[connected] + data
        head, _, body = whole.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if not _ or len(body) < length:
            self._buffers[connected] = whole
            return
        self._buffers[connected] = b""
        now = time.perf_counter()
        rows = body.count(b"[") - 1 if length else 0  # a probe has none
        due = now
        if rows:
            seconds = self._service.seconds(rows, now)
            for place, share in enumerate(self._stages):
                due = self._free[place] = max(due, self._free[place]) + seconds * share
        self._count += 1
        heapq.heappush(self._due, (due, self._count, connected, rows))


@functools.lru_cache(maxsize=1024)
def _answer(rows: int) -> bytes:
    body = b'{"predictions":[%b]}' % b",".join([PREDICTION] * rows)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Sender(poisson._Sender):
    """The callers, who let the device work whenever they look for answers."""

    def __init__(self, device: Device, address: tuple[str, int], request: bytes) -> None:
        super().__init__(address, [request], MOST_OUTSTANDING, lambda body: PREDICTION in body)
        self._device = device
        self.again_until = 0.0

    def _poll(self, timeout: float) -> None:
        self._device.turn()
        super()._poll(0)

    def _answered(self, connection: Any, intended: float, status: int, body: bytes) -> None:
        super()._answered(connection, intended, status, body)
        if time.perf_counter() < self.again_until:
            self._send(time.perf_counter())

    def closed(self, callers: int, seconds: float) -> float:
        """Requests/s of so many callers who ask again at once."""
        self.again_until = time.perf_counter() + seconds
        for _ in range(callers):
            self._send(time.perf_counter())
        while self._outstanding:
            self._poll(0)
        return len(self.samples.latencies) / seconds


class Row(NamedTuple):
    """One policy at one rate; seconds."""

    policy: str
    rate: float
    outcome: poisson.OpenLoop
    batch: float
    busy: float
    learned: dict[str, float]


class Bench:
    """One device, one request, and a sidecar for each policy."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._cores = machine.split_cores()
        self._ports = loopback.free_ports(3)
        self._device = Device(self._ports[1], options.service, options.stages)
        source = random.Random(1)
        row = ",".join(f"{source.random():.6f}" for _ in range(options.numbers))
        body = gzip.compress(f'{{"instances":[[{row}]]}}'.encode(), 1)
        self._request = client.post(processes.HOST, PATH, body).replace(
            b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1
        )

    @contextlib.contextmanager
    def sidecar(self, flags: Sequence[str]) -> Iterator[processes.Child]:
        command = processes.sidecar_command(*self._ports, ["--max-batch-size", str(self._options.batch), *flags])
        core = self._cores[1] if self._cores else None
        with processes.running("sidecar", command, core) as child, machine.pinned(self._cores and self._cores[0]):
            ready = threading.Thread(
                target=child.wait_until_ready, args=(processes.ready_url(self._ports[2]), READY_SECONDS)
            )
            ready.start()
            while ready.is_alive():
                self._device.turn()
                time.sleep(0.0005)
            yield child

    def possible(self, flags: Sequence[str]) -> float:
        """Requests/s with as many callers as keep two full batches coming."""
        with self.sidecar(flags), contextlib.closing(self._sender()) as sender:
            return sender.closed(4 * self._options.batch, self._options.seconds)

    def offered(self, policy: str, child: processes.Child, rate: float) -> Row:
        """A Poisson stream of so many requests/s, the first second of it apart to learn from."""
        with contextlib.closing(self._sender()) as sender:
            sender.run(poisson.draw(rate, 1.0, 5), 1.0)
        before, cpu, began = self._read(), machine.cpu_seconds(child.pid), time.monotonic()
        with contextlib.closing(self._sender()) as sender:
            sender.run(poisson.draw(rate, self._options.seconds, 7), 2.0)
        outcome = sender.samples.outcome()
        busy = (machine.cpu_seconds(child.pid) - cpu) / (time.monotonic() - began)
        after = self._read()
        names = ("workers", "service_fixed_seconds", "service_instance_seconds", "overhead_seconds")
        learned = {name: after[f"carpool_{name}"] for name in (*names, "own_batch_seconds", "own_request_seconds")}
        return Row(policy, rate, outcome, metrics.mean_batch_size(before, after) or 0.0, busy, learned)

    def recorded(self) -> bytes:
        return self._asked(lambda: client.get(f"http://{processes.HOST}:{self._ports[2]}/arrivals", 30))

    def _read(self) -> dict[str, float]:
        return self._asked(lambda: metrics.read(self._ports[2]))

    def _asked(self, ask: Any) -> Any:
        """Ask the admin port while the device goes on."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(ask()))
        thread.start()
        while thread.is_alive():
            self._device.turn()
            time.sleep(0.0005)
        return found[0]

    def _sender(self) -> Sender:
        sender = Sender(self._device, (processes.HOST, self._ports[0]), self._request)
        sender.connect_ahead(poisson.FIRST_CONNECTIONS)
        return sender

    def close(self) -> None:
        self._device.close()


def plan(recording: bytes, slo: float, rate: float) -> dict[str, Any]:
    """What `plan --from` says of one pod."""
    with tempfile.TemporaryDirectory(prefix="carpool-core-") as folder:
        file = pathlib.Path(folder, "arrivals.jsonl")
        file.write_bytes(recording)
        command = [sys.executable, "-m", "carpool_sidecar", "plan", "--from", str(file), "--slo", f"{slo:g}"]
        done = subprocess.run(
            [*command, "--rate", f"{rate:.6g}", "--json"], capture_output=True, text=True, timeout=300, check=False
        )
    if done.returncode:
        return {"failed": done.stderr.strip()}
    answer = json.loads(done.stdout)
    of_one = next((each for each in (answer["chosen"], answer["fewer"]) if each and each["pods"] == 1), None)
    return (of_one or {"failed": f"it asks for {answer['pods']} pods"}) | {"service": answer["service"]}


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each policy and rate, and what `plan` says."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = Console(width=150, highlight=False)
    policies = {"adaptive": (), **{f"window {wait:g} ms": _window(wait) for wait in options.windows}}
    bench = Bench(options)
    recordings = {}
    try:
        possible = bench.possible(())
        console.print(f"{possible:,.0f} requests/s are possible, with callers who ask again at once")
        rows = []
        for load in options.loads:
            for policy, flags in policies.items():
                more = ("--slo", f"{options.slo:g}") if policy == "adaptive" and options.slo else ()
                with bench.sidecar([*flags, *more]) as child:
                    rows.append(bench.offered(policy, child, load * possible))
                    console.print(_words(rows[-1], possible))
                    if policy == "adaptive" and options.slo:
                        recordings[load] = bench.recorded()
    finally:
        bench.close()
    console.print(_table(rows, possible))
    for load, recording in recordings.items():
        console.print(f"plan at {load:.0%}: {plan(recording, options.slo, load * possible)}")
    return 0


def _window(wait: float) -> tuple[str, ...]:
    return ("--policy", "window", "--max-latency", f"{wait:g}", "--max-in-flight", "2")


def _table(rows: Sequence[Row], possible: float) -> Table:
    table = Table("load", "policy", "answered", "p50 ms", "p99 ms", "batch", "busy", "client's lag p99", "learned", "")
    for row in rows:
        found = row.outcome
        told = (
            ""
            if row.policy != "adaptive"
            else " ".join(
                f"{row.learned[name] * 1e3:.3g}" if name != "workers" else f"{row.learned[name]:.0f}"
                for name in row.learned
            )
        )
        table.add_row(
            f"{row.rate / possible:.0%}", row.policy, f"{found.requests:,} of {found.sent:,}", f"{found.p50 * 1e3:.2f}",
            f"{found.p99 * 1e3:.2f}", f"{row.batch:.1f}", f"{row.busy:.2f}", f"{found.lag_p99 * 1e3:.2f}", told,
            "saturated" if found.is_saturated else "",
        )  # fmt: skip
    return table


def _words(row: Row, possible: float) -> str:
    found = row.outcome
    return (
        f"  {row.rate / possible:.0%} {row.policy}: p50 {found.p50 * 1e3:.2f} ms, p99 {found.p99 * 1e3:.2f}, "
        f"batch {row.batch:.1f}, busy {row.busy:.2f}{', saturated' if found.is_saturated else ''}"
    )


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    add = parser.add_argument
    add(
        "--service",
        type=service_times.parse,
        default="0.5+0.01n",
        metavar="TIME",
        help="of the predictor (%(default)s)",
    )
    add(
        "--stages",
        type=_numbers,
        default="1",
        metavar="X,…",
        help="its stages, as shares of that time; each has one batch at a time (%(default)s)",
    )
    add("--batch", type=int, default=32, metavar="N", help="largest batch (%(default)s)")
    add("--numbers", type=int, default=500, metavar="N", help="in an instance (%(default)s)")
    add(
        "--loads", type=_numbers, default="0.5,0.8,0.95", metavar="X,…", help="shares of what is possible (%(default)s)"
    )
    add("--windows", type=_numbers, default="0,0.5,1,2", metavar="MS,…", help="to compare with (%(default)s)")
    add("--seconds", type=float, default=3.0, metavar="S", help="of each row (%(default)s)")
    add("--slo", type=float, default=0.0, metavar="MS", help="objective of the adaptive policy and the plan (none)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
