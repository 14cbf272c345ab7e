"""`python -m benchmarks.own`: the sidecar's own code for one small request of each protocol, without sockets.

32 requests become one batch, which is answered at once, and what the callers get is written nowhere. What counts is the
processor time of this thread, the least of many tries: other work on the machine changes it little. The event loop runs
what the code puts into it; aiohttp, the HTTP client's parser, grpc and the kernel have no part in it. `--profile CELL`
shows instead where Python's profiler finds the time, which is of use where the code is not compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import pstats
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

import hpack
import uvloop
from tritonclient.grpc import service_pb2

import carpool_sidecar
from benchmarks import bodies
from benchmarks.v2 import stub, traffic
from carpool.program import allocator
from carpool.runtime import driver as drivers
from carpool.scheduling import scheduler, window
from carpool_sidecar import config, drain, metrics
from carpool_sidecar.batching import calls, executor, model_registry, routes
from carpool_sidecar.protocols import interface, models, v1
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_grpc import tensors
from carpool_sidecar.protocols.v2_http import codec as http_codec
from carpool_sidecar.server import listening, predict
from carpool_sidecar.server.grpc import passthrough, service
from carpool_sidecar.server.http1 import bodies as request_bodies
from carpool_sidecar.server.http1 import connection as connections
from carpool_sidecar.server.http1 import handler, relay, requests
from carpool_sidecar.server.http1 import server as http1
from carpool_sidecar.server.http2 import frames
from carpool_sidecar.server.http2 import server as http2
from carpool_sidecar.upstream import connection as upstream
from carpool_sidecar.upstream import predictor, readiness

BATCH = 32
_RPC_CONNECTIONS = 4  # which the callers share
_T = TypeVar("_T")
_TRIES, _TURNS = 150, 20
_FOR_EVER = "30000"  # milliseconds


class Silent(asyncio.Transport):
    """Writes nowhere, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write(self, data: Any) -> None:
        self.written += len(data)

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Predictor:
    """Keeps what is posted until it is answered, each batch with what `answer` makes of its body."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._waiting: list[tuple[bytes, Callable[[interface.UpstreamResponse], None]]] = []
        self._answers: dict[int, bytes] = {}

    def post(self, target: str, headers: Any, body: calls.Pieces, timeout: float, reply: Any) -> Predictor:
        self._waiting.append((b"".join(body), reply))
        return self

    def cancel(self) -> None:
        self._waiting.clear()

    def answer_all(self) -> int:
        """Answer all batches; returns how many there were."""
        waiting, self._waiting = self._waiting, []
        for body, reply in waiting:
            if len(body) not in self._answers:  # all batches of a cell are alike
                self._answers[len(body)] = self._answer(body)
            reply(interface.UpstreamResponse(self._answers[len(body)], {}))
        return len(waiting)


class Site:
    """What every cell has: a driver before a predictor that is answered by hand."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        words = ["--max-batch-size", str(BATCH), "--max-latency", _FOR_EVER, "--max-in-flight", "2"]
        self.settings = config.load(words)
        self.predictor = Predictor(answer)
        self.limits = self.settings.scheduler_limits
        clock = time.monotonic
        self.core = scheduler.Scheduler(self.limits, window.Window(self.limits), clock, drivers.new_batch_id)
        self.counters = metrics.Metrics()
        self.driver = drivers.Driver(self.core, executor.Executor(clock=clock), executor.Observer(self.counters), clock)
        self.life = drain.Lifecycle(self.core.ledger)
        self._registries: list[model_registry.ModelRegistry] = []

    def registry(self, make_codec: Callable[[model_registry.Model], Any], most: int) -> model_registry.ModelRegistry:
        async def ask(name: models.ModelName) -> models.ModelInfo:
            return models.ModelInfo(max_batch_size=most)

        found = model_registry.ModelRegistry(ask, make_codec, True, time.monotonic)
        self._registries.append(found)
        return found

    async def learn(self) -> None:
        """Ask about the model, so that its requests need not wait."""
        for each in self._registries:
            await each.ask(models.ModelName(traffic.MODEL))


Sending = Callable[[], Sequence[tuple[Any, bytes]]]
"""What comes in one turn: protocols of the event loop, each with the bytes that it receives."""


def open_connections(
    site: Site, transports: Sequence[Silent], to: calls.Predictor, streams: predictor.Pool | None = None
) -> list[connections.Connection]:
    """A connection for each of these, whose batches go `to` a predictor, and all else over `streams`."""
    models_of_v2 = routes.Models(
        site.registry(lambda model: http_codec.Codec(models.ModelInfo(), model.avoid), 1024), to
    )
    rules = predict.PredictRules(
        site.settings,
        site.limits,
        request_bodies.Limits(site.settings.max_body_bytes, site.core.ledger, 60.0),
        routes.Routes(calls.Route(v1.Codec(), to), models_of_v2),
        site.life,
        site.counters,
    )
    limit = listening.ConnectionLimit(len(transports), lambda: None)
    streams = streams or predictor.Pool("http://127.0.0.1:1", 5.0, upstream.LenientReader)
    relays = relay.Relays(streams, lambda: False, lambda status: None)
    plain = requests.PlainRequests(rules, site.driver, time.monotonic)
    answering = handler.Handler(rules, plain, relays, cast(readiness.Readiness, None))  # nobody probes
    server = http1.Server(site.settings, plain, answering, limit)
    opened = [connections.Connection(server) for _ in transports]
    for each, transport in zip(opened, transports, strict=True):
        each.connection_made(transport)
    return opened


def http(site: Site, path: str, many: Sequence[bytes]) -> Sending:
    """Each of 32 connections sends a request over HTTP."""
    opened = open_connections(site, [Silent() for _ in range(BATCH)], site.predictor)
    head = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    pairs = [(each, head % (path.encode(), len(body)) + body) for each, body in zip(opened, many, strict=True)]
    return lambda: pairs


def rpc(site: Site, many: Sequence[bytes]) -> Sending:
    """Each of 32 callers on four connections sends a call over gRPC."""
    registry = site.registry(lambda model: grpc_codec.Codec(models.ModelInfo(), model.avoid), 1024)
    rules = service.GrpcService(
        routes.Models(registry, site.predictor, is_http=False), cast(passthrough.Passthrough, None), site.driver,
        site.life, site.counters, request_bodies.Limits(site.settings.max_body_bytes, site.core.ledger, 60.0), _report,
        lambda: int(site.limits.max_queue_instances), ("authorization", "content-type"),
    )  # fmt: skip
    server = http2.Server(rules, report=_report)
    server.turns = http2.limits.Turns(asyncio.get_running_loop().call_soon)
    opened = [http2.ServerProtocol(server) for _ in range(_RPC_CONNECTIONS)]
    for each in opened:
        each.connection_made(Silent())
        each.data_received(frames.PREFACE + frames.settings({}) + frames.window_update(0, 2**30))
    encoders = [hpack.Encoder() for _ in opened]
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", tensors.MODEL_INFER), (":authority", "127.0.0.1:8001"),
        ("content-type", "application/grpc"), ("user-agent", "grpc-go/1.76.0"), ("te", "trailers"),
    ]  # fmt: skip
    messages = [b"\0" + len(body).to_bytes(4) + body for body in many]
    numbers = itertools.count(1, 2)

    def send() -> Sequence[tuple[Any, bytes]]:
        pairs = []
        for at, (each, encoder) in enumerate(zip(opened, encoders, strict=True)):
            sent = bytearray()
            for message in messages[at::_RPC_CONNECTIONS]:
                number = next(numbers)
                sent += frames.headers(number, encoder.encode(fields), 0, frames.LEAST_MAX_FRAME)
                sent += frames.frame(frames.DATA, frames.END_STREAM, number, message)
            pairs.append((each, bytes(sent)))
        return pairs

    return send


def _report(error: Exception) -> None:
    raise error


def _rpc_bodies() -> list[bytes]:
    found = []
    for number in range(BATCH):
        request = service_pb2.ModelInferRequest(model_name=traffic.MODEL)
        request.inputs.add(name=traffic.INPUT, datatype="FP32", shape=(1, 4))
        request.raw_input_contents.append(number.to_bytes(4) * 4)
        found.append(request.SerializeToString())
    return found


def _rpc_answer(body: bytes) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(body)
    answer = service_pb2.ModelInferResponse(model_name=request.model_name)
    for each in request.inputs:
        answer.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    answer.raw_output_contents.extend(request.raw_input_contents)
    written: bytes = answer.SerializeToString()
    return written


def _json_answer(is_v1: bool) -> Callable[[bytes], bytes]:
    def answer(body: bytes) -> bytes:
        reader = stub.Marks(is_v1)
        reader.feed(body)
        return reader.answer().body

    return answer


def _v1(size: int) -> tuple[Site, Sending]:
    site = Site(lambda body: b'{"predictions":[%b]}' % b",".join([b"[5.1,3.5,1.4,0.2]"] * BATCH))
    return site, http(site, "/v1/models/echo:predict", [bodies.exact(size, number) for number in range(BATCH)])


def _marked(kind: traffic.Traffic) -> tuple[Site, Sending]:
    site = Site(_json_answer(isinstance(kind, traffic.V1)))
    return site, http(site, kind.path, [kind.body(number) for number in range(BATCH)])


def _grpc() -> tuple[Site, Sending]:
    site = Site(_rpc_answer)
    return site, rpc(site, _rpc_bodies())


CELLS: dict[str, Callable[[], tuple[Site, Sending]]] = {
    "v1-37B": lambda: _v1(37),
    "v1-100B": lambda: _marked(traffic.V1(100)),
    "v2-100B": lambda: _marked(traffic.V2(100)),
    "grpc-16B": _grpc,
}


class Disturbed(Exception):
    """What was to be measured did not happen; `str()` says what did."""


async def microseconds(
    cell: str, tries: int = _TRIES, turns: int = _TURNS, watch: cProfile.Profile | None = None
) -> tuple[float, float]:
    """Processor time of one request: until its batch is posted, and from the batch's answer to its own.

    The best of `tries`, each of so many `turns`. Raises `Disturbed`.
    """
    site, send = CELLS[cell]()
    await site.learn()
    best: list[float] = []
    for number in range(tries + 1):
        taking = answering = 0.0
        for _ in range(turns):
            pairs = send()
            if watch is not None and number:  # the first try is to warm up
                watch.enable()
            started = time.thread_time()
            for protocol, data in pairs:
                protocol.data_received(data)
            site.driver.flush()  # as at the end of a turn of the event loop
            taken = time.thread_time()
            batches = site.predictor.answer_all()
            await asyncio.sleep(0)  # what was put into the loop: written answers, mostly
            answered = time.thread_time()
            if watch is not None:
                watch.disable()
            taking += taken - started
            answering += answered - taken
            if batches != 1:
                raise Disturbed(f"{BATCH} requests were {batches} batches instead of one")
        if number and (not best or taking + answering < sum(best)):
            best = [taking, answering]
    site.driver.close()
    return best[0] / turns / BATCH * 1e6, best[1] / turns / BATCH * 1e6


def measure(
    options: argparse.Namespace,
    cells: Iterable[str],
    microseconds: Callable[..., Coroutine[Any, Any, _T]],
    told: Callable[[_T], str],
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> None:
    """Print a line for each cell, or a profile, as `options` (of `parser`) ask for it; `told` words what came out."""
    allocator.settle()
    if options.profile:
        watch = cProfile.Profile()
        uvloop.run(microseconds(options.profile, options.tries, watch=watch), loop_factory=loop)
        pstats.Stats(watch).sort_stats("tottime").print_stats(60)
        return
    print(f"{carpool_sidecar.build()}; microseconds of processor time for a request")
    gc.collect()
    for cell in options.only or cells:
        print(f"{cell:10} {told(uvloop.run(microseconds(cell, options.tries), loop_factory=loop))}")


def parser(name: str, about: str | None, cells: Iterable[str], tries: int) -> argparse.ArgumentParser:
    """The options of the module `name`, which measures those cells."""
    made, known = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about), list(cells)
    made.add_argument("--only", nargs="+", choices=known, help="these cells")
    made.add_argument("--tries", type=int, default=tries, help="of which the best counts (%(default)s)")
    made.add_argument("--profile", choices=known, help="show where the time of this cell goes")
    return made


def _told(found: tuple[float, float]) -> str:
    before, after = found
    return f"{before + after:6.2f}   until its batch is posted {before:5.2f}, then {after:5.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each cell, or a profile."""
    measure(parser("own", __doc__, CELLS, _TRIES).parse_args(argv), CELLS, microseconds, _told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
