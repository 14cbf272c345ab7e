"""An HTTP/2 connection without its socket: bytes in, calls to handlers, bytes out (RFC 9113).

Nothing a client sends raises here. What breaks one stream ends that stream; what leaves the connection's state
unknown, or is hostile, ends the connection with GOAWAY, and every handler hears of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from carpool_sidecar.server.http2 import (
    control,
    errors,
    frames,
    headers,
    heads,
    limits,
    reader,
    sender,
    server_stream,
    streams,
    token_bucket,
    unread,
)
from carpool_sidecar.server.http2 import flow_control as flow

_MOST_UNREAD = 1024 * 1024
"""Bytes of acknowledgements that may wait for a client which does not read."""

_RESET_INTERVAL = 0.001

_WORK_A_TURN = 256
"""What a connection may cost before the others get their turn."""

_STREAM_WORK = 8
_BLOCK_SHIFT, _FIELDS_SHIFT, _BODY_SHIFT = 3, 8, 8  # one more for so many bytes, as a power of two

_LEAST_DATA = 5
"""Bytes of the shortest gRPC message; DATA that has less and does not end its stream brings next to nothing."""

_LARGE_FRAME = 16_000
"""Bytes of DATA that tell of a large body: clients fill frames of 16,384 then."""

_COSTLY_BLOCK_SHIFT = 8
"""Header blocks of 2 to this many bytes and more count as idle frames, one for so many bytes."""

_MOST_ENDED = 100
"""Streams that ended in the ordinary way and are remembered, so that HEADERS for them get the right error."""

_NUMBERS = itertools.count()


class Connection(control.Control):
    """One client. `wake` asks for a call of `take`; `report` gets what handlers raise; `clock` tells seconds.

    `work` is what the latest turn has cost, in units of a few microseconds: one for a frame, and more for those that
    take more.
    """

    # State beside the base's. _ended: streams gone lately; _broken: those that we broke off, whose client may not yet
    # know, so that what comes for them is no error. _incoming: the connection's window for DATA. _arrived: frames for
    # this turn and later ones. _is_unruly: too many streams came to nothing. is_broken: the client is gone or broke a
    # rule, and whoever still has a stream must hear that it is over.
    def __init__(
        self,
        door: streams.Door,
        chosen: limits.Limits,
        wake: Callable[[], None],
        report: Callable[[Exception], None],
        clock: Callable[[], float],
        memory: unread.Memory,
    ) -> None:
        kept = unread.Unread(memory, chosen.slowest_reader)
        super().__init__(sender.Sender(chosen.most_unsent, wake, kept), chosen, clock)
        self.number = next(_NUMBERS)
        self._memory = memory
        self._door = door
        self.call_failed = report
        self._ended: dict[int, None] = {}
        self._broken: dict[int, None] = {}
        self._decoder = headers.Decoder(chosen.max_header_bytes)
        self._incoming = flow.Incoming(max(chosen.connection_window, frames.FIRST_WINDOW))
        self._resets = token_bucket.Allowance(chosen.resets, _RESET_INTERVAL, clock)
        self._reader = reader.Reader(chosen.max_frame, chosen.max_header_bytes)
        self._takers = (
            self._on_data, self._on_headers, self._on_priority, self._on_rst_stream, self._on_settings,
            self._on_push_promise, self._on_ping, self._on_goaway, self._on_window_update,
        )  # fmt: skip
        self._arrived: Iterator[tuple[int, int, int, bytes]] = iter(())
        self._is_unruly = self.is_broken = False
        self.has_more = False
        """There is work for another turn: call `go_on` for that, and `feed` not before."""
        self._greet()

    # --- for the socket's side ---------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """The client has said that it speaks HTTP/2."""
        return self._reader.has_begun

    def feed(self, data: bytes) -> None:
        """The client has sent this; `go_on` deals with it."""
        if not self.is_done:
            self._arrived = self._reader.read(data)
            self.has_more = True

    def go_on(self) -> None:
        """A turn with what was received."""
        self.work, self.has_more = 0, False
        if self.is_broken:
            self._clear_away()
            return
        takers = self._takers
        try:
            self._check_ruly()
            for kind, flags, number, payload in self._arrived:
                if self.is_done:
                    return
                self.work += 1
                try:
                    (takers[kind] if kind < frames.CONTINUATION else self._on_other)(flags, number, payload)
                except errors.StreamFault as fault:
                    self._break(number, fault)
                if self.work >= _WORK_A_TURN:
                    self._check_ruly()
                    self.has_more = True
                    break
            if self.sender.is_paused and self.sender.size > _MOST_UNREAD:
                raise errors.ConnectionFault(errors.Code.ENHANCE_YOUR_CALM, "too much is left unread")
        except errors.ConnectionFault as fault:
            self._fail(fault)

    def take(self) -> bytes:
        """Bytes to send now, possibly none."""
        return self.sender.take()

    def lost(self) -> None:
        """There is no connection any more."""
        self.is_done = self.is_broken = True
        self._arrived = iter(())
        self._clear_away()

    def _clear_away(self) -> None:
        """Tell some handlers that their streams are over."""
        for number in list(itertools.islice(self.exchanges, _WORK_A_TURN // _STREAM_WORK)):
            self.work += _STREAM_WORK
            if gone := self.exchanges.pop(number, None):
                gone.cancel()
                self.sender.forget(gone)
        self.has_more = bool(self.exchanges)

    def leave(self) -> None:
        """Let the client open no more streams; what it has sent until it hears of that is still served."""
        if not self.is_leaving:
            self.is_leaving = True
            if self.has_begun and not self.is_done:
                self._say_goodbye()
            self.is_done = self.is_done or not self.has_begun

    def cut_slow(self, now: float, patience: float) -> None:
        """Break off complete answers that the client takes too slowly, and others if memory is short.

        `patience` are the seconds in which it may take nothing. Whoever reads a stream of messages may take its time.
        """
        kept = self.sender.unread
        for each in list(self.exchanges.values()):
            if not each.unsent_size and not self.sender.is_held_back(each):
                each.waiting_since = None
            elif each.waiting_since is None:
                each.waiting_since, each.taken = now, 0
            elif not each.unsent_size:
                if kept.is_stopped(now - each.waiting_since, patience):
                    each.break_off(errors.Code.CANCEL)
            elif each.is_over or kept.is_memory_short:
                seconds = now - each.waiting_since
                if kept.is_slow(seconds, each.taken, patience):
                    each.break_off(errors.Code.CANCEL)

    # --- for exchanges -----------------------------------------------------------------------------------------

    def finished(self, ended: server_stream.Exchange) -> None:
        """See `exchange.Owner`."""
        if not ended.has_ended:
            self._count_reset()
            self.sender.put(frames.rst_stream(ended.number, errors.Code.NO_ERROR))
        self._forget(ended, is_ours=not ended.has_ended)

    def broke_off(self, broken: server_stream.Exchange, code: int) -> None:
        """See `exchange.Owner`."""
        broken.drop()
        self.sender.put(frames.rst_stream(broken.number, code))
        self._forget(broken, is_ours=True)

    def returned(self, owner: server_stream.Exchange, count: int) -> None:
        """See `exchange.Owner`."""
        if not owner.has_ended and owner.incoming is not None:
            grant = owner.incoming.give_back(count)
            if grant:
                self.sender.put(frames.window_update(owner.number, grant))

    # --- beginnings and ends -----------------------------------------------------------------------------------

    def _fail(self, fault: errors.ConnectionFault) -> None:
        if not self.is_done:
            self.sender.put(frames.goaway(min(self.last, self._cutoff), fault.code, fault.reason))
            self.lost()

    def _break(self, number: int, fault: errors.StreamFault) -> None:
        """End a stream because of what its client did."""
        self._count_reset()
        self.sender.put(frames.rst_stream(number, fault.code))
        broken = self.exchanges.get(number)
        if broken is None:
            self._remember(number, is_ours=True)
        else:
            broken.cancel()
            self._forget(broken, is_ours=True)

    def _count_reset(self) -> None:
        """A stream ends before its time. Handlers cause this at any time, so the consequence waits for this turn's end
        or the next one's beginning."""
        if not self._resets.take():
            self._is_unruly = True
            self.work += _WORK_A_TURN

    def _check_ruly(self) -> None:
        if self._is_unruly:
            raise errors.ConnectionFault(errors.Code.ENHANCE_YOUR_CALM, "too many streams came to nothing")

    def _forget(self, gone: server_stream.Exchange, *, is_ours: bool) -> None:
        if self.exchanges.pop(gone.number, None) is None:
            return
        gone.held = 0
        if gone.is_queued or gone.kept or self.sender.is_held_back(gone):
            self.sender.forget(gone)
        self._remember(gone.number, is_ours=is_ours)
        self._check_done()

    def _remember(self, number: int, *, is_ours: bool) -> None:
        gone, most = (self._broken, 2 * self._limits.max_streams) if is_ours else (self._ended, _MOST_ENDED)
        gone[number] = None
        if len(gone) > most:
            del gone[next(iter(gone))]

    def _return(self, count: int) -> None:
        grant = self._incoming.give_back(count)
        if grant:
            self.sender.put(frames.window_update(0, grant))

    # --- requests ----------------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, number: int, block: bytes) -> None:
        self.work += _STREAM_WORK + (len(block) >> _BLOCK_SHIFT)
        produced = self._decoder.produced
        try:
            self._on_block(flags, number, block)
        finally:
            self.work += (self._decoder.produced - produced) >> _FIELDS_SHIFT

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        if len(block) >> _COSTLY_BLOCK_SHIFT:
            self._count_idle(len(block) >> _COSTLY_BLOCK_SHIFT)
        if number <= self.last:
            self._on_trailers(flags, number, block)
            return
        if not number & 1:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, f"stream {number} is not a client's")
        self.last = number
        if number > self._cutoff:
            self._decoder.skip(block)
            self._count_idle()
            return
        request = self._decoder.request(block)
        if len(self.exchanges) >= self._limits.max_streams:
            raise errors.StreamFault(errors.Code.REFUSED_STREAM, "too many streams at once")
        self._open(number, request, bool(flags & frames.END_STREAM))

    def _open(self, number: int, request: heads.Request, has_ended: bool) -> None:
        opened = server_stream.Exchange(self, number, self.sender.initial_window, self._limits.most_unsent)
        opened.missing = request.length
        opened.has_ended = has_ended
        if has_ended and request.length:
            raise errors.StreamFault(errors.Code.PROTOCOL_ERROR, "content-length without a body")
        if not has_ended:
            opened.incoming = flow.Incoming(self._stream_window)
        self.exchanges[number] = opened
        self._opened += 1
        opened.begin(self._door, request.head)
        if has_ended:
            self._end(opened)

    def _on_trailers(self, flags: int, number: int, block: bytes) -> None:
        found = self.exchanges.get(number)
        if found is None:
            self._decoder.skip(block)
            if number not in self._broken and number <= self._cutoff:
                code = errors.Code.STREAM_CLOSED if number in self._ended else errors.Code.PROTOCOL_ERROR
                raise errors.ConnectionFault(code, f"HEADERS for stream {number}, which has ended")
            self._count_idle()
            return
        if found.has_ended:
            self._decoder.skip(block)
            raise errors.StreamFault(errors.Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        self._decoder.trailers(block)
        if not flags & frames.END_STREAM:
            raise errors.StreamFault(errors.Code.PROTOCOL_ERROR, "trailers that do not end their stream")
        self._end(found)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self.work += size >> _BODY_SHIFT
        if size > _LARGE_FRAME:
            self._memory.on_large_body()
        if not self._incoming.take(size):
            raise errors.ConnectionFault(errors.Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._return(size)  # now: what one handler is slow to consume must not stop the other streams
        if size < _LEAST_DATA and not flags & frames.END_STREAM:
            self._count_idle()
        found = self.exchanges.get(number)
        if found is None:
            self._discard(number)
            return
        found.held += size
        if found.has_ended:
            raise errors.StreamFault(errors.Code.STREAM_CLOSED, "DATA after the end of a stream")
        if found.incoming is not None and not found.incoming.take(size):
            raise errors.StreamFault(errors.Code.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        found.has_ended = bool(flags & frames.END_STREAM)
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
            found.consumed(size - len(payload))
            if len(payload) < _LEAST_DATA:
                self._count_idle()
        if found.missing is not None:
            found.missing -= len(payload)
            if found.missing < 0:
                raise errors.StreamFault(errors.Code.PROTOCOL_ERROR, "more DATA than content-length says")
        if payload:
            found.take(payload)
        if found.has_ended:
            self._end(found)

    def _end(self, found: server_stream.Exchange) -> None:
        if found.missing:
            raise errors.StreamFault(errors.Code.PROTOCOL_ERROR, "less DATA than content-length says")
        found.end()

    def _discard(self, number: int) -> None:
        """DATA for a stream that is not open."""
        self._check_not_idle(number, "DATA")
        if number <= self._cutoff and number not in self._broken:
            raise errors.StreamFault(errors.Code.STREAM_CLOSED, "DATA for a stream that has ended")

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        frames.read_word(payload, "RST_STREAM")
        self._check_not_idle(number, "RST_STREAM")
        found = self.exchanges.get(number)
        if found is None:
            self._count_idle()
            return
        found.cancel()
        self._forget(found, is_ours=False)
        self._count_reset()
