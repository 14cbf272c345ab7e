"""`--record`: what came is appended to a file, for longer than the ring keeps it.

Blocks are written by a thread of their own, so the event loop never waits for a disk. When the file has grown to its
size it becomes FILE.1, in place of the one before, and another is begun. A disk that is full or too slow costs the
recording and never a request: that is told once, and then nothing more is written.
"""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from carpool.program import logs
from carpool_sidecar.recording import document, ring

log = logging.getLogger("carpool.sidecar.recording")

LARGEST = 64 * 1024 * 1024
"""Bytes of a file; with the one before there are twice as many."""

EVERY = 10.0
"""Seconds between writes, at most: so much is lost if the process is killed."""

_MOST_WAITING = 16  # blocks; a disk that is so far behind will not catch up
_CLOSING_SECONDS = 2.0


class Recorder:
    """Writes the ring's blocks to `path` from `start()` until `close()`, in a running event loop.

    `head` makes the head of blocks with these settings. `offset` is as in `document.block`.
    """

    # State: the open file and its size, which belong to the thread; the settings that the file's last head tells of;
    # whether writing has ended; the blocks not written yet; the timer.
    def __init__(
        self,
        path: str,
        kept: ring.Ring,
        head: Callable[[document.Setting], document.Head],
        offset: float,
        largest: int = LARGEST,
    ) -> None:
        self._path = path
        self._ring = kept
        self._head = head
        self._offset = offset
        self._largest = largest
        self._file: io.FileIO | None = None
        self._size = 0
        self._told: document.Setting | None = None
        self._has_ended = False
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thread = _Thread("recording")

    def start(self) -> None:
        """Begin."""
        self._loop = asyncio.get_running_loop()
        self._ring.on_sealed = self._add
        self._set_timer()

    async def close(self) -> None:
        """Write what is there, and end; gives up on a disk that takes longer than two seconds. May be called again."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._ring.seal()
        self._ring.on_sealed = None
        last = self._loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)
        await asyncio.wait([last], timeout=_CLOSING_SECONDS)
        self._has_ended = True  # whatever a slow disk still has before it is let go

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(EVERY, self._seal)

    def _seal(self) -> None:
        self._ring.seal()
        self._set_timer()

    def _add(self, block: ring.Block) -> None:
        if self._has_ended:
            return
        if self._waiting >= _MOST_WAITING:
            self._end("the disk is too slow")
            return
        self._waiting += 1
        written = self._loop.run_in_executor(self._thread, self._write, self._head(block.about), block)
        written.add_done_callback(self._written)

    def _written(self, done: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if not done.cancelled() and (error := done.exception()) is not None:
            self._end(getattr(error, "strerror", None) or repr(error))

    def _end(self, reason: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            log.error("arrivals are not recorded any more", extra=logs.facts(file=self._path, reason=reason))

    # --- in the thread -------------------------------------------------------------------------------------------

    def _write(self, head: document.Head, block: ring.Block) -> None:
        if self._has_ended:
            return
        file = self._file or self._open()
        line = document.block(block, self._offset)
        data = document.encode([line] if block.about == self._told else [head, line])
        if self._size and self._size + len(data) > self._largest:
            self._close()
            os.replace(self._path, f"{self._path}.1")
            file, data = self._open(), document.encode([head, line])
        rest = memoryview(data)
        while rest:  # a disk that is nearly full takes a part, and the next one is an error
            taken = file.write(rest)
            self._size += taken
            rest = rest[taken:]
        self._told = block.about

    def _open(self) -> io.FileIO:
        # Without a buffer: what was written is in the file, and an error is that of this very block.
        self._file = file = io.FileIO(self._path, "a+")
        self._size = file.seek(0, os.SEEK_END)
        if self._size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash has cut the last line
                self._size += file.write(b"\n")
        return file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Thread(futures.Executor):
    """Does one call after the other. Nobody waits for it at the end of the process, as they would for the threads of
    the library's executors: a disk may never come back."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> futures.Future[Any]:
        """Returns at once."""
        done: futures.Future[Any] = futures.Future()
        self._calls.put(functools.partial(_do, done, functools.partial(call, *args, **options)))
        return done

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End after the calls that were given; waits for none, and cancels none."""
        self._calls.put(None)

    def _work(self) -> None:
        while (do := self._calls.get()) is not None:
            do()


def _do(done: futures.Future[Any], call: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except Exception as error:
        done.set_exception(error)
    else:
        done.set_result(result)
