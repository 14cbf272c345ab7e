"""Messages on their way in: found in a stream's data, inflated, counted as memory, and given up when they are late.

Sources: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and compression.md beside it.
"""

from __future__ import annotations

import asyncio
import collections
import io
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from carpool.runtime import deadline_timer
from carpool.scheduling import ledger
from carpool_sidecar import errors, turns
from carpool_sidecar.protocols.v2_grpc import statuses

ENCODINGS: Final = {b"gzip": 31, b"deflate": 15}
"""What can be inflated, with zlib's window bits for it."""

ACCEPTED: Final[bytes] = b"identity,deflate,gzip"

STEP: Final = 256 * 1024
"""Bytes that one step of inflating produces at most: about a millisecond's work."""

_STEP_INPUT: Final = 64 * 1024
_LEAST_COST: Final = 8 * 1024  # bytes of work that a step counts at least: beginning with a message costs as much
_OWN_SIZE: Final = 256  # bytes of an inflation before it begins, beside its message
_MOST_GROWTH: Final = 8 * 1024 * 1024  # bytes of a message for which memory may be taken before they come
_MESSAGES_A_UNIT: Final = 2  # see `ServerStream.charge`

_PREFIX: Final = struct.Struct(">BI")

Report = turns.Report


class MessageLimits(Protocol):
    """`max_body_bytes` bounds a message, `memory` all that is held; a message has `read_timeout` seconds to arrive."""

    max_body_bytes: int
    read_timeout: float
    memory: ledger.Ledger


def frame(pieces: Sequence[bytes | memoryview]) -> bytes:
    """One uncompressed message, given in pieces, as it is sent."""
    return b"".join([_PREFIX.pack(0, sum(map(len, pieces))), *pieces])


def whole(data: bytes, limits: MessageLimits) -> bytes | None:
    """The message if `data` is exactly one that is not compressed; None if it has to be looked at by an `Arrival`.

    Raises `errors.Overloaded`.
    """
    limits.memory.check_room(len(data))
    size = len(data) - _PREFIX.size
    if 0 <= size <= limits.max_body_bytes and _PREFIX.unpack_from(data) == (0, size):
        return data[_PREFIX.size :]
    return None


class Inflation:
    """One message that is being inflated. zlib's own memory, many kilobytes, is taken with the first `step`.

    `window_bits` are zlib's, `encoding` is the value of grpc-encoding, and at most `limit` bytes may come out.
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
        """The bytes that it counts: those of the compressed message, and its own."""
        return len(self._message) + _OWN_SIZE

    def step(self) -> int:
        """Inflate up to `STEP` bytes; returns how many came out.

        Raises `statuses.Fault` for data that is not valid, and `errors.PayloadTooLarge`.
        """
        if self._inflater is None:
            self._inflater, self._plain = zlib.decompressobj(self._window_bits), io.BytesIO()
        inflater = self._inflater
        given: bytes = inflater.unconsumed_tail
        if not given:
            given = self._message[self._at : self._at + _STEP_INPUT]
            self._at += len(given)
        try:
            part = inflater.decompress(given, STEP)
        except zlib.error as error:
            raise self._not_valid(str(error)) from None
        if self._plain.tell() + len(part) > self._limit:
            raise _too_large(self._limit)
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


class Unframer:
    """Finds the messages in the data of one stream.

    `limit` is the bytes that a message may have, as sent and inflated; `encoding` is the value of grpc-encoding.
    """

    # State: the beginning of a prefix; or the message that is incomplete, which will have _length bytes, with its flag
    # and the _size of its buffer.
    __slots__ = ("_encoding", "_flag", "_length", "_limit", "_message", "_prefix", "_size", "held")

    def __init__(self, limit: int, encoding: bytes | None = None) -> None:
        self._limit = limit
        self._encoding = encoding
        self._prefix = b""
        self._message: io.BytesIO | None = None
        self._flag = self._length = self._size = 0
        self.held = 0
        """Bytes of an incomplete message."""

    def feed(self, data: bytes) -> list[bytes | Inflation]:
        """The messages that are complete now; compressed ones have yet to be inflated.

        Raises `errors.PayloadTooLarge` as soon as a message says that it is over the limit, and `statuses.Fault` for
        what cannot be read. Nothing can be fed after that.
        """
        messages: list[bytes | Inflation] = []
        at = 0
        if self._message is not None:
            at = self._length - self._message.tell()
            if at > len(data):
                self._add(self._message, data)
                self.held += len(data)
                return messages
            self._add(self._message, memoryview(data)[:at])
            message, self._message = self._message.getvalue(), None
            messages.append(self._decoded(self._flag, message))
        elif self._prefix:
            data = self._prefix + data
        while (left := len(data) - at) >= _PREFIX.size:
            flag, length = _PREFIX.unpack_from(data, at)
            if length > self._limit:
                raise _too_large(self._limit)
            start = at + _PREFIX.size
            at = start + length
            if at > len(data):
                self._prefix, self.held = b"", left
                self._flag, self._length, self._size = flag, length, 0
                self._message = io.BytesIO()
                self._add(self._message, memoryview(data)[start:])
                return messages
            messages.append(self._decoded(flag, data[start:at]))
        self._prefix, self.held = data[at:], left
        return messages

    def end(self) -> None:
        """The data is complete; raises `statuses.Fault` in the middle of a message."""
        if self.held:
            raise statuses.Fault(statuses.INTERNAL, "the stream ended in the middle of a message")

    def drop(self) -> None:
        """Keep nothing of what came."""
        self._prefix, self._message, self.held = b"", None, 0

    def _add(self, message: io.BytesIO, data: bytes | memoryview) -> None:
        """Append. The buffer grows ahead in proportion to what has come, not to what the prefix announces.

        So a large message is never copied as a whole, which would take long, and small pieces cost what they count.
        """
        end = message.tell() + len(data)
        if end > self._size:
            self._size = min(self._length, end + min(end // 2, _MOST_GROWTH))
            message.seek(self._size - 1)
            message.write(b"\0")
            message.seek(end - len(data))
        message.write(data)

    def _decoded(self, flag: int, message: bytes) -> bytes | Inflation:
        if flag == 0:
            return message
        if flag != 1:
            raise statuses.Fault(statuses.INTERNAL, f"a message begins with {flag}; allowed: 0, 1 (compressed)")
        if self._encoding in (None, b"identity"):
            raise statuses.Fault(statuses.INTERNAL, "a message is compressed, but grpc-encoding does not say how")
        bits = ENCODINGS.get(self._encoding or b"")
        if bits is None:
            words = f"grpc-encoding {self._encoding!r} is unknown; allowed: {ACCEPTED.decode()}"
            raise statuses.Fault(statuses.UNIMPLEMENTED, words)
        return Inflation(message, bits, self._encoding or b"", self._limit)


def _too_large(limit: int) -> errors.PayloadTooLarge:
    return errors.PayloadTooLarge(f"a message is larger than the limit of {limit} bytes")


class Arrival(ledger.Reservation):
    """The messages of one call, and the memory that they take until they are released.

    Large messages are inflated in later turns of the event loop. `news` is called each time that `take` then has
    something to return or to raise.
    """

    # State. _unframer, _queue: None for most calls, whose one message comes whole and uncompressed: making both takes a
    # tenth of such a call's time. _queue: what is complete or being inflated, in order; _error: what went wrong with
    # that; _has_turn: whether there will be a turn.
    __slots__ = ("_encoding", "_error", "_has_turn", "_limit", "_news", "_queue", "_turns", "_unframer", "cost")

    def __init__(
        self, limits: MessageLimits, encoding: bytes | None, worked: turns.Turns, news: Callable[[], None]
    ) -> None:
        super().__init__(limits.memory)
        self._limit = limits.max_body_bytes
        self._encoding = encoding
        self._turns = worked
        self._news: Callable[[], None] | None = news
        self._unframer: Unframer | None = None
        self._queue: collections.deque[bytes | Inflation] | None = None
        self._error: errors.CarpoolError | None = None
        self._has_turn = False
        self.cost = 0
        """What was fed last costs so much beside its bytes, for `ServerStream.charge`."""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The messages that are there now.

        Raises `errors.Overloaded`, `errors.PayloadTooLarge` and `statuses.Fault`; the call cannot go on after that.
        """
        self._ledger.check_room(len(data))
        unframer = self._unframer
        if unframer is None:
            size = len(data) - _PREFIX.size
            if 0 <= size <= self._limit and _PREFIX.unpack_from(data) == (0, size):
                self.cost = 0
                self.add(size)
                return (data[_PREFIX.size :],)
            unframer = self._unframer = Unframer(self._limit, self._encoding)
        before = unframer.held
        found = unframer.feed(data)
        self.cost = len(found) // _MESSAGES_A_UNIT
        self.add(unframer.held - before + sum(map(len, found)))
        plain = [each for each in found if isinstance(each, bytes)]
        if not self._queue and len(plain) == len(found):
            return plain
        if self._queue is None:
            self._queue = collections.deque()
        self._queue.extend(found)
        if not self._has_turn and self._inflate():
            self._turns.add(self)
        return self.take()

    def take(self) -> Sequence[bytes]:
        """As `feed`, without more data."""
        if self._error is not None:
            raise self._error
        messages: list[bytes] = []
        while self._queue and isinstance(first := self._queue[0], bytes):
            messages.append(first)
            self._queue.popleft()
        return messages

    @property
    def is_inflating(self) -> bool:
        """Whether there will be news."""
        return self._has_turn

    @property
    def is_incomplete(self) -> bool:
        """Whether a message has begun to arrive that is not complete."""
        return self._unframer is not None and self._unframer.held > 0

    def end(self) -> None:
        """The data is complete; raises `statuses.Fault` in the middle of a message."""
        if self._unframer is not None:
            self._unframer.end()

    def release_message(self, size: int) -> None:
        """A message of `size` bytes is not held any more; does nothing after `release`."""
        self.resize(max(0, self._size - size))

    def release(self) -> None:
        """Nothing of the call is held any more, and there will be no more news."""
        self._queue = self._news = None
        if self._unframer is not None:
            self._unframer.drop()
        super().release()

    def work(self) -> bool:
        """Implements `turns.Worker`."""
        if self._news is None:
            return False
        self._has_turn = False
        try:
            self._inflate()
        except errors.CarpoolError as error:
            self._error = errors.bare(error)
        except Exception as bug:  # its caller must be answered
            self._turns.report(bug)
            self._error = errors.CarpoolError()
        if self._error is not None or (self._queue and isinstance(self._queue[0], bytes)):
            self._news()
        return self._has_turn

    def _inflate(self) -> bool:
        """Do one step's work; returns whether there is more, which needs a turn."""
        work, queue = 0, self._queue
        if queue is None:
            return False
        for at, each in enumerate(queue):
            if isinstance(each, bytes):
                continue
            while not each.is_done and work < STEP:
                produced = each.step()
                self._ledger.check_room(produced)
                self.add(produced)
                work += max(produced, _LEAST_COST)
            if not each.is_done:
                self._has_turn = True
                break
            self.resize(self._size - len(each))
            queue[at] = each.plain()
        return self._has_turn


class Arriving(Protocol):
    """A call whose message is on its way."""

    def expire(self) -> None:
        """It took too long."""
        ...


class MessageTimeouts:
    """Expires calls that were added `limits.read_timeout` seconds ago and not removed, by one timer for all of them."""

    # State: the calls, oldest first, with the loop's time when each expires.
    def __init__(self, limits: MessageLimits, report: Report) -> None:
        self._limits = limits
        self._report = report
        self._arriving: dict[Arriving, float] = {}
        self._timer = deadline_timer.DeadlineTimer(self._expire)

    def add(self, call: Arriving) -> None:
        """Wait for this call from now on."""
        deadline = self._arriving[call] = asyncio.get_running_loop().time() + self._limits.read_timeout
        self._timer.look_by(deadline)

    def remove(self, call: Arriving) -> None:
        """The message of this call is complete, or the call is over."""
        self._arriving.pop(call, None)

    def close(self) -> None:
        """Wait for no call any more."""
        self._arriving.clear()
        self._timer.stop()

    def _expire(self, now: float) -> float:
        for call in [call for call, deadline in self._arriving.items() if deadline <= now]:
            self.remove(call)
            try:
                call.expire()
            except Exception as error:  # the others expire all the same
                self._report(error)
        return min(self._arriving.values(), default=math.inf)
