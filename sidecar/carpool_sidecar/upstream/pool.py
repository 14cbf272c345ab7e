"""The kept-alive connections to the predictor."""

from __future__ import annotations

import asyncio
import errno
import math
import os

from carpool.runtime import deadline_timer
from carpool_sidecar import errors
from carpool_sidecar.upstream import connection, session

# Large enough that a system call is little beside the copy it makes, small enough to stay in a core's cache.
_SCRATCH = 256 * 1024


class Pool:
    """Hands out connections to one host and port, the one used last first; idle ones are closed after 4 seconds.

    As many as needed: a limit here would make requests wait unseen, and the core limits what is in flight.
    """

    # State: all connections; those that are free, the one used last at the end; _gone, set up by `close`.
    def __init__(self, host: str, port: int, max_answer_bytes: int) -> None:
        self._address = (host, port)
        self._max_answer_bytes = max_answer_bytes
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._all: set[connection.Connection] = set()
        self._free: list[connection.Connection] = []
        self._gone: asyncio.Event | None = None
        self._deadlines = deadline_timer.DeadlineTimer(self._close_idle)

    def take(self) -> connection.Connection | None:
        """A connection that nothing came over since its last answer, if there is one."""
        while self._free:
            latest = self._free.pop()
            if latest.is_silent():
                return latest
            latest.abort()
        return None

    async def open(self) -> connection.Connection:
        """A new connection; raises `errors.UpstreamUnreachable`, `errors.OutOfSockets` or `errors.UpstreamClosed`."""
        if self._gone is not None:
            raise errors.UpstreamUnreachable("the predictor cannot be reached: all connections to it were closed")
        opened = self._make()
        try:
            await asyncio.get_running_loop().create_connection(lambda: opened, *self._address)
        except OSError as error:
            raise _translated(error) from None
        except asyncio.CancelledError:
            self.lost(opened)  # uvloop closes a connection that was just made without telling its protocol
            raise
        if not opened.is_silent():
            opened.abort()
            raise errors.UpstreamClosed
        return opened

    def limit_answers(self, max_bytes: int) -> None:
        """Break answers of more than so many bytes off from now on."""
        self._max_answer_bytes = max_bytes
        for each in self._all:
            each.limit_answers(max_bytes)

    async def close(self) -> None:
        """Close all connections and return when they are gone. None can be had afterwards."""
        self._deadlines.stop()
        self._free.clear()
        self._gone = asyncio.Event()
        for each in self._all:
            each.abort()
        if self._all:
            await self._gone.wait()

    # --- what connections tell ---------------------------------------------------------------------------------

    def made(self, new: connection.Connection) -> None:
        self._all.add(new)

    def freed(self, idle: connection.Connection) -> None:
        if self._gone is not None:
            idle.abort()
            return
        idle.free_since = asyncio.get_running_loop().time()
        self._free.append(idle)
        self._deadlines.look_by(idle.free_since + session.IDLE_SECONDS)

    def lost(self, old: connection.Connection) -> None:
        self._all.discard(old)
        if old in self._free:
            self._free.remove(old)
        if self._gone is not None and not self._all:
            self._gone.set()

    def _make(self) -> connection.Connection:
        return connection.Connection(self, self._scratch, self._max_answer_bytes)

    def _close_idle(self, now: float) -> float:
        """Close what has been idle for too long; returns when to look again."""
        fresh = 0
        while fresh < len(self._free) and self._free[fresh].free_since + session.IDLE_SECONDS <= now:
            self._free[fresh].abort()
            fresh += 1
        del self._free[:fresh]
        return self._free[0].free_since + session.IDLE_SECONDS if self._free else math.inf


def _translated(error: OSError) -> errors.UpstreamError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return errors.OutOfSockets()
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "its address is unknown"
    return errors.UpstreamUnreachable(f"the predictor cannot be reached: {reason}")
