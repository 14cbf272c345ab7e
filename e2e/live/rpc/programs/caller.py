"""Calls a v2 server from inside the cluster and holds every answer against its question; prints JSON.

It runs in the sidecar's image, which has tritonclient and grpcio. No two rows are the same, so an answer that was meant
for somebody else, or was changed on its way, cannot be right by chance.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import grpc
import numpy as np
from tritonclient.grpc import InferInput, aio
from tritonclient.utils import InferenceServerException

MODEL = "identity"
COLUMNS, MOST_ROWS = 4, 4
CALL_SECONDS = 30.0
PAUSE_SECONDS = 0.05
SETTLED = 50
# A connection each, in one process; to each address of a target, if it has several. The second kind sends a call once
# and never again, whatever became of it.
CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.lb_policy_name", "round_robin")]
ONCE = [*CONNECTION, ("grpc.enable_retries", 0)]

# The client's own words for a call that waited for its turn on a connection when the server said goodbye, and was never
# sent (`cancel_unstarted_streams` of gRPC's chttp2_transport.cc). It sends such a call again by itself, but not with
# retries switched off.
NEVER_SENT = "Stream removed (GOAWAY received; Error code: 0;"

Infer = Callable[[np.ndarray], Awaitable[np.ndarray]]


class Tally:
    """What became of calls: right, wrong (an answer, but not to the question), failed with a status, or never sent."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.right = self.wrong = self.never_sent = 0
        self.settled = asyncio.Event()  # once enough were right
        self.failed: collections.Counter[str] = collections.Counter()
        self.latest = self.start
        self.worst_gap = 0.0

    async def call(self, infer: Infer, chance: np.random.Generator) -> None:
        """One call."""
        rows = chance.uniform(-1e6, 1e6, (chance.integers(1, MOST_ROWS + 1), COLUMNS)).astype(np.float32)
        sent = time.monotonic() - self.start
        try:
            answer = await infer(rows)
        except (InferenceServerException, aiohttp.ClientError, TimeoutError) as error:
            if NEVER_SENT in str(error):
                self.never_sent += 1
                return
            self.failed[f"{type(error).__name__}: {error} (sent after {sent:.0f} s)"] += 1
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            self._judge(np.array_equal(answer, rows))

    def _judge(self, is_right: bool) -> None:
        now = time.monotonic()
        self.right += is_right
        if self.right >= SETTLED:
            self.settled.set()
        self.wrong += not is_right
        self.worst_gap, self.latest = max(self.worst_gap, now - self.latest), now

    def report(self) -> dict[str, Any]:
        gap = max(self.worst_gap, time.monotonic() - self.latest)
        return {
            "right": self.right, "wrong": self.wrong, "failed": dict(self.failed),
            "never_sent": self.never_sent, "worst_gap_s": round(gap, 2),
            "seconds": round(time.monotonic() - self.start, 1),
        }  # fmt: skip


@contextlib.asynccontextmanager
async def over_grpc(target: str, options: list[tuple[str, Any]]) -> AsyncIterator[Infer]:
    """By tritonclient, on a connection of its own."""
    async with aio.InferenceServerClient(target, channel_args=options) as client:

        async def infer(rows: np.ndarray) -> np.ndarray:
            tensor = InferInput("rows", list(rows.shape), "FP32").set_data_from_numpy(rows)
            answer = await client.infer(MODEL, [tensor], client_timeout=CALL_SECONDS)
            return answer.as_numpy("rows_out")

        yield infer


@contextlib.asynccontextmanager
async def over_http(target: str) -> AsyncIterator[Infer]:
    """v2's JSON."""
    timeout = aiohttp.ClientTimeout(CALL_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as client:

        async def infer(rows: np.ndarray) -> np.ndarray:
            shape, data = list(rows.shape), rows.ravel().tolist()
            tensor = {"name": "rows", "shape": shape, "datatype": "FP32", "data": data}
            async with client.post(f"http://{target}/v2/models/{MODEL}/infer", json={"inputs": [tensor]}) as answered:
                (output,) = (await answered.json())["outputs"]
            return np.array(output["data"], np.float32).reshape(output["shape"])

        yield infer


async def together(target: str, protocol: str, callers: int, times: int) -> dict[str, Any]:
    """So many callers at once, each so many times."""
    tally = Tally()
    connection = over_http(target) if protocol == "http" else over_grpc(target, CONNECTION)
    async with connection as infer, asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(_call(tally, infer, lambda: False, times))
    return tally.report()


async def _call(tally: Tally, infer: Infer, is_over: Callable[[], bool], times: int, pause: float = 0.0) -> None:
    chance = np.random.default_rng()
    while times and not is_over():
        await tally.call(infer, chance)
        await asyncio.sleep(pause)
        times -= 1


async def load(target: str, connections: int, callers: int, pause: float) -> dict[str, Any]:
    """So many connections with so many callers each, until stdin ends. Half of them never send a call twice."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, lambda: None if sys.stdin.readline() else ended.set())
    tallies = [Tally(), Tally()]
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for number in range(connections):
            options = (CONNECTION, ONCE)[number % 2]
            infer = await stack.enter_async_context(over_grpc(target, options))
            for _ in range(callers):
                group.create_task(_call(tallies[number % 2], infer, ended.is_set, -1, pause))
        for each in tallies:
            await each.settled.wait()
        print(json.dumps({"settled": True}), flush=True)
        await ended.wait()
        asyncio.get_running_loop().remove_reader(sys.stdin)
    return {"as usual": tallies[0].report(), "sent once": tallies[1].report()}


async def ask(target: str) -> dict[str, Any]:
    """What is not batched: questions about the server and its models, and a stream."""
    async with aio.InferenceServerClient(target) as client:
        metadata = await client.get_model_metadata(MODEL, as_json=True)
        configuration = await client.get_model_config(MODEL, as_json=True)
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": await client.is_model_ready(MODEL),
            "server": (await client.get_server_metadata()).name,
            "inputs": [each["name"] for each in metadata["inputs"]],
            "max_batch_size": configuration["config"]["max_batch_size"],
            "unknown model": await _code(client.get_model_metadata("nobody")),
            "stream": await _stream(client),
        }


async def _code(asked: Awaitable[Any]) -> str:
    try:
        await asked
    except InferenceServerException as refused:
        return str(refused.status()).removeprefix("StatusCode.")
    return grpc.StatusCode.OK.name


async def _stream(client: Any) -> str:
    """ModelStreamInfer: each question is sent when the one before it has been answered."""
    answered = asyncio.Queue[np.ndarray]()
    rows = [np.full((1, COLUMNS), number, np.float32) for number in range(5)]

    async def questions() -> AsyncIterator[dict[str, Any]]:
        for number, each in enumerate(rows):
            tensor = InferInput("rows", list(each.shape), "FP32").set_data_from_numpy(each)
            yield {"model_name": MODEL, "inputs": [tensor], "request_id": str(number)}
            if not np.array_equal(await answered.get(), each):
                raise ValueError("an answer to another question")

    async for answer, error in client.stream_infer(questions()):
        if error is not None:
            return str(error)
        await answered.put(answer.as_numpy("rows_out"))
    return f"{len(rows)} answers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["together", "load", "ask"])
    parser.add_argument("target")
    parser.add_argument("--protocol", choices=["grpc", "http"], default="grpc")
    parser.add_argument("--connections", type=int, default=6)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.0)
    chosen = parser.parse_args()
    actions = {
        "together": lambda: together(chosen.target, chosen.protocol, chosen.callers, chosen.times),
        "load": lambda: load(chosen.target, chosen.connections, chosen.callers, chosen.pause),
        "ask": lambda: ask(chosen.target),
    }
    print(json.dumps(asyncio.run(actions[chosen.action]())), flush=True)


if __name__ == "__main__":
    main()
