"""What a connection sends, in which order, and when: flow control and a socket that may be full.

Small answers that fit go out whole and at once. Everything else waits with its stream, and the streams take turns,
a frame each. What waits is never copied before it goes.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable
from typing import cast

from carpool_sidecar.server.http2 import frames, headers, unread

_BATCH = 256 * 1024
"""Bytes collected before the socket is asked whether it still takes any."""

_NOTHING: collections.deque[bytes | memoryview] = collections.deque()
"""Stands for the queue that most streams never need; stays empty."""

_END_OF_STREAM = frames.END_STREAM | frames.END_HEADERS


class Outlet(abc.ABC):
    """One stream's side of sending."""

    # opening: the block of an answer's head, ending: of its trailers; None once sent, or not known yet.
    # is_queued: among those who may send; a stream without a window of its own waits outside. kept: bytes of the pieces
    # that are not out to their end. waiting_since, taken: see `Connection.cut_slow`.
    __slots__ = (
        "ending",
        "is_blocking",
        "is_queued",
        "kept",
        "number",
        "opening",
        "taken",
        "unsent",
        "unsent_size",
        "waiting_since",
        "window",
    )

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.window = window
        self.unsent = _NOTHING
        self.unsent_size = self.kept = self.taken = 0
        self.opening: bytes | None = None
        self.ending: bytes | None = None
        self.is_queued = False
        self.is_blocking = False
        self.waiting_since: float | None = None

    def drop(self) -> None:
        """Send nothing more."""
        self.unsent, self.unsent_size, self.opening, self.ending = _NOTHING, 0, None, None

    @abc.abstractmethod
    def sent(self) -> None:
        """The answer is complete and out."""

    @abc.abstractmethod
    def relieved(self) -> None:
        """`is_blocking`, or held back, and little is unsent now."""


class Sender:
    """Of one connection. `wake` is called when there is something to take where there was nothing before."""

    # State: _out, bytes that may go, in order. _ready, outlets that may send; _hungry: those for which the
    # connection's window is too narrow. _held_back: those that wait until the client has taken more of all streams.
    # window, initial_window, max_frame: what the client allows. is_paused: the socket is full. progress: any change
    # means that the client reads. pieces: DATA frames sent that no window cut short.
    __slots__ = (
        "_has_spoken", "_held_back", "_hungry", "_least_unsent", "_out", "_ready", "_size", "_wake",
        "initial_window", "is_paused", "max_frame", "pieces", "progress", "unread", "window",
    )  # fmt: skip

    def __init__(self, most_unsent: int, wake: Callable[[], None], unread_: unread.Unread) -> None:
        self.unread = unread_
        self._least_unsent = most_unsent // 2
        self._wake = wake
        self._out: list[bytes | memoryview] = []
        self._size = 0
        self._ready: collections.deque[Outlet] = collections.deque()
        self._hungry: collections.OrderedDict[Outlet, None] = collections.OrderedDict()
        self._held_back: dict[Outlet, None] = {}
        self._has_spoken = False
        self.window = self.initial_window = frames.FIRST_WINDOW
        self.max_frame = frames.LEAST_MAX_FRAME
        self.is_paused = False
        self.progress = self.pieces = 0

    @property
    def size(self) -> int:
        """Bytes ready to be taken. While the socket is full these are mostly acknowledgements."""
        return self._size

    @property
    def is_stuck(self) -> bool:
        """Something waits for the client to read, and no stream can do anything about it."""
        return self.is_paused or bool(self._hungry)

    def put(self, data: bytes) -> None:
        """Send this frame, which needs no window."""
        if not self._out:
            self._wake()
        self._out.append(data)
        self._size += len(data)

    def answer(self, outlet: Outlet, head: bytes, body: bytes, trailers: bytes) -> None:
        """Send a whole answer."""
        size, most = len(body), self.max_frame
        if (
            size > most
            or size > self.window
            or size > outlet.window
            or self._ready
            or self._is_full()
            or len(head) >= most
            or len(trailers) > most
        ):
            outlet.opening = head
            outlet.ending = trailers
            self.add(outlet, body)
            return
        if not self._has_spoken:
            head = self._first(head)
        self.window -= size
        self.pieces += 1
        pack, number = frames.pack_head, outlet.number
        start = pack(len(head) << 8 | frames.HEADERS, frames.END_HEADERS, number)
        middle = pack(size << 8, 0, number) if size else b""
        end = pack(len(trailers) << 8 | frames.HEADERS, _END_OF_STREAM, number)
        self.put(b"".join((start, head, middle, body, end, trailers)))
        outlet.sent()

    def add(self, outlet: Outlet, data: bytes) -> None:
        """Send the outlet's opening, this and its ending, if it has one, when possible."""
        if data:
            if not outlet.unsent_size:
                outlet.unsent = collections.deque()
            outlet.unsent.append(data)
            outlet.unsent_size += len(data)
            outlet.kept += len(data)
            self.unread.keep(len(data))
        if not outlet.is_queued:
            if not outlet.unsent_size and not self._is_full():
                self._settle(outlet)
                return
            outlet.is_queued = True
            self._ready.append(outlet)
        self.pump()

    def pump(self) -> None:
        """Send what may be sent by now."""
        relieved = []
        ready, hungry = self._ready, self._hungry
        while not self._is_full():
            if ready:
                outlet = ready.popleft()
            elif hungry and self.window > 0:
                outlet, _ = hungry.popitem(last=False)
            else:
                break
            if outlet.opening is not None:
                self._open(outlet)
            if outlet.unsent_size and outlet.window > 0:
                if self.window <= 0:
                    hungry[outlet] = None
                    continue
                self._send_piece(outlet)
                if outlet.is_blocking and outlet.unsent_size <= self._least_unsent:
                    outlet.is_blocking = False
                    relieved.append(outlet)
                if outlet.unsent_size:
                    if hungry:
                        hungry[outlet] = None
                    else:
                        ready.append(outlet)
                    continue
            outlet.is_queued = False
            if not outlet.unsent_size:
                self._settle(outlet)
        for outlet in relieved:
            outlet.relieved()
        if self._held_back:
            self._relieve()

    def grant(self, increment: int) -> None:
        """The connection's window is so much wider."""
        self.window += increment
        if self._hungry:
            self.pump()

    def forget(self, outlet: Outlet) -> None:
        """The outlet was dropped, or is done."""
        self._hungry.pop(outlet, None)
        self.unread.release(outlet.kept)
        outlet.kept = 0
        if self._held_back:
            self._held_back.pop(outlet, None)
            self._relieve()

    def holds_back(self, outlet: Outlet) -> bool:
        """Whether the outlet should bring no more until it is `relieved`: too much waits for the client, on whichever
        of its streams."""
        if self.unread.is_much:
            self._held_back[outlet] = None
        else:
            self._held_back.pop(outlet, None)
        return self.unread.is_much

    def is_held_back(self, outlet: Outlet) -> bool:
        """Whether it waits for that."""
        return outlet in self._held_back

    def widen(self, outlet: Outlet, increment: int) -> None:
        """The outlet's window is so much wider, or narrower."""
        outlet.window += increment
        if outlet.unsent_size and outlet.window > 0 and not outlet.is_queued:
            outlet.is_queued = True
            self._ready.append(outlet)
            self.pump()

    def take(self) -> bytes:
        """What the socket gets next; empty if nothing may be sent."""
        self.pump()
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._size = 0
        self.progress += 1
        return data

    def _relieve(self) -> None:
        if self.unread.is_little_again:
            relieved, self._held_back = self._held_back, {}
            for outlet in relieved:
                outlet.waiting_since = None
                outlet.relieved()

    def _is_full(self) -> bool:
        return self.is_paused or self._size >= _BATCH

    def _first(self, block: bytes) -> bytes:
        self._has_spoken = True
        return headers.NO_TABLE + block

    def _open(self, outlet: Outlet) -> None:
        self._put_block(outlet.number, outlet.opening or b"", 0)
        outlet.opening = None

    def _settle(self, outlet: Outlet) -> None:
        """Send what needs no window, all data being out."""
        if outlet.opening is not None:
            self._open(outlet)
        if outlet.ending is not None:
            self._put_block(outlet.number, outlet.ending, frames.END_STREAM)
            outlet.ending = None
            outlet.sent()

    def _put_block(self, number: int, block: bytes, flags: int) -> None:
        if not self._has_spoken:
            block = self._first(block)
        self.put(frames.headers(number, block, flags, self.max_frame))

    def _send_piece(self, outlet: Outlet) -> None:
        unsent = outlet.unsent
        piece = unsent.popleft()
        room = min(outlet.window, self.window, self.max_frame)
        if len(piece) > room:
            piece = memoryview(piece)
            unsent.appendleft(piece[room:])
            piece = piece[:room]
            self.pieces += room == self.max_frame
        else:
            self.pieces += 1
            # Not before the last of it is out: until then all of it is kept.
            whole = len(cast(bytes, piece.obj)) if isinstance(piece, memoryview) else len(piece)
            outlet.kept -= whole
            self.unread.release(whole)
        size = len(piece)
        outlet.window -= size
        outlet.unsent_size -= size
        outlet.taken += size
        self.window -= size
        self.put(frames.pack_head(size << 8 | frames.DATA, 0, outlet.number))
        self._out.append(piece)
        self._size += size
