"""How much one client may ask of the server, and how that is measured: frames, bytes and turns of the event loop."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_WORK_A_ROUND: Final = 512
"""Units of work (see `connection.Connection.work`), about 2 ms. A batched call takes half a dozen rounds from its
arrival to its answer."""


class Limits(NamedTuple):
    """Limits of one connection. Sizes are in bytes, times in seconds."""

    max_streams: int = 1000
    """Streams open at the same time. More are refused, which clients take as "try again"."""

    max_header_bytes: int = 64 * 1024
    """Header fields of one request, counted as RFC 9113, section 6.5.2 says: each field counts 32 bytes more."""

    max_frame: int = 64 * 1024
    """Payload of a frame; from 16,384 to 16,777,215."""

    stream_window: int = 4 * 1024 * 1024
    """Bytes of one body that its handler has not consumed yet; at least 65,535, which clients assume at first."""

    connection_window: int = 16 * 1024 * 1024
    """Bytes of all bodies together that are on their way at once; at least 65,535. The server grants them again as
    they arrive, so that a stream whose handler consumes nothing stops no other stream."""

    most_unsent: int = 256 * 1024
    """Unsent bytes of one answer from which on `ServerStream.is_blocked` is true."""

    resets: int = 4000
    """Streams broken off in a row; one is forgiven each millisecond. More end the connection."""

    idle_frames: int = 2000
    """Frames in a row that bring nothing of a request; one is forgiven every 10 ms. A client may send some more for
    each stream that it opens and each piece of an answer that it gets: it has to widen windows, and some clients
    measure the round trip with PINGs. More end the connection."""

    keep_alive: float = 75.0
    """A connection without a stream is closed after this time."""

    handshake: float = 10.0
    """The client's preface has to arrive within this time."""

    patience: float = 30.0
    """A client that reads nothing of what waits for it is cut off after this time."""

    slowest_reader: int = 64 * 1024
    """Bytes a second that a client has to take of a complete answer, once `patience` is over."""


class TokenBucket:
    """Bounds what is cheap for a client and expensive for the server.

    A client may do it `most` times in a row, once more for every `interval` seconds since, and once more for each time
    that it has earned by useful requests.
    """

    # State. _left: tokens, as of the time _since; _used: how many of the earned ones are spent.
    __slots__ = ("_clock", "_interval", "_left", "_most", "_since", "_used")

    def __init__(self, most: int, interval: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._interval = interval
        self._clock = clock
        self._left = float(most)
        self._since = clock()
        self._used = 0

    def take(self, count: int = 1, earned: int = 0) -> bool:
        """Take `count` tokens; False if that is too many. `earned` counts from the beginning of the connection."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._since) / self._interval)
        self._since = now
        if count <= self._left:
            self._left -= count
            return True
        self._used += count
        return self._used <= earned


class ReceiveWindow:
    """What a client may still send on a stream or connection (RFC 9113, sections 5.2 and 6.9)."""

    __slots__ = ("_least_grant", "_owed", "_room")

    def __init__(self, size: int) -> None:
        self._room = size
        self._owed = 0
        self._least_grant = max(1, size // 2)

    def take(self, count: int) -> bool:
        """`count` bytes have come; False if the client had no right to send them."""
        self._room -= count
        return self._room >= 0

    def give_back(self, count: int) -> int:
        """`count` bytes are consumed. Returns the increment to announce: 0 until it is half of the window."""
        self._owed += count
        if self._owed < self._least_grant:
            return 0
        grant, self._owed = self._owed, 0
        self._room += grant
        return grant


class TurnTaker(Protocol):
    """A connection that has more to do than fits into one turn."""

    def take_turn(self) -> None:
        """Work for one turn, `spend` it, and `wait` again if there is more to do."""
        ...


class Turns:
    """Shares the event loop's time between the connections of one server. `call_soon` is the event loop's.

    The server handles little work as soon as it arrives. A client that sends much, or that leaves many streams to be
    cleared away, gets turns of limited work. Connections take turns one after another, and between two rounds of turns
    the loop does everything else. So a client that asks for little waits for the length of a round at most, whatever
    the others send and however many connections they use.
    """

    # State: the connections that wait, in order; the work left of this round; whether the next round is due.
    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: collections.deque[TurnTaker] = collections.deque()
        self._left = _WORK_A_ROUND
        self._is_due = False

    @property
    def has_room(self) -> bool:
        """Whether this round has time for more."""
        return self._left > 0

    def spend(self, work: int) -> None:
        """Subtract `work` from this round."""
        self._left -= work
        if self._left <= 0:
            self._make_due()

    def wait(self, client: TurnTaker) -> None:
        """Call `client.take_turn` when it is this client's turn."""
        self._waiting.append(client)
        self._make_due()

    def _make_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._go_round)

    def _go_round(self) -> None:
        self._is_due = False
        self._left = _WORK_A_ROUND
        waiting = self._waiting
        for _ in range(len(waiting)):
            waiting.popleft().take_turn()
            if self._left <= 0:
                break
        if waiting:
            self._make_due()
