"""What a viewer of the live page costs the sidecar: its CPU time with and without one, in turns, at a fixed pace.

    python -m benchmarks.viewer --rate 5000 --seconds 6 --rounds 6

Callers and predictor share a process beside the sidecar's. The viewer reads the stream of events in a third one, as a
browser would. Rounds with and without a viewer alternate, so that what else goes on at the machine falls on both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from itertools import cycle

import psutil
import uvloop

from tests import loopback

HOST = "127.0.0.1"
_CONNECTIONS = 64
_BEAT = 0.004  # seconds between bursts of requests
_SETTLE = 3.0
_READER = "import http.client,sys;c=http.client.HTTPConnection('127.0.0.1',int(sys.argv[1]));" + (
    "c.request('GET','/events');a=c.getresponse();\nwhile a.read(65536): pass"
)


class Stub(asyncio.Protocol):
    """A predictor that answers each batch so many seconds later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._data.lower().find(b"content-length: ", 0, head) + 16
        length = int(self._data[at : self._data.find(b"\r", at)]) if at > 15 else 0
        if len(self._data) < head + 4 + length:
            return
        rows = self._data.count(b",", head) + 1
        body = b'{"predictions":[%b]}' % b",".join([b"1"] * rows)
        del self._data[: head + 4 + length]
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        asyncio.get_running_loop().call_later(self._delay, self._transport.write, answer)


class Caller(asyncio.Protocol):
    """A connection that is answered and counts the bytes."""

    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        Caller.received += data.count(b"HTTP/1.1 200")


def _request(number: int) -> bytes:
    body = b'{"instances":[1]}'
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    return head + b"X-Request-ID: 2f1c-%08d\r\n" % number + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def _callers(port: int, rate: float) -> None:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Caller, HOST, port) for _ in range(_CONNECTIONS)]
    turns = cycle([caller for _, caller in made])
    began, number = loop.time(), 0
    while True:
        while number < (loop.time() - began) * rate:
            next(turns).transport.write(_request(number))
            number += 1
        await asyncio.sleep(_BEAT)


async def _round(sidecar: psutil.Process, seconds: float) -> tuple[float, float]:
    """The share of a core that the sidecar took, and its answers a second."""
    loop = asyncio.get_running_loop()
    before, answers, began = sidecar.cpu_times(), Caller.received, loop.time()
    await asyncio.sleep(seconds)
    after, took = sidecar.cpu_times(), loop.time() - began
    busy = after.user + after.system - before.user - before.system
    return busy / took, (Caller.received - answers) / took


async def _measure(chosen: argparse.Namespace) -> None:
    port, admin, component = loopback.free_ports(3)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(chosen.delay / 1000), HOST, component)
    program = (sys.executable, "-m", "carpool_sidecar", f"--port={port}", f"--admin-port={admin}")
    flags = (f"--component-port={component}", "--log-level=error", f"--host={HOST}", f"--admin-host={HOST}")
    sidecar = await asyncio.create_subprocess_exec(*program, *flags, "--quiet-period=0", *chosen.settings)
    await asyncio.sleep(_SETTLE)
    load = asyncio.create_task(_callers(port, chosen.rate))
    process = psutil.Process(sidecar.pid)
    shares: dict[bool, list[float]] = {True: [], False: []}
    rates: list[float] = []
    try:
        await asyncio.sleep(_SETTLE)
        for index in range(2 * chosen.rounds):
            is_watched = index % 4 in (1, 2)
            viewers = [
                await asyncio.create_subprocess_exec(sys.executable, "-c", _READER, str(admin))
                for _ in range(chosen.viewers if is_watched else 0)
            ]
            await asyncio.sleep(1.0)
            share, rate = await _round(process, chosen.seconds)
            shares[is_watched].append(share)
            rates.append(rate)
            for viewer in viewers:
                viewer.kill()
                await viewer.wait()
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        memory = process.memory_info().rss / 2**20
        sidecar.terminate()
        await sidecar.wait()
        server.close()
    _report(chosen, shares, rates, memory)


def _report(chosen: argparse.Namespace, shares: dict[bool, list[float]], rates: Sequence[float], memory: float) -> None:
    without, watched = (statistics.median(shares[each]) for each in (False, True))
    print(f"{statistics.mean(rates):,.0f} answers/s, {chosen.rounds} rounds each of {chosen.seconds:g} s")
    for name, each in (("nobody looks", False), (f"{chosen.viewers} viewer(s)", True)):
        listed = " ".join(f"{share:.1%}" for share in sorted(shares[each]))
        print(f"{name:>14}: {statistics.median(shares[each]):.2%} of a core (median of {listed})")
    pairs = [b - a for a, b in zip(shares[False], shares[True], strict=True)]
    margin = 2 * statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
    print(
        f"{'difference':>14}: {statistics.mean(pairs):.2%} ± {margin:.2%} of a core (medians: {watched - without:.2%})"
    )
    print(f"{'memory':>14}: {memory:.0f} MB at the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=5000, help="requests a second (%(default)s)")
    parser.add_argument("--delay", type=float, default=5, help="milliseconds of the predictor (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6, help="of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="of each kind (%(default)s)")
    parser.add_argument("--viewers", type=int, default=1, help="at once (%(default)s)")
    parser.add_argument("settings", nargs="*", help="flags of the sidecar, after --")
    uvloop.run(_measure(parser.parse_args()))


if __name__ == "__main__":
    main()
