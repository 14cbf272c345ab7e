"""Load from the caller's side: N connections, and what they saw.

`closed_loop` models callers that wait for an answer before they ask again. Latency counts from the moment the
request is handed to the socket to the moment the whole answer is there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from benchmarks import client

Address = tuple[str, int]
OnAnswer = Callable[[int, int, bytes], None]
"""Called with the request's number (from 0), its status and its body."""

PATIENCE = 60.0  # seconds to wait for answers that are still outstanding when the sending is over


@dataclass
class Measurement:
    """What one load run saw. Times in seconds; `errors` counts requests by what went wrong with them."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Successful requests per second."""
        return self.requests / self.seconds if self.seconds else 0.0


def percentile(ordered: list[float], share: float) -> float:
    """The nearest-rank percentile of an ascending list: the smallest value that `share` of all do not exceed.

    0.0 for an empty list.
    """
    if not ordered:
        return 0.0
    rank = -(-share * len(ordered) // 1)  # rounded up
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


async def closed_loop(
    address: Address,
    requests: Iterable[bytes],
    connections: int,
    seconds: float = float("inf"),
    on_answer: OnAnswer | None = None,
    latencies: list[float] | None = None,
) -> Measurement:
    """Send `requests` over so many connections until they are used up or the time is over.

    `latencies` gets that of each successful request, in seconds.

    Answers that are outstanding by then are waited for and counted. Anything but a 2xx is an error; a connection
    that breaks is an error too, and is not opened again. Raises `OSError` if a connection cannot be made at all.
    """
    callers = _Callers(iter(requests), seconds, on_answer, [] if latencies is None else latencies)
    loop = asyncio.get_running_loop()
    opened: list[client.Connection] = []
    try:
        for _ in range(connections):
            _, connection = await loop.create_connection(lambda: client.Connection(callers), *address)
            opened.append(connection)
        await callers.run(opened)
    finally:
        for connection in opened:
            connection.close()
        await asyncio.sleep(0)  # lets the transports finish closing
    return callers.measurement()


class _Callers:
    """All callers of a closed loop: hands the next request to whichever connection becomes free."""

    def __init__(
        self, requests: Iterator[bytes], seconds: float, on_answer: OnAnswer | None, latencies: list[float]
    ) -> None:
        self._requests = requests
        self._seconds = seconds
        self._on_answer = on_answer
        # The state of a run: what is outstanding (number and start time by connection), and what came of it.
        self._outstanding: dict[client.Connection, tuple[int, float]] = {}
        self._sent = 0
        self._latencies = latencies
        self._errors: Counter[str] = Counter()
        self._done = asyncio.Event()
        self._start = self._end = 0.0

    async def run(self, connections: list[client.Connection]) -> None:
        self._start = self._end = time.perf_counter()
        for connection in connections:
            self._send_next(connection)
        limit = self._seconds + PATIENCE
        try:
            async with asyncio.timeout(None if limit == float("inf") else limit):
                await self._done.wait()
        except TimeoutError:
            self._errors["no answer"] += len(self._outstanding)

    def measurement(self) -> Measurement:
        ordered = sorted(self._latencies)
        return Measurement(
            requests=len(ordered),
            seconds=self._end - self._start,
            p50=percentile(ordered, 0.50),
            p99=percentile(ordered, 0.99),
            errors=dict(self._errors),
        )

    def answered(self, connection: client.Connection, status: int, body: bytes) -> None:
        number, sent = self._outstanding.pop(connection)
        self._end = time.perf_counter()
        if 200 <= status < 300:
            self._latencies.append(self._end - sent)
        else:
            self._errors[f"status {status}"] += 1
        if self._on_answer is not None:
            self._on_answer(number, status, body)
        self._send_next(connection)

    def lost(self, connection: client.Connection, reason: str) -> None:
        self._outstanding.pop(connection, None)
        self._errors[reason] += 1
        self._finish_if_idle()

    def _send_next(self, connection: client.Connection) -> None:
        now = time.perf_counter()
        request = next(self._requests, None) if now - self._start < self._seconds else None
        if request is None:
            self._finish_if_idle()
            return
        self._outstanding[connection] = (self._sent, now)
        self._sent += 1
        connection.send(request)

    def _finish_if_idle(self) -> None:
        if not self._outstanding:
            self._done.set()
