"""Nonsense of all kinds, from a seed: whatever raises an exception that nobody thought of."""

from __future__ import annotations

import asyncio
import random

from benchmarks.attack import attack, backend, frames, link, target

_CONNECTIONS = 200
_FRAMES = 60
_PATHS = (backend.INFER, backend.HOLD, backend.BLOB, "/", "", "*", "no-slash", "/\xff")


def _frame(chance: random.Random) -> bytes:
    kind = chance.randrange(11)
    stream = chance.choice((0, 1, 2, 3, 5, 7, 101, frames.WIDEST))
    size = chance.choice((0, 1, 4, 5, 8, 100, 5000))
    return frames.frame(kind, chance.randrange(256), stream, chance.randbytes(size))


def _call(chance: random.Random, stream: int) -> bytes:
    path = chance.choice(_PATHS)
    fields = {
        "method": chance.choice((b"POST", b"GET", b"", b"PRI")),
        "grpc_timeout": chance.choice((b"1S", b"", b"9" * 20)),
    }
    block = frames.block(frames.call(path, **fields))
    body = frames.message(chance.randbytes(chance.choice((0, 1, 50, 3000))), chance.choice((0, 0, 0, 1, 9)))
    cut = chance.choice((len(body), len(body), 3))
    ending = frames.END_STREAM if chance.random() < 0.8 else 0
    return frames.open_stream(stream, block) + frames.data(stream, body[:cut], flags=ending)


def _nonsense(is_valid_http2: bool) -> attack.Strike:
    async def one_of_many(to: target.Target) -> None:
        chance = random.Random(to.told.connections)
        async with link.http2(to) as one:
            for number in range(_FRAMES):
                piece = _call(chance, 2 * number + 1) if is_valid_http2 else _frame(chance)
                await one.send(piece)
                await asyncio.sleep(0.005)

    return attack.at_once(attack.again(one_of_many, _CONNECTIONS // 8), 8)


ATTACKS = (
    attack.Attack("frames", "random frames on 200 connections", _nonsense(False)),
    attack.Attack("calls", "random calls on 200 connections", _nonsense(True)),
)
