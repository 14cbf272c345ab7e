"""However a v1 request ends, on either lane, nothing of it waits for the garbage collector."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests import cycles
from tests.assembly import fake_predictor

WIDTH = 100_000
VALUES = [0.5] * WIDTH
V1 = json.dumps({"instances": [VALUES]}).encode()
HOW_IT_ENDS = [
    "answered", "refused by the predictor", "refused", "late", "left", "left in the middle", "the predictor breaks off",
    "passed through",
]  # fmt: skip


async def send(
    port: int, path: str, body: bytes, how: str, working: Callable[[], Awaitable[None]], headers: str = ""
) -> None:
    """One request on a connection of its own, to the end of the test's choice."""
    if how == "late":
        headers += "carpool-timeout-ms: 100\r\n"
    if how == "refused":
        body = body[:-1] + b"?"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + (body[:-1] if how == "left in the middle" else body))
    if how.startswith("left"):
        await (asyncio.sleep(0.05) if how == "left in the middle" else working())
        writer.transport.abort()
    else:
        answer = await reader.read()
        expected = {"answered": 200, "passed through": 200, "refused": 400, "late": 504}
        expected["refused by the predictor"] = 400
        assert answer.startswith(b"HTTP/1.1 %d" % expected.get(how, 502)), answer[:300]
        writer.close()


def behaviour(how: str) -> fake_predictor.Behaviour:
    if how == "refused by the predictor":
        return fake_predictor.refuse(400)
    return fake_predictor.hang_up(1000) if how == "the predictor breaks off" else lambda seen, request: None


@pytest.mark.both_loops
@pytest.mark.parametrize("lane", ["on", "off"])
@pytest.mark.parametrize("how", HOW_IT_ENDS)
async def test_a_v1_request_leaves_nothing(sidecar_of: Any, lane: str, how: str) -> None:
    bench = await sidecar_of(max_latency=1, fast_lane=lane)
    predictor, bodies = bench.predictor, bench.sidecar.bodies
    predictor.behave = behaviour(how)
    port, path = bench.sidecar.settings.port, "/v1/models/m:predict"

    async def arrived() -> None:
        await predictor.received(1)

    async def run() -> None:
        predictor.seen.clear()
        if how in ("late", "left"):
            predictor.gate.clear()
        await send(port, path.replace("predict", "explain") if "passed" in how else path, V1, how, arrived)
        predictor.gate.set()
        for _ in range(500):
            if not (bodies.buffered_bytes or bench.sidecar.life.active or bench.sidecar.core.admission.held):
                break
            await asyncio.sleep(0.01)
        predictor.seen.clear()

    await run()
    with cycles.counted() as found:
        await run()
        await run()
    assert found == []
