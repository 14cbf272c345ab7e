"""An HTTP/2 connection without its socket: bytes in, calls to handlers, bytes out (RFC 9113).

Nothing that a client sends raises here. What breaks one stream ends that stream. What leaves the connection's state
unknown, or is hostile, ends the connection with GOAWAY, and every handler is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

from carpool.scheduling import ledger
from carpool_sidecar.server.http2 import frames, headers, limits, send_queue, server_stream

_MOST_UNREAD: Final = 1024 * 1024
"""Bytes of acknowledgements that may wait for a client which does not read."""

_WORK_A_TURN: Final = 256
"""Units of work that a connection may do before the others get their turn."""

_STREAM_WORK: Final = 8
_BLOCK_SHIFT: Final = 3  # one more unit for so many bytes, as a power of two; likewise below
_FIELDS_SHIFT: Final = 8
_BODY_SHIFT: Final = 8

_LEAST_DATA: Final = 5
"""Bytes of the shortest gRPC message. DATA with fewer bytes that does not end its stream brings next to nothing."""

_LARGE_FRAME: Final = 16_000
"""Bytes of DATA that tell of a large body: clients then fill frames of 16,384 bytes."""

_COSTLY_BLOCK_SHIFT: Final = 8
"""Header blocks of 2 to this many bytes and more count as idle frames, one for so many bytes."""

_MOST_ENDED: Final = 100
"""Streams that ended in the ordinary way and are remembered, so that HEADERS for them get the right error."""

_FRAMES_A_STREAM: Final = 8
_FRAMES_A_PIECE: Final = 4
"""Idle frames (see `limits.Limits`) that a client earns. For each DATA frame that it gets, a client may send two
WINDOW_UPDATEs and a PING; for a stream, a PRIORITY or two, a late RST_STREAM and what ends an empty body."""

_MOST_SETTINGS: Final = 100
"""SETTINGS in a row: each goes through all open streams."""

_IDLE_INTERVAL: Final = 0.01
_RESET_INTERVAL: Final = 0.001
_SETTINGS_INTERVAL: Final = 0.05
"""Seconds until a client may send one more of each."""

_GOODBYE: Final = b"farewell"
"""Payload of the PING whose answer says that the client knows that the server is leaving."""

_NUMBERS: Final = itertools.count()


class Connection:
    """One client. `wake` asks for a call of `take`, `report` gets what handlers raise, `clock` tells seconds."""

    # State. streams: those not closed on both sides. _ended: streams that ended lately; _broken: those that this side
    # broke off, whose client may not yet know, so that what comes for them is no error. last: the highest stream that
    # the client opened; _cutoff: the highest that it may open. _opened: streams that got a handler. _incoming: the
    # connection's window for DATA. _arrived: frames for this turn and later ones. _is_unruly: too many streams came to
    # nothing. is_broken: the client is gone or broke a rule, and the handlers left have to be told.
    def __init__(
        self,
        service: server_stream.Service,
        chosen: limits.Limits,
        wake: Callable[[], None],
        report: Callable[[Exception], None],
        clock: Callable[[], float],
        memory: ledger.Ledger,
    ) -> None:
        self.number = next(_NUMBERS)
        self.sender = send_queue.Sender(chosen.most_unsent, wake, send_queue.Unread(memory, chosen.slowest_reader))
        self.call_failed = report
        self._memory = memory
        self._service = service
        self._limits = chosen
        self._stream_window = max(chosen.stream_window, frames.FIRST_WINDOW)
        self._reader = frames.FrameReader(chosen.max_frame, chosen.max_header_bytes)
        self._decoder = headers.Decoder(chosen.max_header_bytes)
        self._incoming = limits.ReceiveWindow(max(chosen.connection_window, frames.FIRST_WINDOW))
        self._resets = limits.TokenBucket(chosen.resets, _RESET_INTERVAL, clock)
        self._idle = limits.TokenBucket(chosen.idle_frames, _IDLE_INTERVAL, clock)
        self._settings = limits.TokenBucket(_MOST_SETTINGS, _SETTINGS_INTERVAL, clock)
        self.streams: dict[int, server_stream.ServerStream] = {}
        self._ended: dict[int, None] = {}
        self._broken: dict[int, None] = {}
        self.last = self._opened = 0
        self._cutoff = frames.STREAM_MASK
        self._arrived: Iterator[tuple[int, int, int, bytes]] = iter(())
        self._is_unruly = self.is_broken = self.is_leaving = self.is_done = False
        self.work = 0
        """What the latest turn has cost, in units of 4 microseconds: 1 for a frame, and more where frames take more."""
        self.has_more = False
        """Whether there is work for another turn: call `go_on` for that, and do not call `feed` before."""
        self._greet()

    # --- for the socket's side ---------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether the client has said that it speaks HTTP/2."""
        return self._reader.has_begun

    def feed(self, data: bytes) -> None:
        """The client has sent this; `go_on` handles it."""
        if not self.is_done:
            self._arrived = self._reader.read(data)
            self.has_more = True

    def go_on(self) -> None:
        """Take a turn with what was received."""
        self.work, self.has_more = 0, False
        if self.is_broken:
            self._clear_away()
            return
        try:
            self._check_ruly()
            for kind, flags, number, payload in self._arrived:
                if self.is_done:
                    return
                self.work += 1
                try:
                    if kind == frames.DATA:
                        self._on_data(flags, number, payload)
                    elif kind == frames.HEADERS:
                        self._on_headers(flags, number, payload)
                    else:
                        self._on_rare(kind, flags, number, payload)
                except frames.Http2StreamError as flaw:
                    self._break(number, flaw)
                if self.work >= _WORK_A_TURN:
                    self._check_ruly()
                    self.has_more = True
                    break
            if self.sender.is_paused and self.sender.size > _MOST_UNREAD:
                raise frames.Http2ConnectionError(frames.Code.ENHANCE_YOUR_CALM, "too much is left unread")
        except frames.Http2ConnectionError as error:
            self._fail(error)

    def take(self) -> bytes:
        """Bytes to send now, possibly none."""
        return self.sender.take()

    def lost(self) -> None:
        """The connection no longer exists."""
        self.is_done = self.is_broken = True
        self._arrived = iter(())
        self.sender.close()
        self._clear_away()

    def leave(self) -> None:
        """Ask the client to open no more streams; those that it opens until it knows are still served.

        One that has said nothing yet may have sent its first request already.
        """
        if not self.is_leaving:
            self.is_leaving = True
            if not self.is_done:
                self.sender.put(frames.goaway(frames.STREAM_MASK, frames.Code.NO_ERROR))
                self.sender.put(frames.frame(frames.PING, 0, 0, _GOODBYE))

    @property
    def is_closed_to_new_streams(self) -> bool:
        """Whether the server ignores streams that the client opens from here on."""
        return self.is_done or self._cutoff != frames.STREAM_MASK

    def close_to_new_streams(self) -> None:
        """The client knows that the server is leaving, or had time enough: ignore new streams from here on."""
        if not self.is_closed_to_new_streams:
            self._cutoff = self.last
            self.sender.put(frames.goaway(self.last, frames.Code.NO_ERROR))
            self._check_done()

    def cut_slow(self, now: float, patience: float) -> None:
        """Break off complete answers that the client takes too slowly, and incomplete ones if memory is short.

        `patience` is the time in seconds in which the client may take nothing. While there is memory, a client may read
        a stream of messages as slowly as it likes.
        """
        unread = self.sender.unread
        for each in list(self.streams.values()):
            if not each.unsent_size and not self.sender.is_held_back(each):
                each.waiting_since = None
            elif each.waiting_since is None:
                each.waiting_since, each.taken = now, 0
            elif not each.unsent_size:
                if unread.is_stopped(now - each.waiting_since, patience):
                    each.break_off(frames.Code.CANCEL)
            elif (each.is_over or unread.is_memory_short) and unread.is_slow(
                now - each.waiting_since, each.taken, patience
            ):
                each.break_off(frames.Code.CANCEL)

    # --- for streams (see `server_stream.Connection`) ------------------------------------------------------------

    def finished(self, stream: server_stream.ServerStream) -> None:
        """The answer is sent."""
        if not stream.has_ended:
            self._count_reset()
            self.sender.put(frames.rst_stream(stream.number, frames.Code.NO_ERROR))
        self._forget(stream, is_ours=not stream.has_ended)

    def broke_off(self, stream: server_stream.ServerStream, code: int) -> None:
        """Our side ends the stream with RST_STREAM."""
        stream.drop()
        self.sender.put(frames.rst_stream(stream.number, code))
        self._forget(stream, is_ours=True)

    def returned(self, stream: server_stream.ServerStream, count: int) -> None:
        """The handler has consumed `count` bytes of the body."""
        if not stream.has_ended and stream.incoming is not None and (grant := stream.incoming.give_back(count)):
            self.sender.put(frames.window_update(stream.number, grant))

    # --- beginnings and ends -----------------------------------------------------------------------------------

    def _greet(self) -> None:
        chosen = self._limits
        settings = {
            frames.Setting.MAX_CONCURRENT_STREAMS: chosen.max_streams,
            frames.Setting.INITIAL_WINDOW_SIZE: self._stream_window,
            frames.Setting.MAX_FRAME_SIZE: chosen.max_frame,
            frames.Setting.MAX_HEADER_LIST_SIZE: chosen.max_header_bytes,
        }
        self.sender.put(frames.settings(settings))
        if chosen.connection_window > frames.FIRST_WINDOW:
            self.sender.put(frames.window_update(0, chosen.connection_window - frames.FIRST_WINDOW))

    def _fail(self, error: frames.Http2ConnectionError) -> None:
        if not self.is_done:
            self.sender.put(frames.goaway(min(self.last, self._cutoff), error.code, error.reason))
            self.lost()

    def _clear_away(self) -> None:
        """Tell some of the handlers that their streams are over."""
        for number in list(itertools.islice(self.streams, _WORK_A_TURN // _STREAM_WORK)):
            self.work += _STREAM_WORK
            if gone := self.streams.pop(number, None):
                gone.cancel()
                self.sender.forget(gone)
        self.has_more = bool(self.streams)

    def _break(self, number: int, error: frames.Http2StreamError) -> None:
        """End a stream because of what its client did."""
        self._count_reset()
        self.sender.put(frames.rst_stream(number, error.code))
        broken = self.streams.get(number)
        if broken is None:
            self._remember(number, is_ours=True)
        else:
            broken.cancel()
            self._forget(broken, is_ours=True)

    def _forget(self, gone: server_stream.ServerStream, *, is_ours: bool) -> None:
        if self.streams.pop(gone.number, None) is None:
            return
        gone.held = 0
        self.sender.forget(gone)
        self._remember(gone.number, is_ours=is_ours)
        if self._cutoff != frames.STREAM_MASK:
            self._check_done()

    def _remember(self, number: int, *, is_ours: bool) -> None:
        gone, most = (self._broken, 2 * self._limits.max_streams) if is_ours else (self._ended, _MOST_ENDED)
        gone[number] = None
        if len(gone) > most:
            del gone[next(iter(gone))]

    def _check_done(self) -> None:
        if self._cutoff != frames.STREAM_MASK and not self.streams:
            self.is_done = True

    # --- what a client may do only so often ----------------------------------------------------------------------

    def _count_reset(self) -> None:
        """A stream ends early. Handlers can cause this at any time, so `_check_ruly` draws the consequence, at the end
        of this turn or the beginning of the next."""
        if not self._resets.take():
            self._is_unruly = True
            self.work += _WORK_A_TURN

    def _check_ruly(self) -> None:
        if self._is_unruly:
            raise frames.Http2ConnectionError(frames.Code.ENHANCE_YOUR_CALM, "too many streams came to nothing")

    def _count_idle(self, count: int = 1) -> None:
        """A frame brings nothing of a request, or it costs as much as `count` such frames."""
        earned = _FRAMES_A_STREAM * self._opened + _FRAMES_A_PIECE * self.sender.pieces
        if not self._idle.take(count, earned):
            raise frames.Http2ConnectionError(frames.Code.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    # --- frames of requests ------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, number: int, block: bytes) -> None:
        self.work += _STREAM_WORK + (len(block) >> _BLOCK_SHIFT)
        produced = self._decoder.produced
        try:
            if len(block) >> _COSTLY_BLOCK_SHIFT:
                self._count_idle(len(block) >> _COSTLY_BLOCK_SHIFT)
            if number <= self.last:
                self._on_trailers(flags, number, block)
            else:
                self._on_request(flags, number, block)
        finally:
            self.work += (self._decoder.produced - produced) >> _FIELDS_SHIFT

    def _on_request(self, flags: int, number: int, block: bytes) -> None:
        if not number & 1:
            raise _protocol_error(f"stream {number} is not a client's")
        self.last = number
        if number > self._cutoff:
            self._decoder.skip(block)
            self._count_idle()
            return
        head = self._decoder.request(block)
        if len(self.streams) >= self._limits.max_streams:
            raise frames.Http2StreamError(frames.Code.REFUSED_STREAM, "too many streams at once")
        has_ended = bool(flags & frames.END_STREAM)
        if has_ended and head.content_length:
            raise frames.Http2StreamError(frames.Code.PROTOCOL_ERROR, "content-length without a body")
        opened = server_stream.ServerStream(self, number, self.sender.initial_window, self._limits.most_unsent)
        opened.missing = head.content_length
        opened.has_ended = has_ended
        self.streams[number] = opened
        self._opened += 1
        opened.begin(self._service, head)
        if has_ended:
            opened.end()

    def _on_trailers(self, flags: int, number: int, block: bytes) -> None:
        found = self.streams.get(number)
        if found is None:
            self._decoder.skip(block)
            if number not in self._broken and number <= self._cutoff:
                code = frames.Code.STREAM_CLOSED if number in self._ended else frames.Code.PROTOCOL_ERROR
                raise frames.Http2ConnectionError(code, f"HEADERS for stream {number}, which has ended")
            self._count_idle()
            return
        if found.has_ended:
            self._decoder.skip(block)
            raise frames.Http2StreamError(frames.Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        self._decoder.trailers(block)
        if not flags & frames.END_STREAM:
            raise frames.Http2StreamError(frames.Code.PROTOCOL_ERROR, "trailers that do not end their stream")
        self._end(found)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self.work += size >> _BODY_SHIFT
        if size > _LARGE_FRAME and self._memory.on_large is not None:
            self._memory.on_large()
        if not self._incoming.take(size):
            raise frames.Http2ConnectionError(frames.Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        # Now, as a handler that consumes its body slowly must not stop the other streams.
        if grant := self._incoming.give_back(size):
            self.sender.put(frames.window_update(0, grant))
        if size < _LEAST_DATA and not flags & frames.END_STREAM:
            self._count_idle()
        found = self.streams.get(number)
        if found is None:
            self._check_not_idle(number, "DATA")
            if number <= self._cutoff and number not in self._broken:
                raise frames.Http2StreamError(frames.Code.STREAM_CLOSED, "DATA for a stream that has ended")
            return
        found.held += size
        if found.has_ended:
            raise frames.Http2StreamError(frames.Code.STREAM_CLOSED, "DATA after the end of a stream")
        is_last, window = bool(flags & frames.END_STREAM), found.incoming
        if window is None and not is_last:  # most bodies are one frame
            window = found.incoming = limits.ReceiveWindow(self._stream_window)
        if not (size <= self._stream_window if window is None else window.take(size)):
            raise frames.Http2StreamError(frames.Code.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        found.has_ended = is_last
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
            found.consumed(size - len(payload))
            if len(payload) < _LEAST_DATA:
                self._count_idle()
        if found.missing is not None:
            found.missing -= len(payload)
            if found.missing < 0:
                raise frames.Http2StreamError(frames.Code.PROTOCOL_ERROR, "more DATA than content-length says")
        if payload:
            found.take(payload)
        if found.has_ended:
            self._end(found)

    def _end(self, found: server_stream.ServerStream) -> None:
        if found.missing:
            raise frames.Http2StreamError(frames.Code.PROTOCOL_ERROR, "less DATA than content-length says")
        found.end()

    def _on_rst_stream(self, number: int, payload: bytes) -> None:
        frames.read_word(payload, "RST_STREAM")
        self._check_not_idle(number, "RST_STREAM")
        found = self.streams.get(number)
        if found is None:
            self._count_idle()
            return
        found.cancel()
        self._forget(found, is_ours=False)
        self._count_reset()

    def _check_not_idle(self, number: int, name: str) -> None:
        if not number or number > self.last:
            raise _protocol_error(f"{name} for stream {number}, which is idle")

    def _on_rare(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """A frame that is neither DATA nor HEADERS."""
        if kind == frames.WINDOW_UPDATE:
            self._on_window_update(number, payload)
        elif kind == frames.RST_STREAM:
            self._on_rst_stream(number, payload)
        elif kind == frames.PING:
            self._on_ping(flags, number, payload)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == frames.PRIORITY:
            self._on_priority(number, payload)
        elif kind == frames.GOAWAY:
            self._on_goaway(number)
        elif kind == frames.PUSH_PROMISE:
            raise _protocol_error("PUSH_PROMISE from a client")
        else:  # a part of an incomplete header block, or a frame of an unknown type
            self._count_idle()

    # --- frames about the connection, or about streams as such ---------------------------------------------------

    def _on_window_update(self, number: int, payload: bytes) -> None:
        self._count_idle()
        increment = frames.read_word(payload, "WINDOW_UPDATE") & frames.STREAM_MASK
        if not number:
            if flaw := _flaw(self.sender.window, increment):
                raise frames.Http2ConnectionError(flaw, f"WINDOW_UPDATE by {increment}")
            self.sender.grant(increment)
            return
        self._check_not_idle(number, "WINDOW_UPDATE")
        found = self.streams.get(number)
        if found is None:
            return
        if flaw := _flaw(found.window, increment):
            raise frames.Http2StreamError(flaw, f"WINDOW_UPDATE by {increment}")
        self.sender.widen(found, increment)

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise _protocol_error("SETTINGS for a stream")
        if flags & frames.ACK:
            if payload:
                raise frames.Http2ConnectionError(frames.Code.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            self._count_idle()
            return
        if not self._settings.take():
            raise frames.Http2ConnectionError(frames.Code.ENHANCE_YOUR_CALM, "settings change too often")
        self.work += len(payload) >> 3
        # First: a client may apply its new settings to what follows the acknowledgement, and not to what precedes it.
        self.sender.put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        for name, value in dict(frames.read_settings(payload)).items():
            if name == frames.Setting.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif name == frames.Setting.MAX_FRAME_SIZE:
                if not frames.LEAST_MAX_FRAME <= value <= frames.MOST_MAX_FRAME:
                    raise _protocol_error(f"SETTINGS_MAX_FRAME_SIZE of {value}")
                self.sender.max_frame = value
            elif name == frames.Setting.ENABLE_PUSH and value > 1:
                raise _protocol_error(f"SETTINGS_ENABLE_PUSH of {value}")

    def _resize_windows(self, value: int) -> None:
        self.work += len(self.streams)
        change = value - self.sender.initial_window
        widest = max((each.window for each in self.streams.values()), default=0)
        if value > frames.MOST_WINDOW or widest + change > frames.MOST_WINDOW:
            raise frames.Http2ConnectionError(
                frames.Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE of {value}"
            )
        self.sender.initial_window = value
        for each in list(self.streams.values()):
            self.sender.widen(each, change)

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise _protocol_error("PING for a stream")
        if len(payload) != len(_GOODBYE):
            raise frames.Http2ConnectionError(frames.Code.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes, not 8")
        self._count_idle()
        if not flags & frames.ACK:
            self.sender.put(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif self.is_leaving and payload == _GOODBYE:
            self.close_to_new_streams()

    def _on_priority(self, number: int, payload: bytes) -> None:
        if not number:
            raise _protocol_error("PRIORITY for no stream")
        self._count_idle()
        if len(payload) != 5:
            raise frames.Http2StreamError(frames.Code.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes, not 5")
        if frames.priority(payload) == number:
            raise frames.Http2StreamError(frames.Code.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_goaway(self, number: int) -> None:
        if number:
            raise _protocol_error("GOAWAY for a stream")
        self._count_idle()


def _protocol_error(reason: str) -> frames.Http2ConnectionError:
    return frames.Http2ConnectionError(frames.Code.PROTOCOL_ERROR, reason)


def _flaw(window: int, increment: int) -> frames.Code | None:
    if not increment:
        return frames.Code.PROTOCOL_ERROR
    return frames.Code.FLOW_CONTROL_ERROR if window + increment > frames.MOST_WINDOW else None
