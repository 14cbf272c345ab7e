"""Header fields: many, long, and made of few bytes; and settings that go up and down."""

from __future__ import annotations

import asyncio
import functools

import hpack

from benchmarks.attack import attack, backend, frames, link, target

_PAUSE = 0.003  # between calls, so that it is not the predictor who is slow
_ENTRY = 4000  # bytes: nearly all of the table's 4,096
_DYNAMIC = b"\xbe"  # the newest entry of the table


@functools.cache
def _blocks(count: int, fields: int) -> list[bytes]:
    """Heads of which no two are alike."""
    head = frames.call(backend.INFER, method=b"GET")
    return [
        frames.block(head + tuple((b"x-%d-%d" % (number, each), b"") for each in range(fields)))
        for number in range(count)
    ]


def _many(connections: int, count: int, fields: int) -> attack.Strike:
    async def one_of_many(to: target.Target) -> None:
        async with link.http2(to) as one:
            for number, block in enumerate(_blocks(count, fields)):
                await one.send(_split(2 * number + 1, block))
                await asyncio.sleep(0)
            await one.linger()

    return attack.at_once(one_of_many, connections)


def _split(stream: int, block: bytes, size: int = 16_384) -> bytes:
    """HEADERS, and CONTINUATION where they are too long for one frame."""
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    last = len(parts) - 1
    return b"".join(
        frames.frame(
            frames.CONTINUATION if at else frames.HEADERS,
            (frames.END_HEADERS if at == last else 0) | (0 if at else frames.END_STREAM),
            stream,
            part,
        )
        for at, part in enumerate(parts)
    )


async def _huge(to: target.Target) -> None:
    block = frames.block(frames.call(backend.INFER, (b"x-long", b"x" * 55_000), method=b"GET"))
    async with link.http2(to) as one:
        for stream in range(1, 801, 2):
            await one.send(_split(stream, block))
        await one.linger()


async def _references(to: target.Target) -> None:
    """One entry of the table, said fifteen times in each of many short blocks."""
    entry = bytes(hpack.Encoder().encode(((b"x", b"y" * _ENTRY),), huffman=False))
    head = frames.block(frames.call(backend.INFER, method=b"GET"))
    async with link.http2(to) as one:
        await one.send(frames.open_stream(1, head + entry, frames.END_STREAM))
        short = head + _DYNAMIC * 14
        for first in range(3, 40_000, 1000):
            streams = range(first, first + 1000, 2)
            await one.send(b"".join(frames.open_stream(each, short, frames.END_STREAM) for each in streams))
        await one.linger()


async def _table(to: target.Target) -> None:
    """The table made small and large again in each block, with a new entry each time."""
    head = frames.block(frames.call(backend.INFER, method=b"GET"))
    sizes = b"\x20" + b"\x3f\xe1\x1f"  # to 0, then to 4,096
    entry = b"\x40\x01x" + b"\x7f\x81\x1d" + b"y" * 3840  # 127 + 3713 = 3840
    async with link.http2(to) as one:
        for stream in range(1, 8001, 2):
            await one.send(frames.open_stream(stream, sizes + head + entry, frames.END_STREAM))
        await one.linger()


async def _churn(to: target.Target) -> None:
    """Windows up and down while hundreds of answers wait for them, just below any limit for SETTINGS."""
    block = frames.block(frames.call(backend.BLOB))
    ask = frames.message((100_000).to_bytes(4))
    async with link.http2(to, initial_window=0) as one:
        for stream in range(1, 1801, 2):
            await one.send(frames.open_stream(stream, block) + frames.data(stream, ask))
            await asyncio.sleep(_PAUSE)
        is_up = False
        while to.left:
            is_up = not is_up
            await one.send(frames.settings(initial_window=1 if is_up else 0))
            await asyncio.sleep(0.06)


ATTACKS = (
    attack.Attack("header-fields", "100 x 64 blocks of 1,300 fields", _many(100, 64, 1300)),
    attack.Attack("header-huge", "a field of 55 kB, 400 times", _huge),
    attack.Attack("header-references", "fields of 4 kB, one byte each", attack.again(_references, 5)),
    attack.Attack("header-table", "HPACK's table up and down", attack.again(_table, 5)),
    attack.Attack("settings-churn", "windows up and down under 900 answers", attack.again(_churn, 5), seconds=6),
)
