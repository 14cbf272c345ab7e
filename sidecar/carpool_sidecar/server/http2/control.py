"""Frames about a connection or about streams as such, which carry nothing of a request."""

from __future__ import annotations

from collections.abc import Callable

from carpool_sidecar.server.http2 import errors, frames, limits, sender, server_stream, token_bucket

_GOODBYE = b"farewell"
"""Payload of the PING whose answer says that the client knows of our leaving."""

_IDLE_INTERVAL = 0.01
_FRAMES_A_STREAM, _FRAMES_A_PIECE = 8, 4
"""Idle frames (see `limits.Limits`) that a client earns. For each DATA frame that it gets a client may send two
WINDOW_UPDATEs and a PING; for a stream a PRIORITY or two, a late RST_STREAM and what ends an empty body."""

_MOST_SETTINGS, _SETTINGS_INTERVAL = 100, 0.05
"""SETTINGS in a row, and seconds until one more: each goes through all open streams."""


class Control:
    """Windows, settings, pings and leaving."""

    # State. exchanges: streams not yet closed on both sides. last: the highest stream the client opened; _cutoff: the
    # highest it may open. _opened: streams that became exchanges. work: see `connection.Connection`.
    def __init__(self, out: sender.Sender, chosen: limits.Limits, clock: Callable[[], float]) -> None:
        self.sender = out
        self._limits = chosen
        self._stream_window = max(chosen.stream_window, frames.FIRST_WINDOW)
        self.exchanges: dict[int, server_stream.Exchange] = {}
        self.last = 0
        self.is_leaving = False
        self.is_done = False
        self._cutoff = frames.STREAM_MASK
        self._opened = self.work = 0
        self._idle = token_bucket.Allowance(chosen.idle_frames, _IDLE_INTERVAL, clock)
        self._settings = token_bucket.Allowance(_MOST_SETTINGS, _SETTINGS_INTERVAL, clock)

    @property
    def is_settled(self) -> bool:
        """Whether no stream is taken that the client opens from here on."""
        return self.is_done or self._cutoff != frames.STREAM_MASK

    def settle(self) -> None:
        """The client has heard of our leaving, or had time enough: new streams are ignored from here on."""
        if self._cutoff == frames.STREAM_MASK and not self.is_done:
            self._cutoff = self.last
            self.sender.put(frames.goaway(self.last, errors.Code.NO_ERROR))
            self._check_done()

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

    def _say_goodbye(self) -> None:
        self.sender.put(frames.goaway(frames.STREAM_MASK, errors.Code.NO_ERROR))
        self.sender.put(frames.frame(frames.PING, 0, 0, _GOODBYE))

    def _check_done(self) -> None:
        if self._cutoff != frames.STREAM_MASK and not self.exchanges:
            self.is_done = True

    def _count_idle(self, count: int = 1) -> None:
        """A frame came that brings nothing of a request, or one that costs as much as so many."""
        earned = _FRAMES_A_STREAM * self._opened + _FRAMES_A_PIECE * self.sender.pieces
        if not self._idle.take(count, earned):
            raise errors.ConnectionFault(errors.Code.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def _check_not_idle(self, number: int, name: str) -> None:
        if not number or number > self.last:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, f"{name} for stream {number}, which is idle")

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        self._count_idle()
        increment = frames.read_word(payload, "WINDOW_UPDATE") & frames.STREAM_MASK
        if not number:
            if flaw := _flaw(self.sender.window, increment):
                raise errors.ConnectionFault(flaw, f"WINDOW_UPDATE by {increment}")
            self.sender.grant(increment)
            return
        self._check_not_idle(number, "WINDOW_UPDATE")
        found = self.exchanges.get(number)
        if found is None:
            return
        if flaw := _flaw(found.window, increment):
            raise errors.StreamFault(flaw, f"WINDOW_UPDATE by {increment}")
        self.sender.widen(found, increment)

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "SETTINGS for a stream")
        if flags & frames.ACK:
            if payload:
                raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            self._count_idle()
            return
        if not self._settings.take():
            raise errors.ConnectionFault(errors.Code.ENHANCE_YOUR_CALM, "settings change too often")
        self.work += len(payload) >> 3
        # First: a client may count what follows the acknowledgement, and nothing before, by its new settings.
        self.sender.put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        for name, value in dict(frames.read_settings(payload)).items():
            self._apply(name, value)

    def _apply(self, name: int, value: int) -> None:
        if name == frames.Setting.INITIAL_WINDOW_SIZE:
            self._resize_windows(value)
        elif name == frames.Setting.MAX_FRAME_SIZE:
            if not frames.LEAST_MAX_FRAME <= value <= frames.MOST_MAX_FRAME:
                raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
            self.sender.max_frame = value
        elif name == frames.Setting.ENABLE_PUSH and value > 1:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH of {value}")

    def _resize_windows(self, value: int) -> None:
        self.work += len(self.exchanges)
        change = value - self.sender.initial_window
        widest = max((each.window for each in self.exchanges.values()), default=0)
        if value > frames.MOST_WINDOW or widest + change > frames.MOST_WINDOW:
            raise errors.ConnectionFault(errors.Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE of {value}")
        self.sender.initial_window = value
        for each in list(self.exchanges.values()):
            self.sender.widen(each, change)

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "PING for a stream")
        if len(payload) != len(_GOODBYE):
            raise errors.ConnectionFault(errors.Code.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes, not 8")
        self._count_idle()
        if not flags & frames.ACK:
            self.sender.put(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif self.is_leaving and payload == _GOODBYE:
            self.settle()

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        if not number:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "PRIORITY for no stream")
        self._count_idle()
        if len(payload) != 5:
            raise errors.StreamFault(errors.Code.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes, not 5")
        if frames.priority(payload) == number:
            raise errors.StreamFault(errors.Code.PROTOCOL_ERROR, "a stream depends on itself")

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise errors.ConnectionFault(errors.Code.PROTOCOL_ERROR, "GOAWAY for a stream")
        self._count_idle()

    def _on_other(self, flags: int, number: int, payload: bytes) -> None:
        """A part of a header block that is not complete, or a frame of an unknown type."""
        self._count_idle()


def _flaw(window: int, increment: int) -> errors.Code | None:
    if not increment:
        return errors.Code.PROTOCOL_ERROR
    return errors.Code.FLOW_CONTROL_ERROR if window + increment > frames.MOST_WINDOW else None
