"""The demo's second act: OpenAI's own client, as applications use it, asks for one embedding at a time.

The client takes 0.7 ms of CPU for each request over aiohttp, which its authors advise for many at a time, and 1.2 ms
over httpx (measured on two cores of an AMD EPYC, against a server that does nothing). The model, with which it shares
the machine, goes without them, so batching gains less here than in the first act.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

import openai
import uvloop

from benchmarks import answers, load, processes

CALL = 'await client.embeddings.create(model="minilm", input=sentence)'
"""What each caller does, for people."""

_SECONDS = 60.0  # that one request may take


def send(port: int, sentences: Sequence[str], callers: int, advance: Callable[[], None]) -> answers.Run:
    """Ask for the embedding of each sentence, so many at a time, and wait for all. `advance` is called for each."""
    return uvloop.run(ask_for_all(port, sentences, callers, advance))


async def ask_for_all(port: int, sentences: Sequence[str], callers: int, advance: Callable[[], None]) -> answers.Run:
    """The same in an event loop."""
    got = answers.Vectors(len(sentences))
    numbers = iter(range(len(sentences)))
    latencies: list[float] = []
    errors: Counter[str] = Counter()

    async def ask(client: openai.AsyncOpenAI) -> None:
        for number in numbers:
            start = time.perf_counter()
            try:
                answer = await client.embeddings.create(model="minilm", input=sentences[number])
            except openai.APIError as error:
                errors[_reason(error)] += 1
            else:
                latencies.append(time.perf_counter() - start)
                got.keep(number, [each.embedding for each in answer.data], answer.usage.prompt_tokens)
            advance()

    # Loopback never goes through a proxy; a second try would hide what went wrong.
    http = openai.DefaultAioHttpClient(trust_env=False)
    url = f"http://{processes.HOST}:{port}/v1"
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=_SECONDS, http_client=http
    ) as client:
        start = time.perf_counter()
        await asyncio.gather(*(ask(client) for _ in range(callers)))
        seconds = time.perf_counter() - start
    latencies.sort()
    p50, p99 = load.percentile(latencies, 0.50), load.percentile(latencies, 0.99)
    return answers.Run(load.Measurement(len(latencies), seconds, p50, p99, dict(errors)), got)


def _reason(error: openai.APIError) -> str:
    return f"status {error.status_code}" if isinstance(error, openai.APIStatusError) else type(error).__name__
