"""How much one client may ask of the server."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Per connection. Sizes are in bytes, times in seconds."""

    max_streams: int = 1000
    """Streams open at the same time; more are refused, which clients take as "try again"."""

    max_header_bytes: int = 64 * 1024
    """Of a request's header fields, counted as RFC 9113, section 6.5.2 says: 32 bytes for each field on top."""

    max_frame: int = 64 * 1024
    """Payload of a frame; from 16,384 to 16,777,215."""

    stream_window: int = 4 * 1024 * 1024
    """Of a stream's body, what its handler has not consumed yet; at least 65,535, which clients assume at first."""

    connection_window: int = 16 * 1024 * 1024
    """Of all bodies together, what is on its way at once; at least 65,535. It is granted anew as it arrives: a stream
    whose handler consumes nothing stops no other."""

    most_unsent: int = 256 * 1024
    """Of a stream's answer, when `Stream.is_blocked`."""

    resets: int = 4000
    """Streams broken off in a row; one is forgiven each millisecond. More end the connection."""

    idle_frames: int = 2000
    """Frames in a row that bring nothing of a request; one is forgiven every 10 ms. On top of that, a client may send
    some for each stream that it opens and each piece of an answer that it gets: it has to widen windows, and some
    clients measure the way with PINGs. More end the connection."""

    keep_alive: float = 75.0
    """A connection without a stream is closed after this time."""

    handshake: float = 10.0
    """The client's first words have to arrive within this time."""

    patience: float = 30.0
    """A client that reads nothing of what waits for it is cut off after this time."""

    slowest_reader: int = 64 * 1024
    """Bytes a second that a client has to take of an answer that is complete, once `patience` is over."""
