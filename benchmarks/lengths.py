"""`python -m benchmarks.lengths`: MiniLM, padded to the longest as most servers do it, with and without `length=`.

Callers in one event loop ask again as soon as they have an answer, each time with a sentence of 3 to 250 tokens. It
needs what `make demo` installs, and runs on the processor, in turns with and without.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

import carpool
from carpool_sidecar.planning import engine

SHORTEST, LONGEST = 3, 250
SPECIAL = 2  # tokens that the model puts at both ends
WARM_UP = 0.2


def load(threads: int) -> Callable[[list[str]], Any]:
    """The model, every batch of which is one pass."""
    from carpool_predictor.models import bucketing, minilm

    minilm.EAGER["cpu"] = bucketing.AnyShape(10**9, 10**9)  # a pass is so dear that there is never a second one
    model = minilm.MiniLM("cpu", threads)
    model.load()
    model.predict(["word " * LONGEST] * 4)
    return model.predict


def tokens(sentence: str) -> int:
    return sentence.count(" ") + SPECIAL


async def measure(
    compute: Callable[[list[str]], Any], callers: int, seconds: float, seed: int, **options: Any
) -> tuple[float, float, float]:
    """Answers a second, and the 50th and 99th percentile in seconds."""
    source, waits = random.Random(seed), []

    @carpool.batched(max_batch_size=32, **options)
    def embed(sentences: list[str]) -> list[Any]:
        return list(compute(sentences))

    began = time.perf_counter()

    async def ask() -> None:
        while (now := time.perf_counter()) < began + seconds:
            await embed("word " * (source.randint(SHORTEST, LONGEST) - SPECIAL))
            if began + seconds * WARM_UP < now and time.perf_counter() < began + seconds:
                waits.append(time.perf_counter() - now)

    await asyncio.gather(*[ask() for _ in range(callers)])
    await embed.close()
    waits.sort()
    return len(waits) / (seconds * (1 - WARM_UP)), engine.quantile(waits, 0.5), engine.quantile(waits, 0.99)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each run, and the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    console = Console(width=150, highlight=False)
    compute = load(options.threads)
    found: dict[str, list[tuple[float, float, float]]] = {"in turn": [], "by length": []}
    for round_ in range(options.rounds):
        for name, more in (("in turn", {}), ("by length", {"length": tokens})):
            figures = asyncio.run(measure(compute, options.callers, options.seconds, round_, **more))
            found[name].append(figures)
            console.print(f"{name}: {figures[0]:.1f}/s, p50 {figures[1]:.2f} s, p99 {figures[2]:.2f} s")
    (rate, _, slowest), (more, _, then) = (map(statistics.median, zip(*runs, strict=True)) for runs in found.values())
    console.print(f"by length: {more / rate:.2f} times as many, p99 {then / slowest:.2f} times as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
