"""What a connection sends, in which order, and when: flow control, a socket that may be full, and clients that do not
read.

A small answer that fits is sent whole and at once. Everything else waits with its stream, and the streams take turns, a
frame each. What waits is never copied before it is sent. A client decides by its windows when its answers are sent, and
nothing makes it read, so what waits for it counts as memory, together with the bodies of requests: a full memory
refuses new work, and a client that reads too slowly loses what waits, earlier when memory is short.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable
from typing import Final, cast

from carpool.compiled import mypyc_attr
from carpool.scheduling import ledger
from carpool_sidecar.server.http2 import frames, headers

_BATCH: Final = 256 * 1024
"""Bytes collected before the socket is asked whether it still takes any."""

_ALWAYS: Final = 1024 * 1024
"""Bytes that may wait for any client, however little memory is left."""

_MUCH: Final = 8 * 1024 * 1024
"""Bytes that wait for a client before its streams should bring no more; see `Unread.is_much`."""

_SHORT_PATIENCE: Final = 2.0
"""Seconds that a client may read nothing when memory is short."""

_NOTHING: Final[collections.deque[bytes | memoryview]] = collections.deque()
"""The queue of streams that need none, which are most; it stays empty."""

_END_OF_STREAM: Final = frames.END_STREAM | frames.END_HEADERS


class Unread(ledger.Reservation):
    """The bytes that wait for one client, of all its streams. `slowest` is how many it has to take in a second."""

    __slots__ = ("_slowest",)

    def __init__(self, memory: ledger.Ledger, slowest: int) -> None:
        super().__init__(memory)
        self._slowest = slowest

    @property
    def is_too_much(self) -> bool:
        """Whether no more may wait for this client: the memory is full, and the client has its part in that."""
        return self._size > _ALWAYS and not self._ledger.has_room(0)

    @property
    def is_much(self) -> bool:
        """Whether handlers that can wait should bring no more for this client, on none of its streams."""
        return self._size >= _MUCH

    @property
    def is_little_again(self) -> bool:
        """Whether those handlers may go on."""
        return self._size <= _MUCH // 2

    @property
    def is_memory_short(self) -> bool:
        """Whether slow clients are a burden to others."""
        return not self._ledger.has_room(self._ledger.limit / 2)

    def is_slow(self, seconds: float, taken: int, patience: float) -> bool:
        """Whether a client is too slow that took `taken` bytes in `seconds` in which more bytes waited.

        The client has `patience` seconds in any case, or 2 seconds when memory is short.
        """
        if self.is_memory_short:
            patience = min(patience, _SHORT_PATIENCE)
        return seconds > patience + taken / self._slowest

    def is_stopped(self, seconds: float, patience: float) -> bool:
        """Whether a client is too slow for which `is_much` has been true for `seconds` without a break."""
        return self.is_slow(seconds - _MUCH / self._slowest, 0, patience)


@mypyc_attr(allow_interpreted_subclasses=True)
class SendQueue(abc.ABC):
    """What one stream has to send."""

    # opening: the block of the answer's head, ending: of its trailers; None once sent, or not known yet.
    # is_queued: among those that may send; a stream whose own window is empty waits outside. kept: bytes of the pieces
    # that are not sent to their end. waiting_since, taken: see `Connection.cut_slow`.
    __slots__ = (
        "ending", "is_blocking", "is_queued", "kept", "number", "opening", "taken", "unsent", "unsent_size",
        "waiting_since", "window",
    )  # fmt: skip

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
        """The answer is complete and sent."""

    @abc.abstractmethod
    def relieved(self) -> None:
        """The stream was `is_blocking` or held back, and little is unsent now."""


class Sender:
    """Sends for all streams of one connection. `wake` is called when there is something to take after nothing was."""

    # State. _out: bytes that may be sent, in order. _ready: queues that may send; _hungry: those that wait for the
    # connection's window. _held_back: those that wait until the client has taken more of all streams. window,
    # initial_window, max_frame: what the client allows. is_paused: the socket is full. progress: any change means that
    # the client reads. pieces: DATA frames sent that no window cut short.
    __slots__ = (
        "_has_spoken", "_held_back", "_hungry", "_least_unsent", "_out", "_ready", "_wake", "initial_window",
        "is_paused", "max_frame", "pieces", "progress", "size", "unread", "window",
    )  # fmt: skip

    def __init__(self, most_unsent: int, wake: Callable[[], None], unread: Unread) -> None:
        self.unread = unread
        self._least_unsent = most_unsent // 2
        self._wake = wake
        self._out: list[bytes | memoryview] = []
        self._ready: collections.deque[SendQueue] = collections.deque()
        self._hungry: collections.OrderedDict[SendQueue, None] = collections.OrderedDict()
        self._held_back: dict[SendQueue, None] = {}
        self._has_spoken = False
        self.window = self.initial_window = frames.FIRST_WINDOW
        self.max_frame = frames.LEAST_MAX_FRAME
        self.is_paused = False
        self.progress = self.pieces = 0
        self.size = 0
        """Bytes ready to be taken. While the socket is full these are mostly acknowledgements."""

    @property
    def is_stuck(self) -> bool:
        """Whether something waits for the client to read, and no stream can do anything about it."""
        return self.is_paused or bool(self._hungry)

    def close(self) -> None:
        """Nobody takes anything any more: whoever was to be woken is let go."""
        self._wake = _wake_nobody

    def put(self, data: bytes) -> None:
        """Send this frame, which needs no window."""
        if not self._out:
            self._wake()
        self._out.append(data)
        self.size += len(data)

    def answer(self, queue: SendQueue, head: bytes, body: bytes, trailers: bytes) -> None:
        """Send a whole answer."""
        size, most = len(body), self.max_frame
        if (
            size > most
            or size > self.window
            or size > queue.window
            or self._ready
            or self._is_full()
            or len(head) >= most
            or len(trailers) > most
        ):
            queue.opening = head
            queue.ending = trailers
            self.add(queue, body)
            return
        if not self._has_spoken:
            head = self._first(head)
        self.window -= size
        self.pieces += 1
        pack, number = frames.pack_head, queue.number
        start = pack(len(head) << 8 | frames.HEADERS, frames.END_HEADERS, number)
        middle = pack(size << 8, 0, number) if size else b""
        end = pack(len(trailers) << 8 | frames.HEADERS, _END_OF_STREAM, number)
        self.put(b"%b%b%b%b%b%b" % (start, head, middle, body, end, trailers))
        queue.sent()

    def add(self, queue: SendQueue, data: bytes) -> None:
        """Send the opening, `data` and the ending, as far as there are any, when possible."""
        if data:
            if not queue.unsent_size:
                queue.unsent = collections.deque()
            queue.unsent.append(data)
            queue.unsent_size += len(data)
            queue.kept += len(data)
            self.unread.add(len(data))
        if not queue.is_queued:
            if not queue.unsent_size and not self._is_full():
                self._send_blocks(queue)
                return
            queue.is_queued = True
            self._ready.append(queue)
        self.pump()

    def pump(self) -> None:
        """Send what may be sent now."""
        relieved = []
        ready, hungry = self._ready, self._hungry
        while not self._is_full():
            if ready:
                queue = ready.popleft()
            elif hungry and self.window > 0:
                queue, _ = hungry.popitem(last=False)
            else:
                break
            if queue.opening is not None:
                self._open(queue)
            if queue.unsent_size and queue.window > 0:
                if self.window <= 0:
                    hungry[queue] = None
                    continue
                self._send_piece(queue)
                if queue.is_blocking and queue.unsent_size <= self._least_unsent:
                    queue.is_blocking = False
                    relieved.append(queue)
                if queue.unsent_size:
                    if hungry:
                        hungry[queue] = None
                    else:
                        ready.append(queue)
                    continue
            queue.is_queued = False
            if not queue.unsent_size:
                self._send_blocks(queue)
        for queue in relieved:
            queue.relieved()
        if self._held_back:
            self._relieve()

    def grant(self, increment: int) -> None:
        """Widen the connection's window."""
        self.window += increment
        if self._hungry:
            self.pump()

    def widen(self, queue: SendQueue, increment: int) -> None:
        """Widen the window of one stream, or narrow it."""
        queue.window += increment
        if queue.unsent_size and queue.window > 0 and not queue.is_queued:
            queue.is_queued = True
            self._ready.append(queue)
            self.pump()

    def forget(self, queue: SendQueue) -> None:
        """The queue was dropped, or is done."""
        if queue.kept:
            self.unread.resize(self.unread.size - queue.kept)
            queue.kept = 0
        if queue.is_queued:
            self._hungry.pop(queue, None)
        if self._held_back:
            self._held_back.pop(queue, None)
            self._relieve()

    def holds_back(self, queue: SendQueue) -> bool:
        """Whether the stream should bring no more until it is `relieved`: too much waits for the client, on whichever
        of its streams."""
        if self.unread.is_much:
            self._held_back[queue] = None
        else:
            self._held_back.pop(queue, None)
        return self.unread.is_much

    def is_held_back(self, queue: SendQueue) -> bool:
        """Whether the stream waits for that."""
        return queue in self._held_back

    def take(self) -> bytes:
        """What the socket gets next; empty if nothing may be sent."""
        self.pump()
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self.size = 0
        self.progress += 1
        return data

    def _relieve(self) -> None:
        if self.unread.is_little_again:
            relieved, self._held_back = self._held_back, {}
            for queue in relieved:
                queue.waiting_since = None
                queue.relieved()

    def _is_full(self) -> bool:
        return self.is_paused or self.size >= _BATCH

    def _first(self, block: bytes) -> bytes:
        self._has_spoken = True
        return headers.NO_TABLE + block

    def _open(self, queue: SendQueue) -> None:
        self._put_block(queue.number, queue.opening or b"", 0)
        queue.opening = None

    def _send_blocks(self, queue: SendQueue) -> None:
        """Send the blocks, which need no window, as all data is sent."""
        if queue.opening is not None:
            self._open(queue)
        if queue.ending is not None:
            self._put_block(queue.number, queue.ending, frames.END_STREAM)
            queue.ending = None
            queue.sent()

    def _put_block(self, number: int, block: bytes, flags: int) -> None:
        if not self._has_spoken:
            block = self._first(block)
        self.put(frames.headers(number, block, flags, self.max_frame))

    def _send_piece(self, queue: SendQueue) -> None:
        unsent = queue.unsent
        piece = unsent.popleft()
        room = min(queue.window, self.window, self.max_frame)
        if len(piece) > room:
            piece = memoryview(piece)
            unsent.appendleft(piece[room:])
            piece = piece[:room]
            self.pieces += room == self.max_frame
        else:
            self.pieces += 1
            # All of a piece counts as kept until the last of it is sent.
            whole = len(cast(bytes, piece.obj)) if isinstance(piece, memoryview) else len(piece)
            queue.kept -= whole
            self.unread.resize(self.unread.size - whole)
        size = len(piece)
        queue.window -= size
        queue.unsent_size -= size
        queue.taken += size
        self.window -= size
        self.put(frames.pack_head(size << 8 | frames.DATA, 0, queue.number))
        self._out.append(piece)
        self.size += size


def _wake_nobody() -> None: ...
