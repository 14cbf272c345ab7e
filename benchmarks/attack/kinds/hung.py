"""Calls that the predictor never answers, in all places at the predictor but one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine

from benchmarks.attack import attack, backend, link, target
from benchmarks.attack.kinds import calls

# As many batches may be out by default, and one place is left.
_HUNG = 7
_PAUSE = 0.3


async def _over_http(to: target.Target, number: int) -> None:
    """A key of its own, so that it does not share a batch with the victims' calls."""
    body = b'{"instances":["%b"]}' % backend.HANG.encode()
    lines = f"Authorization: {number}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with link.http1(to) as one:
        await one.send(b"POST /v1/models/echo:predict HTTP/1.1\r\nHost: attacked\r\n" + lines + body)
        await one.linger()


async def _over_grpc(to: target.Target, number: int) -> None:
    message = calls.infer_of(8, backend.HANG)
    async with calls.client(to) as channel:
        to.spend_bytes(len(message))
        await channel.unary_unary(backend.INFER)(message, timeout=to.left, metadata=[("authorization", str(number))])


def _one_after_the_other(call: Callable[[target.Target, int], Coroutine[None, None, None]]) -> attack.Strike:
    async def run(to: target.Target) -> None:
        async with asyncio.TaskGroup() as asking:
            for number in itertools.count():
                if number == _HUNG or not to.left:
                    break
                asking.create_task(_until_it_ends(call(to, number)))
                await asyncio.sleep(_PAUSE)

    return run


async def _until_it_ends(call: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(link.Gone, target.Exhausted, calls.FAILED):
        await call


ATTACKS = (
    attack.Attack(
        "hung-http", "7 predictions that are never answered", _one_after_the_other(_over_http), attack.CARPOOL, 6.0
    ),
    attack.Attack(
        "hung-grpc", "7 ModelInfer that are never answered", _one_after_the_other(_over_grpc), attack.CARPOOL, 6.0
    ),
)
