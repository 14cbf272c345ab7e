"""However a call ends, nothing of it waits for the garbage collector, and its bytes are counted until it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar.protocols import models
from tests import cycles
from tests.server.grpc.any_calls import PATH, framed, opened
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import INFER, Site, turns, until
from tests.server.grpc.test_infer_calls_on_sockets import asking

MESSAGE = bytes(1_000_000)
DEADLINE = (b"grpc-timeout", b"50m")


async def answer(messages: AsyncIterator[bytes], context: Any) -> None:
    async for _ in messages:
        await context.write(b"answer")


async def refuse(messages: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")


async def hang(messages: AsyncIterator[bytes], context: Any) -> None:
    async for _ in messages:
        pass
    await asyncio.Event().wait()


async def never_read(messages: AsyncIterator[bytes], context: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.both_loops
@pytest.mark.parametrize("is_whole", [True, False], ids=["one message", "a stream"])
@pytest.mark.parametrize(
    ("behaviour", "end"),
    [(answer, "answered"), (refuse, "answered"), (hang, "late"), (hang, "left"), (never_read, "left"),
     (hang, "left at once"), (hang, "broken off")],
)  # fmt: skip
async def test_a_call_that_is_passed_through_leaves_nothing(
    peer_site: Site, peer: Peer, behaviour: Any, end: str, is_whole: bool
) -> None:
    peer.methods[PATH] = behaviour
    await run(peer_site, end, is_whole)
    with cycles.counted() as found:
        for _ in range(3):
            await run(peer_site, end, is_whole)
    assert found == []


async def run(site: Site, end: str, is_whole: bool) -> None:
    stream, handler = opened(site, *([DEADLINE] if end == "late" else []))
    handler.data(framed(MESSAGE))
    if is_whole:
        handler.end()
    if end != "left at once":
        await until(lambda: site.bodies.memory.held != len(MESSAGE) or stream.granted > 0 or is_whole)
        await asyncio.sleep(0.02)
    if end in ("answered", "late"):
        if not is_whole:
            handler.end()
        await stream.end()
    elif end == "broken off":
        handler.data(b"\7" * 5)
    else:
        handler.cancelled()
    await until(lambda: not site.passthrough.under_way)
    assert site.bodies.memory.held == 0
    await until(lambda: site.life.active == 0)


async def test_a_message_is_counted_as_long_as_it_is_kept(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = never_read
    _, handler = opened(peer_site)
    handler.data(framed(MESSAGE))
    handler.end()
    await until(lambda: len(peer.calls) == 1)
    assert peer_site.bodies.memory.held >= len(MESSAGE)
    handler.cancelled()
    assert peer_site.bodies.memory.held >= len(MESSAGE)  # grpc.aio has it for a moment
    await until(lambda: not peer_site.passthrough.under_way)
    assert peer_site.bodies.memory.held == 0


ROWS = np.zeros((1, 100_000), "f4")
SEQUENCE = {"sequence_id": pb.InferParameter(int64_param=7)}
INFERENCES = {
    "answered": asking(ROWS),
    "refused by the predictor": asking(np.full((1, 100_000), 400, "f4"), model="marked"),
    "passed through": asking(ROWS[0], model="unbatched"),
    "passed through, as one of a sequence": asking(ROWS, parameters=SEQUENCE),
    "refused": asking(ROWS)[:-1],
    "late": asking(ROWS),
    "left": asking(ROWS),
    "left, to travel alone": asking(ROWS[0], model="unbatched"),
    "left before the model is known": asking(ROWS),
    "left in the middle": asking(ROWS)[:-1],
}


@pytest.mark.both_loops
@pytest.mark.parametrize("end", INFERENCES)
async def test_a_call_of_model_infer_leaves_nothing(site: Site, end: str) -> None:
    if end.startswith(("late", "left")):
        site.fake.gate.clear()
    if end != "left before the model is known":
        await infer(site, end)
    with cycles.counted() as found:
        await asyncio.gather(*[infer(site, end) for _ in range(3)])
        site.fake.gate.set()
        await until(lambda: not site.fake.busy)
        if end == "left before the model is known":
            await site.registry.ask(models.ModelName("identity", ""))  # it is still being asked about
    assert found == []


async def infer(site: Site, end: str) -> None:
    stream, handler = opened(site, *([DEADLINE] if end == "late" else []), path=INFER)
    handler.data(framed(INFERENCES[end]))
    if end != "left in the middle":
        handler.end()
    if end in ("left", "left, to travel alone"):
        await site.fake.at_work(1)
    elif end == "left in the middle":
        await turns()
    if end.startswith("left"):
        await asyncio.sleep(0)
        handler.cancelled()
    else:
        await stream.end()
    await until(lambda: site.bodies.memory.held == 0 and not site.passthrough.under_way)
