"""Streams in masses: ended by the server itself, reset by the client, or never ended at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks.attack import attack, backend, frames, link, target

_PER_WRITE = 500
_MOST_BYTES = 6_000_000
_HIGHEST = 2**31 - 1


def _writes(fields: frames.Fields, rest: bytes, is_reset: bool = False) -> Iterator[bytes]:
    """Stream after stream; `rest` is DATA for each."""
    first, short = frames.indexed(fields)
    block, sent, stream = first, 0, 1
    while sent < _MOST_BYTES:
        parts = []
        for _ in range(_PER_WRITE):
            parts.append(frames.open_stream(stream, block))
            if rest:
                parts.append(frames.frame(frames.DATA, 0, stream, rest))
            if is_reset:
                parts.append(frames.reset(stream))
            stream, block = stream + 2, short
        piece = b"".join(parts)
        sent += len(piece)
        yield piece


def _mass(fields: frames.Fields, rest: bytes = b"", is_reset: bool = False) -> attack.Strike:
    async def run(to: target.Target) -> None:
        async with link.http2(to) as one:
            for piece in _writes(fields, rest, is_reset):
                await one.send(piece)
            await one.linger()

    return attack.again(run, 5)


def _paced(path: str, message: bytes, rate: int) -> attack.Strike:
    """Calls begun and reset, so many in a second."""

    async def run(to: target.Target) -> None:
        first, short = frames.indexed(frames.call(path))
        block, stream, step = first, 1, 0.01
        async with link.http2(to) as one:
            while to.left:
                parts = []
                for _ in range(int(rate * step)):
                    parts += [
                        frames.open_stream(stream, block),
                        frames.data(stream, message),
                        frames.reset(stream),
                    ]
                    stream, block = stream + 2, short
                await one.send(b"".join(parts))
                await asyncio.sleep(step)

    return attack.again(run)


async def _half_open(to: target.Target) -> None:
    block = frames.block(frames.call(backend.INFER))
    async with link.http2(to) as one:
        for stream in range(1, 1801, 2):
            await one.send(frames.open_stream(stream, block) + frames.frame(frames.DATA, 0, stream, b"\0\0\0\0"))
        await one.linger()


async def _slow(to: target.Target) -> None:
    block = frames.block(frames.call(backend.INFER))
    start = frames.message(bytes(1000))[:5]
    async with link.http2(to) as one:
        streams = range(1, 401, 2)
        await one.send(
            b"".join(frames.open_stream(each, block) + frames.data(each, start, flags=0) for each in streams)
        )
        byte = b"".join(frames.frame(frames.DATA, 0, each, b"\0") for each in streams)
        while to.left:
            await one.send(byte)
            await asyncio.sleep(0.05)


async def _idle(to: target.Target) -> None:
    async with link.http2(to) as one:
        await one.linger()


async def _come_and_go(to: target.Target) -> None:
    while to.left:
        async with link.http2(to, reads=False):
            pass


_BAD_FLAG = frames.message(b"", 7)
_KINDS: dict[str, tuple[str, frames.Fields, bytes]] = {
    "flag": ("a message with an invalid flag", frames.call(backend.INFER), _BAD_FLAG),
    "flag-passed": ("the same, passed through", frames.call(backend.HOLD), _BAD_FLAG),
    "method": ("status 405", frames.call(backend.INFER, method=b"GET"), b""),
    "type": ("status 415", frames.call(backend.INFER, content_type=b"text/html"), b""),
    "timeout": ("an invalid grpc-timeout", frames.call(backend.INFER, grpc_timeout=b"1x"), b""),
}
_EMPTY = frames.message(b"")

ATTACKS = (
    *(
        attack.Attack(f"ended-{name}", f"6 MB of streams: {title}", _mass(*rest))
        for name, (title, *rest) in _KINDS.items()
    ),
    *(
        attack.Attack(f"ended-{name}-8", f"8 x 6 MB of streams: {title}", attack.at_once(_mass(*rest), 8))
        for name, (title, *rest) in _KINDS.items()
        if name in ("flag", "method")
    ),
    attack.Attack("rapid-reset", "streams opened and reset", _mass(frames.call(backend.INFER), is_reset=True)),
    attack.Attack(
        "rapid-reset-passed", "the same, passed through", _mass(frames.call(backend.HOLD), _EMPTY, is_reset=True)
    ),
    attack.Attack("paced-resets", "950 whole calls a second, reset", _paced(backend.INFER, _EMPTY, 950)),
    attack.Attack("paced-resets-passed", "the same, passed through", _paced(backend.HOLD, _EMPTY, 950)),
    attack.Attack("half-open", "8 x 900 streams that never end", attack.at_once(_half_open, 8)),
    attack.Attack("slow-bodies", "200 bodies, a byte each 50 ms", _slow),
    attack.Attack("idle", "500 connections that say nothing more", attack.at_once(_idle, 500)),
    attack.Attack("come-and-go", "connections opened and closed, 8 at a time", attack.at_once(_come_and_go, 8)),
)
