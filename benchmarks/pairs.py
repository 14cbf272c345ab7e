"""`python -m benchmarks.pairs`: callers of /rerank, each with a query of its own, in front of a reranker.

The reranker is a stand-in that works on one call at a time, which takes a fixed time and some more for each pair, as a
cross-encoder on a GPU does. It has text-embeddings-inference's /rerank, which takes one query a call, and its /predict,
which takes pairs of several. What is told is how many requests are answered in a second, by way of either.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from benchmarks import machine, processes
from tests import loopback
from tests.protocols.pairs import stand_ins

_CALL, _PAIR = 0.020, 0.0005
_WAYS = {
    "the reranker alone": None,
    "`--lists tei-rerank`": ["--lists", "tei-rerank"],
    "`--lists tei-rerank --rerank-to tei-predict`": ["--lists", "tei-rerank", "--rerank-to", "tei-predict"],
}


class Measured(NamedTuple):
    """Requests a second, the median of their times in milliseconds, and calls of the reranker a request."""

    rate: float
    median: float
    calls: float


class Reranker:
    """See the module; `calls` counts them."""

    def __init__(self) -> None:
        self.calls = 0
        self._busy = asyncio.Lock()

    def application(self) -> web.Application:
        """Its two paths."""
        found = web.Application()
        found.add_routes([web.post("/rerank", self._rerank), web.post("/predict", self._predict)])
        return found

    async def _rerank(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self._work(len(body["texts"]))
        ranked = stand_ins.ranked(body["query"], body["texts"])
        return web.json_response([{"index": place, "score": score} for place, score in ranked])

    async def _predict(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self._work(len(body["inputs"]))
        return web.json_response(stand_ins.tei(body))

    async def _work(self, pairs: int) -> None:
        self.calls += 1
        async with self._busy:
            await asyncio.sleep(_CALL + _PAIR * pairs)


async def measure(flags: list[str] | None, callers: int, documents: int, seconds: float) -> Measured:
    """Callers that ask again as soon as they are answered; raises `RuntimeError` for a wrong answer."""
    port, component_port, admin_port = loopback.free_ports(3)
    reranker = Reranker()
    runner = web.AppRunner(reranker.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, processes.HOST, component_port).start()
    try:
        with _sidecar(port, component_port, admin_port, flags) as child:
            if child is not None:
                await asyncio.to_thread(child.wait_until_ready, processes.ready_url(admin_port), 30.0)
            url = f"http://{processes.HOST}:{component_port if child is None else port}/rerank"
            await _ask(url, callers, documents, 1.0)  # the policy learns
            before = reranker.calls
            times = await _ask(url, callers, documents, seconds)
            return Measured(
                len(times) / seconds, statistics.median(times) * 1e3, (reranker.calls - before) / len(times)
            )
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def _sidecar(port: int, component_port: int, admin_port: int, flags: list[str] | None) -> Iterator[Any]:
    if flags is None:
        yield None
        return
    with processes.running("sidecar", processes.sidecar_command(port, component_port, admin_port, flags)) as child:
        yield child


async def _ask(url: str, callers: int, documents: int, seconds: float) -> list[float]:
    """How long each request took that ended within so many seconds."""
    times: list[float] = []
    end = time.monotonic() + seconds

    async def ask(session: aiohttp.ClientSession, caller: int) -> None:
        number = 0
        while (began := time.monotonic()) < end:
            number += 1
            query, texts = f"query {caller} {number}", [f"text {each}" for each in range(documents)]
            async with session.post(url, json={"query": query, "texts": texts}) as answer:
                found = [(row["index"], row["score"]) for row in await answer.json()]
            if found != stand_ins.ranked(query, texts):
                raise RuntimeError(f"a wrong answer: {found}")
            if time.monotonic() <= end:
                times.append(time.monotonic() - began)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(ask(session, caller))
    return times


def main() -> int:
    """Print a table, and where it was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    print("| | requests a second | median | calls a request |\n|---|---|---|---|")
    for name, flags in _WAYS.items():
        found = asyncio.run(measure(flags, given.callers, given.documents, given.seconds))
        print(f"| {name} | {found.rate:.0f} | {found.median:.0f} ms | {found.calls:.2f} |", flush=True)
    print(f"\n{machine.describe()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
