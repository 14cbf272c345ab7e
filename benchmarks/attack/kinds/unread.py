"""Answers that nobody reads, or only a byte at a time."""

from __future__ import annotations

import asyncio

from benchmarks.attack import attack, backend, frames, link, target
from benchmarks.attack.kinds import calls

_ANSWER = 3_000_000
_CALLS = 150
_STREAMS = range(1, 2 * _CALLS, 2)
_SMALL_BUFFER = 4096
_PAUSE = 0.06
_LONGER_THAN_PATIENCE = 40.0


async def _ask(one: link.Link) -> None:
    """For all answers, not faster than the predictor can give them: its slowness is not what is looked at."""
    block = frames.block(frames.call(backend.BLOB))
    ask = frames.message(_ANSWER.to_bytes(4))
    for each in _STREAMS:
        await one.send(frames.open_stream(each, block) + frames.data(each, ask))
        await asyncio.sleep(_PAUSE)


async def _closed(to: target.Target) -> None:
    async with link.http2(to, initial_window=0) as one:
        await _ask(one)
        await one.linger()


async def _batched(to: target.Target) -> None:
    block = frames.block(frames.call(backend.INFER))
    body = frames.message(calls.infer_of(_ANSWER))
    async with link.http2(to, initial_window=0) as one:
        for stream in _STREAMS:
            await one.send(frames.open_stream(stream, block) + frames.data(stream, body))
            await asyncio.sleep(_PAUSE)
        await one.linger()


async def _tiny(to: target.Target) -> None:
    grants = b"".join(frames.window_update(each, 1) for each in _STREAMS)
    async with link.http2(to, initial_window=0) as one:
        await _ask(one)
        while to.left:
            await one.send(grants)
            await asyncio.sleep(0.05)


async def _deaf(to: target.Target) -> None:
    """The windows are wide, but nothing is taken off the socket."""
    async with link.http2(to, reads=False, receive_buffer=_SMALL_BUFFER, initial_window=frames.WIDEST) as one:
        await one.send(frames.window_update(0, 1_000_000_000))
        await _ask(one)
        await asyncio.sleep(to.left)


async def _dripping(to: target.Target) -> None:
    async with link.http2(to, reads=False, receive_buffer=_SMALL_BUFFER, initial_window=frames.WIDEST) as one:
        await one.send(frames.window_update(0, 1_000_000_000))
        await _ask(one)
        while to.left and await one.read_some(1):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


ATTACKS = (
    attack.Attack("unread", "150 answers of 3 MB, window 0", _closed, seconds=_LONGER_THAN_PATIENCE),
    attack.Attack("unread-batched", "150 batched answers of 3 MB, window 0", _batched, attack.CARPOOL, seconds=12),
    attack.Attack("unread-tiny", "150 answers of 3 MB, a byte of window each 50 ms", _tiny, seconds=12),
    attack.Attack("unread-socket", "150 answers of 3 MB, socket never read", _deaf, seconds=12),
    attack.Attack("unread-drip", "150 answers of 3 MB, read byte by byte", _dripping, seconds=12),
)
