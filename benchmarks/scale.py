"""What many connections and many batch keys cost the sidecar: `python -m benchmarks.scale`.

Three tables. Memory: resident memory of the sidecar before and after thousands of clients connect, ask once and stay.
Cost: CPU time of a request while the same load is spread over more and more connections. Keys: memory while requests
come each with a batch key of its own, some of which the predictor refuses.

Clients are plain sockets of this process, on as many loopback addresses as are needed. They take turns: so many of
them ask at once, then all wait for their answers, so that batches are the same however many are connected.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import bodies, client, command_line, machine, processes, report
from benchmarks.peers import stub
from tests import loopback

CONNECTIONS, KEYS = 10_000, 100_000
MEMORY_TARGET, COST_TARGET = 3_000.0, 1.3
"""Bytes of an idle connection; CPU of a request with most connections over that with fewest."""

_AT_ONCE = 10
_WARM = 200
_PER_ADDRESS = 5_000
_OWN_FILES = 64
_PATIENCE = 30.0
_REQUESTS, _ROUNDS = 20_000, 3

_PREDICT = client.post(processes.HOST, "/v1/models/echo:predict", bodies.exact(37))
_GET = b"GET /v1/models/echo HTTP/1.1\r\nHost: h\r\n\r\n"
# The preface, empty SETTINGS, and HEADERS of a GET: indexed fields, and :authority as a literal.
_HTTP2 = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)) + bytes((0, 0, 6, 1, 5, 0, 0, 0, 1))
    + b"\x82\x84\x86\x01\x01h"
)  # fmt: skip

FAILURES = (processes.ChildFailed, OSError, ValueError)


_BIND_ADDRESS_NO_PORT = 24  # Linux; Python names it from 3.12 on


class Clients:
    """Connections to one port, opened as they are needed and closed at the end of a `with` block."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()
        self.sockets.clear()

    def grow(self, count: int, request: bytes, read: Callable[[socket.socket], None]) -> None:
        """Connect until there are `count`; each new one asks once. Raises `OSError` and `ValueError`."""
        while len(self.sockets) < count:
            begun = len(self.sockets)
            for number in range(begun, min(count, begun + _AT_ONCE)):
                made = socket.socket()
                # Those of the round before hold their ports for a minute, which is no matter to a pair of addresses.
                made.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
                made.bind((f"127.0.0.{1 + number // _PER_ADDRESS}", 0))
                made.settimeout(_PATIENCE)
                made.connect((processes.HOST, self._port))
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sockets.append(made)
            ask(self.sockets[begun:], [request] * _AT_ONCE, read)

    def all_ask(self, requests: int) -> None:
        """So many predict requests in all, from all connections in turn."""
        groups = [self.sockets[at : at + _AT_ONCE] for at in range(0, len(self.sockets), _AT_ONCE)]
        for number in range(requests // _AT_ONCE):
            ask(groups[number % len(groups)], [_PREDICT] * _AT_ONCE, read_answer)


def ask(asking: Sequence[socket.socket], requests: Sequence[bytes], read: Callable[[socket.socket], None]) -> None:
    """One request from each of these connections, at once; returns when all are answered."""
    for each, request in zip(asking, requests, strict=False):
        each.sendall(request)
    for each in asking:
        read(each)


def read_answer(connection: socket.socket) -> None:
    """Read one HTTP/1.1 answer that has a length. Raises `ValueError` if the connection ends before that."""
    data = b""
    while True:
        more = connection.recv(65536)
        if not more:
            raise ValueError(f"a connection was closed after {data[:100]!r}")
        data += more
        head, end, body = data.partition(b"\r\n\r\n")
        if not end:
            continue
        _, found, rest = head.lower().partition(b"content-length:")
        if found and len(body) >= int(rest.partition(b"\r\n")[0]):
            return


def read_http2(connection: socket.socket) -> None:
    """Read until HEADERS came. Raises `ValueError` if the connection ends before that."""
    data = b""
    while True:
        more = connection.recv(65536)
        if not more:
            raise ValueError("a connection was closed before an answer")
        data += more
        at = 0
        while len(data) - at >= 9:
            if data[at + 3] == 1:
                return
            at += 9 + int.from_bytes(data[at : at + 3])


@dataclass(frozen=True)
class Kind:
    """Connections of one kind: what each of them sends before it is idle, and which port it is at."""

    name: str
    title: str
    request: bytes
    read: Callable[[socket.socket], None]
    is_http2: bool = False
    is_null: bool = False


KINDS = (
    Kind("fast", "HTTP/1.1, after a predict request", _PREDICT, read_answer),
    Kind("general", "HTTP/1.1, after a GET that is passed through", _GET, read_answer),
    Kind("http2", "HTTP/2 (gRPC), after a call", _HTTP2, read_http2, is_http2=True),
    Kind("null", "a server that does nothing, on the same event loop", _PREDICT, read_answer, is_null=True),
)


@dataclass
class Memory:
    """One row: bytes of the sidecar's memory for each of so many connections of a kind."""

    title: str
    connections: int
    before_mb: float
    after_mb: float
    target: float | None = None

    @property
    def bytes_each(self) -> float:
        return (self.after_mb - self.before_mb) * 1e6 / (self.connections - _WARM)


@dataclass
class Cost:
    """One row: microseconds of the sidecar's CPU time for a request, the least of the rounds."""

    connections: int
    microseconds: float = float("inf")


@dataclass
class Keys:
    """One row: the sidecar's memory once so many keys have come."""

    keys: int
    rss_mb: float
    seconds: float


class Stand:
    """A stub, and a sidecar in front of it, on a core each."""

    def __init__(self) -> None:
        self._cores = machine.split_cores() or (None, None)
        self.port, self._component, self._admin, self.grpc_port = loopback.free_ports(4)

    @contextlib.contextmanager
    def sidecar(self, *flags: str) -> Iterator[processes.Child]:
        """A new sidecar for the length of a `with` block, in which this process runs on the stub's core."""
        behind = stub.command(sys.executable, self._component)
        words = ["--max-connections", str(CONNECTIONS + _OWN_FILES), "--keep-alive", "600", *flags]
        words += ["--grpc-port", str(self.grpc_port), "--component-grpc-port", str(self._component)]
        command = processes.sidecar_command(self.port, self._component, self._admin, words)
        with (
            processes.running("stub", behind, self._cores[0]),
            processes.running("sidecar", command, self._cores[1]) as child,
        ):
            child.wait_until_ready(processes.ready_url(self._admin), 30.0)
            with machine.pinned(self._cores[0]):
                yield child

    @contextlib.contextmanager
    def null(self) -> Iterator[processes.Child]:
        """A server that does nothing, at the sidecar's port."""
        command = [sys.executable, "-m", "benchmarks.floor", "--null", str(self.port)]
        with processes.running("null server", command, self._cores[1]) as child:
            child.wait_until_ready(f"http://{processes.HOST}:{self.port}/", 10.0)
            with machine.pinned(self._cores[0]):
                yield child


def memory(on: Stand, kind: Kind, connections: int) -> Memory:
    """Connect, ask once, stay."""
    flags = ("--max-batch-size", str(_AT_ONCE), "--max-latency", "10")
    started, port = on.null() if kind.is_null else on.sidecar(*flags), on.grpc_port if kind.is_http2 else on.port
    with started as child, Clients(port) as clients:
        clients.grow(_WARM, kind.request, kind.read)
        before = _rss(child)
        clients.grow(connections, kind.request, kind.read)
        return Memory(kind.title, connections, before, _rss(child), MEMORY_TARGET if kind.name == "fast" else None)


def costs(on: Stand, connections: int, requests: int, rounds: int, say: Callable[[str], None]) -> list[Cost]:
    """From 10 connections to `connections`, in rounds that take turns."""
    found = [Cost(10 * 10**step) for step in range(8) if 10 * 10**step < connections] + [Cost(connections)]
    with on.sidecar("--max-batch-size", str(_AT_ONCE), "--max-latency", "10", "--max-in-flight", "2") as child:
        for number in range(rounds):
            for row in found:
                say(f"{row.connections:,} connections, round {number + 1} of {rounds}")
                with Clients(on.port) as clients:
                    clients.grow(row.connections, _PREDICT, read_answer)
                    count = max(requests, row.connections)
                    before = machine.cpu_seconds(child.pid)
                    clients.all_ask(count)
                    row.microseconds = min(row.microseconds, (machine.cpu_seconds(child.pid) - before) / count * 1e6)
                time.sleep(0.5)  # what closed connections leave to do is nobody's request
    return found


def keys(on: Stand, most: int, say: Callable[[str], None]) -> list[Keys]:
    """Requests with a key each, in tenths of `most`; every tenth request is one that the predictor refuses."""
    found: list[Keys] = []
    flags = ("--max-batch-size", "32", "--max-latency", "1", "--max-in-flight", "8")
    with on.sidecar(*flags) as child, Clients(on.port) as clients:
        clients.grow(_AT_ONCE, _PREDICT, read_answer)
        started = time.monotonic()
        for tenth in range(10):
            say(f"{most * tenth // 10:,} of {most:,} keys")
            for number in range(most * tenth // 10, most * (tenth + 1) // 10, _AT_ONCE):
                requests = [_with_key(each) for each in range(number, number + _AT_ONCE)]
                ask(clients.sockets, requests, read_answer)
            found.append(Keys(most * (tenth + 1) // 10, _rss(child), time.monotonic() - started))
    return found


def _with_key(number: int) -> bytes:
    # The stub answers nothing to a row that is no list, which fails that batch.
    body = b'{"instances":[1]}' if number % 10 == 0 else bodies.exact(37, number)
    headers = {**client.JSON, "X-Request-ID": f"{number}"}
    return client.post(processes.HOST, f"/v1/models/model-{number}:predict", body, headers)


def _rss(child: processes.Child) -> float:
    time.sleep(1.0)  # what was just done is over
    return machine.rss_megabytes(child.pid)


# --- what is shown ----------------------------------------------------------------------------------------------


def memory_table(rows: Sequence[Memory], markdown: bool) -> Table:
    table = _table("Memory", markdown, "connections", "number", "before MB", "after MB", "bytes each", "target", "")
    for row in rows:
        table.add_row(
            row.title, f"{row.connections:,}", f"{row.before_mb:,.1f}", f"{row.after_mb:,.1f}",
            f"{row.bytes_each:,.0f}", f"{row.target:,.0f}" if row.target else "",
            _met(row.bytes_each <= row.target) if row.target else "",
        )  # fmt: skip
    return table


def cost_table(rows: Sequence[Cost], markdown: bool) -> Table:
    table = _table("Cost of a request", markdown, "connections", "CPU microseconds", "ratio", "target", "")
    for row in rows:
        ratio = row.microseconds / rows[0].microseconds
        is_last = row is rows[-1]
        table.add_row(
            f"{row.connections:,}", f"{row.microseconds:,.1f}", f"{ratio:.2f}", f"{COST_TARGET}" if is_last else "",
            _met(ratio <= COST_TARGET) if is_last else "",
        )  # fmt: skip
    return table


def keys_table(rows: Sequence[Keys], markdown: bool) -> Table:
    table = _table("Batch keys", markdown, "keys", "memory MB", "bytes a key since the first row", "seconds")
    for row in rows:
        more = row.keys - rows[0].keys
        each = f"{(row.rss_mb - rows[0].rss_mb) * 1e6 / more:,.1f}" if more else ""
        table.add_row(f"{row.keys:,}", f"{row.rss_mb:,.1f}", each, f"{row.seconds:,.0f}")
    return table


def _table(title: str, markdown: bool, first: str, *others: str) -> Table:
    style = box.MARKDOWN if markdown else box.SIMPLE_HEAD
    table = Table(title=None if markdown else title, box=style, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


# --- the command line -------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. 0 if all targets were met."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = command_line.console(options.markdown)
    return command_line.guarded(console, lambda: _run(options, console), FAILURES)


def _run(options: argparse.Namespace, console: Console) -> int:
    _allow_files(options.connections)
    on, parts = Stand(), set(options.only or PARTS)
    facts: dict[str, object] = {}
    is_met = True
    with console.status("") as status:
        if "memory" in parts:
            found = []
            for kind in KINDS:
                status.update(kind.title)
                found.append(memory(on, kind, options.connections))
            console.print(memory_table(found, options.markdown))
            facts["memory"] = [asdict(row) | {"bytes_each": row.bytes_each} for row in found]
            is_met &= found[0].bytes_each <= MEMORY_TARGET
        if "cost" in parts:
            rows = costs(on, options.connections, options.requests, options.rounds, status.update)
            console.print(cost_table(rows, options.markdown))
            facts["cost"] = [asdict(row) for row in rows]
            is_met &= rows[-1].microseconds <= COST_TARGET * rows[0].microseconds
        if "keys" in parts:
            seen = keys(on, options.keys, status.update)
            console.print(keys_table(seen, options.markdown))
            facts["keys"] = [asdict(row) for row in seen]
    command = command_line.as_typed("benchmarks.scale")
    about = {"command": command, **machine.provenance(), "machine": machine.describe()}
    report.write(options.json, about | facts)
    console.print(f"written to {escape(str(options.json))}")
    return 0 if is_met else 1


def _allow_files(connections: int) -> None:
    """Let this process and its children have so many sockets. Raises `ValueError` where the system does not."""
    # The sidecar lets half of its files be clients unless told otherwise, and each client has one here, too.
    needed = connections + _OWN_FILES * 2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        words = f"{connections:,} connections need {needed:,} open files; the system allows {hard:,} (ulimit -Hn)"
        raise ValueError(words)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


PARTS = ("memory", "cost", "keys")


def _select(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description="Measures what many connections and many batch keys cost the sidecar.",
    )
    parser.add_argument(
        "--only", type=command_line.names(_select), default=[], metavar="A,B", help=f"only these: {', '.join(PARTS)}"
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS, metavar="N", help="default: %(default)s")
    parser.add_argument("--keys", type=int, default=KEYS, metavar="N", help="batch keys (default: %(default)s)")
    parser.add_argument(
        "--requests",
        type=int,
        default=_REQUESTS,
        metavar="N",
        help="of a row of cost (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=_ROUNDS, metavar="N", help="default: %(default)s")
    command_line.add_results(parser, "out/bench-scale.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
