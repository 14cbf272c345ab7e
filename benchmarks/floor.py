"""Where the time of a request goes, and below what it cannot fall.

`python -m benchmarks.floor` loads a server that does nothing on the same event loop: what that costs is spent on
sockets, by the system and the loop. Then it runs the sidecar's own code without sockets, and single steps of it, and
what the bytes of a large body cost at least.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import uvloop
from rich import console
from rich.table import Table

from benchmarks import bodies, command_line, machine, processes, wrk
from carpool.program import allocator
from carpool.runtime import driver
from carpool.scheduling import ledger, messages, scheduler, window
from carpool_sidecar import config, drain, metrics
from carpool_sidecar.batching import calls, executor, routes
from carpool_sidecar.protocols import interface, v1
from carpool_sidecar.protocols import steps as in_steps
from carpool_sidecar.server import listening, predict, responses
from carpool_sidecar.server.http1 import bodies as request_bodies
from carpool_sidecar.server.http1 import connection as connections
from carpool_sidecar.server.http1 import handler, heads, requests
from carpool_sidecar.server.http1 import server as http1
from tests import loopback

_CONNECTIONS, _BATCH = 64, 32
_LARGE = 1_500_000
_TRIES = 15
_FOR_EVER = "30000"  # milliseconds
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_HEAD = (
    b"POST /v1/models/echo:predict HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
_ID = b"X-Request-ID: 7f3c2b1a-9d0e-4c1b-8a52-0123456789ab\r\nContent-Length"


class Disturbed(Exception):
    """What was to be measured did not happen; `str()` says what did."""


FAILURES = (Disturbed, processes.ChildFailed, wrk.WrkFailed, subprocess.TimeoutExpired, OSError)


class Null(asyncio.Protocol):
    """Answers whatever it reads, unread."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(_ANSWER)


class Silent(asyncio.Transport):
    """Writes nowhere."""

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Predictor:
    """Keeps what is posted until it is answered."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, Callable[[interface.UpstreamResponse], None]]] = []

    def post(self, target: str, headers: Any, body: calls.Pieces, timeout: float, reply: Any) -> Predictor:
        self.waiting.append((b"".join(body), reply))
        return self

    def cancel(self) -> None:
        self.waiting.clear()

    def answer_all(self) -> int:
        """Answer all batches; returns how many there were."""
        count = len(self.waiting)
        while self.waiting:
            body, reply = self.waiting.pop()
            reply(interface.UpstreamResponse(body.replace(b"instances", b"predictions", 1), {}))
        return count


def null_microseconds(seconds: float) -> tuple[float, float]:
    """CPU time of one request to the null server, in microseconds, and its requests/s."""
    cores = machine.split_cores()
    (port,) = loopback.free_ports(1)
    command = [sys.executable, "-m", "benchmarks.floor", "--null", str(port)]
    with processes.running("null server", command, cores[1] if cores else None) as server:
        server.wait_until_ready(f"http://{processes.HOST}:{port}/", 10.0)
        before = machine.cpu_seconds(server.pid)
        url = f"http://{processes.HOST}:{port}/v1/models/echo:predict"
        measured = wrk.measure(url, bodies.exact(37), _CONNECTIONS, seconds, cores[0] if cores else None)
        return (machine.cpu_seconds(server.pid) - before) / measured.requests * 1e6, measured.rate


async def own_microseconds(
    clock: Callable[[], float] = time.monotonic, tries: int = 15, turns: int = 300
) -> tuple[float, float]:
    """The sidecar's own code for one request of 37 B, in batches of 32, without sockets: up to the queue, and after.

    Microseconds, the best of `tries`, each of so many `turns`; `clock` is what the sidecar goes by. Raises `Disturbed`.
    """
    # Nothing but a full batch may leave. A window of 10 ms would end where other programs take the core for as long:
    # smaller batches would be measured, and requests that nobody polls for would be left over.
    chosen = config.load(["--max-batch-size", str(_BATCH), "--max-latency", _FOR_EVER, "--max-in-flight", "2"])
    limits, predictor = chosen.scheduler_limits, Predictor()
    core = scheduler.Scheduler(limits, window.Window(limits), clock, lambda: "0" * 36)
    counters = metrics.Metrics()
    calls_driver = driver.Driver(core, executor.Executor(clock=clock), executor.Observer(counters), clock)
    rules = predict.PredictRules(
        chosen,
        limits,
        request_bodies.Limits(chosen.max_body_bytes, core.ledger, 60.0),
        routes.Routes(calls.Route(v1.Codec(), predictor), routes.Models(cast(Any, None), predictor)),
        drain.Lifecycle(core.ledger),
        counters,
    )
    plain_requests = requests.PlainRequests(rules, calls_driver, clock)
    limit = listening.ConnectionLimit(_BATCH, lambda: None)
    nobody = cast(handler.Handler, None)  # all requests are plain
    server = http1.Server(chosen, plain_requests, nobody, limit)
    opened = [connections.Connection(server) for _ in range(_BATCH)]
    for connection in opened:
        connection.connection_made(Silent())
    request = _HEAD % 37 + bodies.exact(37)
    measured = []
    for _ in range(tries):
        taking = answering = 0.0
        for _ in range(turns):
            started = time.perf_counter()
            for connection in opened:
                connection.data_received(request)
            calls_driver.flush()  # as at the end of a turn of the event loop
            taken = time.perf_counter()
            batches = predictor.answer_all()
            taking += taken - started
            answering += time.perf_counter() - taken
            if batches != 1:
                raise Disturbed(f"{_BATCH} requests were {batches} batches instead of one")
        measured.append((taking, answering))
    calls_driver.close()
    best = min(measured, key=sum)
    return best[0] / turns / _BATCH * 1e6, best[1] / turns / _BATCH * 1e6


def steps() -> list[tuple[str, float]]:
    """Single steps, in microseconds."""
    chosen = config.load([])
    nothing = cast(Any, None)
    ways = routes.Routes(calls.Route(v1.Codec(), nothing), routes.Models(nothing, nothing))
    limits = request_bodies.Limits(chosen.max_body_bytes, ledger.Ledger(), 60.0)
    rules = predict.PredictRules(chosen, chosen.scheduler_limits, limits, ways, nothing, nothing)
    reader, body = heads.Reader(rules), bodies.exact(37)
    text, with_id = _HEAD % 37, (_HEAD % 37).replace(b"Content-Length", _ID)
    request, request_with_id = text + body, with_id + body
    template, template_with_id = (
        cast(Any, reader.template(each, cast(Any, reader.read(each))[2])) for each in (text, with_id)
    )
    renderer = responses.Predictions(rules.dialect)
    answer = interface.UpstreamResponse(b'{"predictions":[[5.1,3.5,1.4,0.2]]}', {})
    pieces = [messages.Piece(0, "0" * 36, in_steps.at_once(v1.parse_answer(answer)).rows)]
    large = bodies.exact(_LARGE)
    parts = [large[at : at + 262_144] for at in range(0, len(large), 262_144)]
    rows = msgspec.json.Decoder(list[msgspec.Raw])
    view = memoryview(large)[13:-1]
    return [
        ("head: read in full", _best(lambda: reader.read(text))),
        ("head: recognised", _best(lambda: template.match(request, 0))),
        ("head: recognised, with a new X-Request-ID", _best(lambda: template_with_id.match(request_with_id, 0))),
        ("body of 37 B: parsed", _best(lambda: v1.parse_request(body, 100_000))),
        ("answer of 37 B: rendered", _best(lambda: renderer.render(b"predictions", pieces))),
        ("1.5 MB: one copy", _best(lambda: b"".join(parts), 20)),
        ("1.5 MB: is it ASCII", _best(large.isascii, 20)),
        ("1.5 MB: scanned by msgspec", _best(lambda: rows.decode(view), 20)),
        ("1.5 MB: parsed, all of it", _best(lambda: v1.parse_request(large, 16_384), 20)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or in one line why there is none. 0 if there is one."""
    options = _parser().parse_args(argv)
    if options.null is not None:
        uvloop.run(_serve_null(options.null))
        return 0
    command_line.end_on_sigterm()
    screen = console.Console(width=100)
    return command_line.show(screen, lambda: _table(options.seconds), FAILURES)


def _table(seconds: float) -> Table:
    wrk.require()
    allocator.settle()
    with machine.pinned((machine.split_cores() or (None, None))[1]):
        own = uvloop.run(own_microseconds())
        single = steps()
    null, rate = null_microseconds(seconds)
    table = Table("what", "microseconds", title="CPU time", title_justify="left")
    table.columns[1].justify = "right"
    table.add_row(f"a request to a server that does nothing ({rate:,.0f} requests/s)", f"{null:,.2f}")
    table.add_row("the sidecar's own code for a request of 37 B, in: bytes to batch", f"{own[0]:,.2f}")
    table.add_row("the same, out: the batch's answer to bytes", f"{own[1]:,.2f}", end_section=True)
    for name, microseconds in single:
        table.add_row(name, f"{microseconds:,.2f}")
    return table


def _best(step: Callable[[], object], count: int = 20_000) -> float:
    gc.collect()
    best = float("inf")
    for _ in range(_TRIES):
        started = time.perf_counter()
        for _ in range(count):
            step()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


async def _serve_null(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Null, processes.HOST, port)
    await server.serve_forever()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floor",
        description="Measures what a request costs at least on this event loop, and the sidecar's own steps.",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, metavar="X", help="of load on the server that does nothing"
    )
    parser.add_argument("--null", type=int, metavar="PORT", help="be that server, until stopped")
    return parser


if __name__ == "__main__":
    sys.exit(main())
