"""The well-behaved clients beside an attack: calls at a steady rate, every answer checked.

A process of its own, since its clock must not wait for the attacker. Calls leave when they are due, whether or not
earlier ones were answered, so that a server that stops for a second shows in all calls of that second. It runs until
a line comes on stdin, and then prints what it saw as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc.aio
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2 as pb

from benchmarks import client
from benchmarks.attack import backend, frames
from tests import loopback

RPC, HTTP, PING, PROBE, LATE = "gRPC", "HTTP", "PING", "probe", "machine"
"""The kinds of samples; the last is how late the victim itself was woken, which tells how busy the machine is."""

OK, WRONG, FAILED = "ok", "wrong", "failed"

_INTERVAL = 0.025
_PING_INTERVAL = 0.05
_PROBE_INTERVAL = 0.1
_PATIENCE = 15.0
_FRESH = 5  # of the HTTP calls, each fifth has a connection of its own


class Sample(NamedTuple):
    """One call: when it was due by `time.monotonic`, how long it took in seconds, and what came of it."""

    kind: str
    due: float
    seconds: float
    outcome: str


class Victims:
    """All of them, and what they saw."""

    def __init__(self, grpc_port: int, http_port: int | None, admin_port: int | None = None) -> None:
        self.samples: list[Sample] = []
        self._grpc_port = grpc_port
        self._http_port = http_port
        self._admin_port = admin_port
        self._chance = random.Random(1)
        self._calls: set[asyncio.Task[None]] = set()
        self._pool: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def run(self, until: asyncio.Event) -> None:
        """Until the event, and until what is outstanding then is over."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"{loopback.HOST}:{self._grpc_port}", options=options) as channel:
            infer = channel.unary_unary(backend.INFER)
            rounds = [self._steadily(RPC, lambda number: self._infer(infer, number), until)]
            if self._http_port is not None:
                rounds.append(self._steadily(HTTP, self._predict, until))
            if self._admin_port is not None:
                rounds.append(self._steadily(PROBE, self._probe, until, _PROBE_INTERVAL))
            pinger = asyncio.create_task(self._ping(until))
            await asyncio.gather(*rounds)
            await asyncio.gather(pinger, *self._calls, return_exceptions=True)
        for _, writer in self._pool:
            writer.close()

    async def _steadily(
        self, kind: str, call: Callable[[int], Awaitable[bool]], until: asyncio.Event, interval: float = _INTERVAL
    ) -> None:
        due = time.monotonic()
        for number in itertools.count():
            if until.is_set():
                return
            late = time.monotonic() - due
            if kind == RPC:
                self.samples.append(Sample(LATE, due, late, OK))
            task = asyncio.create_task(self._timed(kind, due, call, number))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            due += interval
            await asyncio.sleep(due - time.monotonic())

    async def _timed(self, kind: str, due: float, call: Callable[[int], Awaitable[bool]], number: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                outcome = OK if await call(number) else WRONG
        except (grpc.aio.AioRpcError, OSError, EOFError, TimeoutError, ValueError):
            outcome = FAILED
        self.samples.append(Sample(kind, due, time.monotonic() - due, outcome))

    async def _infer(self, infer: Any, number: int) -> bool:
        rows = self._chance.randrange(1, 4)
        sent = np.array([self._chance.random() for _ in range(4 * rows)], np.float32).tobytes()
        request = pb.ModelInferRequest(model_name=backend.MODEL, id=str(number))
        request.inputs.add(name=backend.INPUT, datatype="FP32", shape=[rows, 4])
        request.raw_input_contents.append(sent)
        answer = pb.ModelInferResponse.FromString(await infer(request.SerializeToString()))
        return bool(
            answer.id == str(number)
            and list(answer.outputs[0].shape) == [rows, 4]
            and list(answer.raw_output_contents) == [sent]
        )

    async def _predict(self, number: int) -> bool:
        value = self._chance.randrange(1 << 40)
        sent = client.post(loopback.HOST, f"/v1/models/{backend.MODEL}:predict", b'{"instances":[%d]}' % value)
        is_fresh = number % _FRESH == 0 or not self._pool
        reader, writer = await asyncio.open_connection(loopback.HOST, self._http_port) if is_fresh else self._pool.pop()
        is_kept = False
        try:
            writer.write(sent)
            status, body = await _answer(reader)
            is_kept = not is_fresh or len(self._pool) < _FRESH
        finally:
            if is_kept:
                self._pool.append((reader, writer))
            else:
                writer.close()
        if status != 200:
            raise ValueError(f"status {status}")
        return bool(json.loads(body)["predictions"] == [value])

    async def _probe(self, number: int) -> bool:
        """As a kubelet asks: on a connection of its own."""
        reader, writer = await asyncio.open_connection(loopback.HOST, self._admin_port)
        try:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            status, body = await _answer(reader)
        finally:
            writer.close()
        if status != 200:
            raise ValueError(f"status {status}")
        return body == b"ok\n"

    async def _ping(self, until: asyncio.Event) -> None:
        """PING after PING, on a connection where nothing else happens, and on a new one if that is cut."""
        while not until.is_set():
            try:
                reader, writer = await asyncio.open_connection(loopback.HOST, self._grpc_port)
            except OSError:
                self.samples.append(Sample(PING, time.monotonic(), 0.0, FAILED))
                await asyncio.sleep(_PING_INTERVAL)
                continue
            sent: dict[bytes, float] = {}
            answers = asyncio.create_task(self._answers(reader, sent))
            try:
                await self._pings(writer, sent, answers, until)
            finally:
                answers.cancel()
                writer.close()
                self.samples += [Sample(PING, due, time.monotonic() - due, FAILED) for due in sent.values()]

    async def _pings(
        self, writer: asyncio.StreamWriter, sent: dict[bytes, float], answers: asyncio.Task[None], until: asyncio.Event
    ) -> None:
        """Whether or not earlier ones were answered. Returns at the end of the connection, or of all."""
        writer.write(frames.PREFACE + frames.settings())
        due = time.monotonic()
        for number in itertools.count():
            if answers.done() or (until.is_set() and (not sent or time.monotonic() - due > _PATIENCE)):
                return
            if not until.is_set():
                word, due = number.to_bytes(8), max(due, time.monotonic() - _PING_INTERVAL)
                sent[word] = due
                writer.write(frames.ping(word))
                due += _PING_INTERVAL
            await asyncio.sleep(max(_PING_INTERVAL / 10, due - time.monotonic()))

    async def _answers(self, reader: asyncio.StreamReader, sent: dict[bytes, float]) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                size, kind, flags, _ = frames.unpack(await reader.readexactly(frames.HEAD_SIZE))
                word = await reader.readexactly(size)
                if (kind, flags) == (frames.PING, frames.ACK) and word in sent:
                    due = sent.pop(word)
                    self.samples.append(Sample(PING, due, time.monotonic() - due, OK))


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    data = b""
    while (parsed := client.parse_response(data)) is None:
        piece = await reader.read(65_536)
        if not piece:
            raise EOFError
        data += piece
    return parsed


def command(python: str, grpc_port: int, http_port: int | None, admin_port: int | None) -> list[str]:
    """What starts them."""
    http = [] if http_port is None else ["--http-port", str(http_port)]
    admin = [] if admin_port is None else ["--admin-port", str(admin_port)]
    return [python, "-m", "benchmarks.attack.victim", "--grpc-port", str(grpc_port), *http, *admin]


async def _main(grpc_port: int, http_port: int | None, admin_port: int | None) -> None:
    until = asyncio.Event()
    victims = Victims(grpc_port, http_port, admin_port)
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, until.set)
    print("up", flush=True)
    await victims.run(until)
    loop.remove_reader(sys.stdin)
    print(json.dumps(victims.samples), flush=True)


def main() -> None:
    """Run until stdin says something, or ends."""
    parser = argparse.ArgumentParser(description="Well-behaved clients whose answers are checked.")
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--http-port", type=int)
    parser.add_argument("--admin-port", type=int)
    options = parser.parse_args()
    uvloop.run(_main(options.grpc_port, options.http_port, options.admin_port))


if __name__ == "__main__":
    main()
