"""Lets callers in: many at once while few requests wait, and no faster than the others are served once many do.

libuv takes one connection from a listening socket in each turn of its loop. Of hundreds of callers who come at once to
a sidecar with work to do, the last would wait for seconds. But a connection costs as much as several requests, and
callers open another one whenever all of theirs are busy: a sidecar that lets in all who come spends its time on that as
soon as it is a little behind, is more behind, and thousands of connections come of it. None of them makes a batch
larger. They wait as well in the kernel's queue, which costs nothing.

So once there are enough requests to fill batches, how many a turn lets in depends on how many requests came since the
last one: while everybody who is in asks once, some more are let in. Where callers are thousands, that is hardly more
than the one of each turn, and turns are long while there is much to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from carpool.program import addresses
from carpool_sidecar import files

log = logging.getLogger("carpool.sidecar.listening")

MOST_IN_A_TURN: Final = 16
"""Callers let in by one turn of the event loop. So many take less than a millisecond."""

# Requests being handled; more callers rarely make batches larger.
_ENOUGH: Final = 256
# Callers let in while everybody who is in asks once.
_NEWCOMERS: Final = 16

_MOST_DROPPED: Final = 256 * 1024  # bytes that a caller has sent who may not come in

# Callers let in at the end; more do not wait outside.
_MOST_LEFT: Final = 4096

# Of the event loop: in the second it finds what came before the first, and reads it.
_TURNS_TO_READ: Final = 3

# The process, or the machine, has too many open files: seconds until somebody may be let in again.
_REST: Final = 1.0
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_MOST_CONNECTIONS: Final = 10_000
# What the sidecar needs for itself: ports, the way to the predictor, and what is the admin port's.
_OWN_FILES: Final = 64

Came = Callable[[socket.socket, asyncio.Transport], None]
"""Told of a caller who is in, until its socket is closed, and of its transport."""

_Let = tuple[asyncio.BaseTransport, asyncio.Protocol]


class Crowd(NamedTuple):
    """Who is in: `open` connections. Of their requests, so many were ever `asked`, and are `waiting` for an answer."""

    open: int
    asked: int
    waiting: int


def allowance(crowd: Crowd, asked: int) -> int:
    """How many may be let in when so many requests came since that was last asked; at least one."""
    if crowd.waiting < _ENOUGH or not crowd.open:
        return MOST_IN_A_TURN
    return min(MOST_IN_A_TURN, 1 + asked * _NEWCOMERS // crowd.open)


class ConnectionLimit:
    """Counts clients of all ports and protocols that connect and leave. `open` is how many there are.

    `on_refused` is called for each too many. All who come in are given to `came`, if there is one.
    """

    def __init__(self, most: int, on_refused: Callable[[], None], came: Came | None = None) -> None:
        self.open = 0
        self.came = came
        self._most = most
        self._on_refused = on_refused

    def has_file(self, number: int) -> bool:
        """Whether a caller may have the file of this number. If not, it is counted and told so."""
        if files.is_spared(number):
            log.warning("a client was refused: the limit of open files is reached")
            self._on_refused()
            return False
        return True

    def enter(self) -> bool:
        """A client connected: whether it may stay. If so, `leave` has to be called when it is gone."""
        if self.open >= self._most:
            self._on_refused()
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """The counterpart of `enter`."""
        self.open -= 1


def usual_limit() -> int:
    """How many clients may be connected where that was not chosen: half of the open files, at most 10,000.

    A request passed through takes a second one.
    """
    return max(1, min(_MOST_CONNECTIONS, (files.limit() - _OWN_FILES) // 2))


class Listener:
    """Listens on one socket, which it closes in the end; each caller gets a protocol from `make`.

    `crowd` tells who is in; without it all who come are let in. When there are no more files to be had, nobody is let
    in for `rest` seconds. Who may not come in by the `limit` is told the `refusal`; others are given to `came`, or to
    that of the limit.
    """

    # State: the connections that are being made; how much had been asked when callers were last let in; the timer while
    # it rests; whether it is closed.
    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        crowd: Callable[[], Crowd] | None = None,
        rest: float = _REST,
        limit: ConnectionLimit | None = None,
        refusal: Callable[[], bytes] = bytes,
        came: Came | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._make = make
        self._crowd = crowd
        self._rest = rest
        self._limit = limit
        self._refusal = refusal
        self._came = came or (None if limit is None else limit.came)
        self._arriving: set[asyncio.Task[_Let]] = set()
        self._asked = 0 if crowd is None else crowd().asked
        self._resting: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._let_in)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def _let_in(self) -> None:
        """Somebody waits outside. The event loop calls this once in each turn until nobody does."""
        room = MOST_IN_A_TURN
        if self._crowd is not None:
            crowd = self._crowd()
            room, self._asked = allowance(crowd, crowd.asked - self._asked), crowd.asked
        try:
            self._take_most(room)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            log.warning("no caller is let in for %g s: %s", self._rest, error)
            self._loop.remove_reader(self._socket)
            self._resting = self._loop.call_later(self._rest, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self._loop.add_reader(self._socket, self._let_in)

    def _take_most(self, most: int) -> None:
        """Let in so many of those who wait; raises `OSError` if the system has no room for another."""
        with contextlib.suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):  # nobody waits any more
            for _ in range(most):
                self._take(self._socket.accept()[0])

    def _take(self, caller: socket.socket) -> None:
        caller.setblocking(False)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvloop does, and asyncio for its own
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # one that vanished with its node is found out
        if self._limit is not None and not self._limit.has_file(caller.fileno()):
            self._turn_away(caller)
            return
        arriving = self._loop.create_task(self._loop.connect_accepted_socket(self._make, caller))
        self._arriving.add(arriving)
        arriving.add_done_callback(functools.partial(self._arrived, caller))

    def _turn_away(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError), caller:  # it has left, or has not asked yet
            caller.send(self._refusal())
            caller.recv(_MOST_DROPPED)  # the kernel resets a connection that is closed with bytes unread

    def _arrived(self, caller: socket.socket, arriving: asyncio.Task[_Let]) -> None:
        self._arriving.discard(arriving)
        error = None if arriving.cancelled() else arriving.exception()
        if error is not None and not isinstance(error, OSError):  # an `OSError` is a caller who has left
            context = {"message": "a caller could not be let in", "exception": error}
            self._loop.call_exception_handler(context)
        elif error is None and not arriving.cancelled() and self._came is not None:
            self._came(caller, cast(asyncio.Transport, arriving.result()[0]))  # uvloop's is none by inheritance

    async def close(self) -> None:
        """Let in those who wait outside, who are connected as far as they know, and nobody after them.

        Returns when all have their protocols, and what callers had sent by then is read.
        """
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._socket)
        with contextlib.suppress(OSError):
            self._take_most(_MOST_LEFT)
        self._socket.close()
        if self._arriving:
            await asyncio.wait(self._arriving)
        await until_read()


async def until_read() -> None:
    """Return when what callers had sent by now is read."""
    for _ in range(_TURNS_TO_READ):
        await asyncio.sleep(0)


async def listen(
    address: tuple[str, int],
    backlog: int,
    make: Callable[[], asyncio.Protocol],
    crowd: Callable[[], Crowd] | None = None,
    limit: ConnectionLimit | None = None,
    refusal: Callable[[], bytes] = bytes,
    came: Came | None = None,
) -> list[Listener]:
    """Listen on a port of all addresses that a host has, as `Listener` does; raises `OSError` if it is taken.

    Up to `backlog` callers wait outside; the kernel turns more away.
    """
    found = []
    for listening in addresses.bind(*address):
        listening.listen(backlog)
        found.append(Listener(listening, make, crowd, limit=limit, refusal=refusal, came=came))
    return found
