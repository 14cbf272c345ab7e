"""Compressed messages undone in steps, between which the event loop gets its turn: kilobytes can become gigabytes.

All calls take turns, so that however many inflate at once, no turn of the loop is longer for it.
"""

from __future__ import annotations

import asyncio
import collections
import io
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import statuses

STEP = 256 * 1024
"""Bytes that come out in one step, at most: about a millisecond."""
_INPUT = 64 * 1024
_COST = 8 * 1024  # bytes of work that a step counts at least: beginning with a message costs as much
_OWN_SIZE = 256  # bytes of an inflation before it begins, beside its message


class Inflation:
    """One message on its way from compressed to plain. What zlib needs, many kilobytes, is there from the first `step`.

    `window_bits` are zlib's, `encoding` is what grpc-encoding says, `limit` the bytes that may come out.
    """

    __slots__ = ("_at", "_encoding", "_inflater", "_limit", "_message", "_plain", "_window_bits", "is_done")

    def __init__(self, message: bytes, window_bits: int, encoding: bytes, limit: int) -> None:
        self.is_done = False
        self._message = message
        self._window_bits = window_bits
        self._at = 0
        self._encoding = encoding
        self._limit = limit
        self._inflater: Any = None

    def __len__(self) -> int:
        """Bytes that it counts: those of the compressed message, and its own."""
        return len(self._message) + _OWN_SIZE

    def step(self) -> int:
        """Go on a little; returns how many bytes came out.

        Raises `statuses.Fault` for what is no such data, and `errors.PayloadTooLarge`.
        """
        if self._inflater is None:
            self._inflater, self._plain = zlib.decompressobj(self._window_bits), io.BytesIO()
        inflater = self._inflater
        given: bytes = inflater.unconsumed_tail
        if not given:
            given = self._message[self._at : self._at + _INPUT]
            self._at += len(given)
        try:
            part = inflater.decompress(given, STEP)
        except zlib.error as error:
            raise self._not_valid(str(error)) from None
        if self._plain.tell() + len(part) > self._limit:
            raise errors.PayloadTooLarge(f"a message is larger than the limit of {self._limit} bytes")
        self._plain.write(part)
        self.is_done = inflater.eof
        has_left = inflater.unused_data or self._at < len(self._message)
        if (self.is_done and has_left) or not (part or given or self.is_done):
            raise self._not_valid("it has no clean end")
        return len(part)

    def plain(self) -> bytes:
        """The message, once it `is_done`."""
        return self._plain.getvalue()

    def _not_valid(self, why: str) -> statuses.Fault:
        return statuses.Fault(statuses.INTERNAL, f"a message is not valid {self._encoding!r}: {why}")


def cost(produced: int) -> int:
    """Bytes of work that a step counts."""
    return max(produced, _COST)


class Worker(Protocol):
    """A call with something to inflate."""

    def work(self) -> bool:
        """Do about `STEP` bytes of work; returns whether there is more to do."""
        ...


class Turns:
    """Lets one worker work in each turn of the event loop, one after the other."""

    # State: those with work left, and the next turn, if it is due.
    def __init__(self, report: Callable[[Exception], None]) -> None:
        self.report = report
        """Gets the bugs of workers, which must not stop the others."""
        self._workers: collections.deque[Worker] = collections.deque()
        self._next: asyncio.Handle | None = None

    def add(self, worker: Worker) -> None:
        """It has work from now on until its `work` returns False."""
        self._workers.append(worker)
        self._await_turn()

    def close(self) -> None:
        """Nobody works any more."""
        self._workers.clear()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _turn(self) -> None:
        self._next = None
        if self._workers:
            worker = self._workers.popleft()
            try:
                if worker.work():
                    self._workers.append(worker)
            except Exception as error:
                self.report(error)
            finally:
                self._await_turn()

    def _await_turn(self) -> None:
        if self._workers and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)
