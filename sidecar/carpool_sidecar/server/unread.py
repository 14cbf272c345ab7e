"""Clients that take nothing, or left unnoticed, and how long bytes may wait for them: on all ports.

A client decides when it reads. What it does not take waits in the transport and in the kernel, where it has memory, a
file and a place among the connections, and nothing else ends that: the server has done its part, and a connection that
is closed stays until its last byte is sent. So all connections are looked at now and then. What is on its way counts as
taken, as the kernel looks after that, and so does what the client's kernel has: a client whose kernel took everything
is idle as far as anybody can tell, which has its own time limit on each port.

A kernel takes bytes in steps: when its buffer is full, it takes nothing until much of that is free again (RFC 9293,
3.8.6.2.2), often 64 KiB, for which a slow reader needs a while. So a client has longer the more it took at once.

The look finds as well who has reset a connection that the server does not read at the time, as enough of what came
waits for answers: an event loop learns of a client's end only by reading.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from carpool.runtime import deadline_timer
from carpool.scheduling import ledger, limits

log = logging.getLogger("carpool.sidecar.server")

SLOWEST_READER: Final = 64 * 1024
"""Bytes a second below which a caller does not read a large answer but hold our memory."""

SLOWEST_STEPS: Final = 8 * 1024
"""Bytes a second at which a client has to read what its kernel took, at least, while there is memory."""

LARGEST_STEP: Final = 256 * 1024
"""Bytes that count, at most, of what a client took at once: they bound how long it may take nothing."""

_LEAST: Final = 2.0  # seconds: the way to a client may take some of them
_SHORTEST_ROUND, _LONGEST_ROUND = 0.05, 1.0  # seconds between looks at a connection
_ROUNDS_IN_A_TIMEOUT: Final = 4
_MOST_AT_ONCE: Final = 1000  # connections, which takes 2 ms

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_SIOCOUTQNSD: Final = 0x894B
"""Linux's ioctl for the bytes that a socket has not sent yet, as the other end has no room for them."""

# struct tcp_info of Linux 4.1 and later: bytes that the other end has acknowledged.
_ACKNOWLEDGED_AT: Final = 120
_INFO_SIZE: Final = 128
_CLOSED: Final = 7  # Linux's number of the state, which is the first byte of the struct
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)


class Patience:
    """How long a client may take nothing: as long as a request may wait but 2 s at least, or 2 s when memory is short.

    And longer by what it needs for a step, or for a complete answer.

    `bounds` are the scheduler's, read anew each time: live changes apply at once.
    """

    def __init__(self, bounds: limits.Limits, memory: ledger.Ledger) -> None:
        self._bounds = bounds
        self._memory = memory

    def seconds(self, size: int, waiting: int) -> float:
        """How long a client may take over complete answers, of which we hold so many bytes.

        `waiting` are all that it has to read, those that the kernel has among them.
        """
        slowest = SLOWEST_READER if size > LARGEST_STEP or self._is_short else SLOWEST_STEPS
        return self._least + max(size, waiting) / slowest

    def between_steps(self, step: int) -> float:
        """How long a client may take nothing that has taken so many bytes at once."""
        slowest = SLOWEST_READER if self._is_short else SLOWEST_STEPS
        return self._least + min(step, LARGEST_STEP) / slowest

    @property
    def _least(self) -> float:
        return _LEAST if self._is_short else max(_LEAST, self._bounds.timeout)

    @property
    def _is_short(self) -> bool:
        return not self._memory.has_room(self._memory.limit / 2)


class Progress:
    """Since when a client has taken nothing of what waits for it, and the most bytes that it took at once: `step`.

    At once is from one pause to the next. The first step begins with all that it took before anything waited: it may
    have that to read before its kernel takes more.
    """

    # State: that time, None if nothing waits; how much it had taken then; the step, and the one that goes on.
    __slots__ = ("_at_once", "_since", "_taken", "step")

    def __init__(self) -> None:
        self._since: float | None = None
        self._taken = self._at_once = self.step = 0

    def seconds(self, now: float, waiting: int, taken: int) -> float:
        """How long it has taken nothing if so many bytes wait now; `taken` differs whenever it has taken some."""
        if not waiting:
            self._since = None
            return 0.0
        if self._since is None or taken != self._taken:
            self._at_once += max(0, taken - self._taken)
            self.step = max(self.step, self._at_once)
            self._since, self._taken = now, taken
        else:
            self._at_once = 0
        return now - self._since


class Watch:
    """Cuts off clients that take nothing for longer than `patience` says, whatever serves them.

    Ends connections that clients have reset, too, where nothing is read of them.

    `patience` gets the most bytes that a client took at once, as `Patience.between_steps`.
    """

    # State: all connections, with how they get on; the timer while there are any.
    def __init__(self, patience: Callable[[int], float], clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clients: collections.deque[tuple[socket.socket, asyncio.Transport, Progress]] = collections.deque()
        self._clock = clock
        self._timer = deadline_timer.DeadlineTimer(self._go_round, clock)

    def add(self, caller: socket.socket, transport: asyncio.Transport) -> None:
        """Look after a connection until its socket is closed."""
        self._clients.append((caller, transport, Progress()))
        self._timer.look_by(self._clock() + self._round)

    def stop(self) -> None:
        """Look after nobody any more."""
        self._timer.stop()
        self._clients.clear()

    def _go_round(self, now: float) -> float:
        """Cut off whose time is up; returns when to look again, or infinity."""
        clients = self._clients
        count = min(len(clients), _MOST_AT_ONCE)
        for _ in range(count):
            caller, transport, progress = clients.popleft()
            if caller.fileno() < 0:
                continue
            size = waiting(transport, caller)
            seconds = progress.seconds(now, size, _taken(caller, size))
            if seconds > self._patience(progress.step):
                log.info("a client that took nothing for %g s was cut off", round(seconds, 1))
                reset(transport)
            elif not transport.is_reading() and _is_reset(caller):
                transport.abort()
            clients.append((caller, transport, progress))
        return now + self._round * count / max(count, len(clients)) if clients else float("inf")

    @property
    def _round(self) -> float:
        return max(_SHORTEST_ROUND, min(_LONGEST_ROUND, self._patience(0) / _ROUNDS_IN_A_TIMEOUT))


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a TCP reset, so that nothing waits for the client any more, in the kernel neither."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):  # the client has left
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def _is_reset(caller: socket.socket) -> bool:
    if _TCP_INFO is None:
        return False
    with contextlib.suppress(OSError):  # such a socket cannot tell
        is_closed = caller.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] == _CLOSED
        # Without an error both sides have ended in order, and what the client sent before is still to be read.
        return is_closed and caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    return False


def waiting(transport: asyncio.Transport, caller: socket.socket | None) -> int:
    """Bytes that wait for a client here and in the kernel, whose socket that is."""
    size = transport.get_write_buffer_size()
    if caller is not None and caller.fileno() >= 0:
        with contextlib.suppress(OSError):  # such a socket cannot tell
            size += struct.unpack("i", fcntl.ioctl(caller.fileno(), _SIOCOUTQNSD, bytes(4)))[0]
    return size


def _taken(caller: socket.socket, waiting: int) -> int:
    """A number that differs whenever a client has taken some."""
    if not waiting or _TCP_INFO is None:
        return -waiting
    with contextlib.suppress(OSError):
        info = caller.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_SIZE)
        if len(info) == _INFO_SIZE:
            return int(struct.unpack_from("=Q", info, _ACKNOWLEDGED_AT)[0]) or -waiting
    return -waiting
