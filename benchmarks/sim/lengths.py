"""`python -m benchmarks.sim.lengths`: rows of like length in a batch, before a predictor that pads all to the longest.

Callers ask again as soon as they have an answer, each time with a text of another length. A batch takes a call and, for
each row, as long as its longest one: for MiniLM on a processor that is nearly all of it.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console

from carpool.scheduling import adaptive, limits, messages, scheduler, window
from carpool_sidecar.planning import engine

SHORTEST, LONGEST = 3, 250  # tokens
THINK = 0.0003
WARM_UP = 0.2


class Padding(NamedTuple):
    """Seconds of a call, and of each token that is computed, padding among them.

    By default as MiniLM's were measured: processor time of one core, fitted to batches of 1 to 32 texts.
    """

    call: float = 0.0064
    token: float = 0.000244

    def seconds(self, batch: messages.Batch) -> float:
        return self.call + self.token * batch.rows * max(part.request.payload[0] for part in batch.parts)


class Figures(NamedTuple):
    """Answers a second; seconds; rows in a batch."""

    rate: float
    p50: float
    p99: float
    batch: float


def row_lengths(payload: Sequence[int], start: int, stop: int) -> Sequence[int]:
    return payload[start:stop]


def run(
    callers: int, seconds: float, *, groups: bool, predictor: Padding | None = None, policy: str = "adaptive",
    size: int = 32, seed: int = 1,
) -> Figures:  # fmt: skip
    """So many callers for so many seconds of simulated time."""
    source, ids, predictor = random.Random(f"lengths {seed}"), itertools.count(), predictor or Padding()
    now, free = 0.0, 0.0
    bounds = limits.Limits(
        max_batch_size=size, max_latency=0.5 if policy == "adaptive" else 0.02, max_in_flight=8, learns_in_flight=True,
        row_lengths=row_lengths if groups else None,
    )  # fmt: skip
    chosen = adaptive.Adaptive(bounds) if policy == "adaptive" else window.Window(bounds)
    chosen.predictor.hint_overhead(0.0005)
    core = scheduler.Scheduler(bounds, chosen, lambda: now, lambda: str(next(ids)))
    events: list[tuple[float, int, str, Any]] = []
    waits, sizes = [], []

    def at(when: float, what: str, argument: Any = None) -> None:
        heapq.heappush(events, (when, next(ids), what, argument))

    for caller in range(callers):
        at(source.random() * 0.01, "asks", caller)
    while events and now < seconds:
        now, _, what, argument = heapq.heappop(events)
        effects: Sequence[messages.Effect] = ()
        if what == "asks":
            payload = [source.randint(SHORTEST, LONGEST)]
            effects = core.submit(messages.Request("key", 1, 0, payload))
        elif what == "done":
            effects = core.done(argument, range(argument.rows))
        elif (deadline := core.next_deadline()) is not None and deadline <= now:
            effects = core.poll()
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                free = max(free, now + 0.00025) + predictor.seconds(effect.batch)
                at(free + 0.00025, "done", effect.batch)
                sizes.append(effect.batch.rows)
            elif isinstance(effect, messages.Answer):
                if effect.request.arrived > WARM_UP * seconds:
                    waits.append(now - effect.request.arrived)
                at(now + THINK * source.random() * 2, "asks")
        if (deadline := core.next_deadline()) is not None:
            at(max(now, deadline), "wakes")
    waits.sort()
    rate = len(waits) / (seconds * (1 - WARM_UP))
    return Figures(rate, engine.quantile(waits, 0.5), engine.quantile(waits, 0.99), sum(sizes) / len(sizes))


def main() -> int:
    """Print a line for each number of callers and policy."""
    console = Console(width=150, highlight=False)
    for policy, callers in itertools.product(("adaptive", "window"), (8, 32, 64, 128, 256)):
        plain = run(callers, 60.0, groups=False, policy=policy)
        grouped = run(callers, 60.0, groups=True, policy=policy)
        console.print(
            f"{policy}, {callers} callers: {_words(plain)}; by length {_words(grouped)}: "
            f"{grouped.rate / plain.rate:.2f} times as many, p99 {grouped.p99 / plain.p99:.2f} times as long"
        )
    return 0


def _words(figures: Figures) -> str:
    waits = f"p50 / p99 {figures.p50 * 1e3:.0f} / {figures.p99 * 1e3:.0f} ms"
    return f"{figures.rate:.0f}/s, {waits}, {figures.batch:.0f} rows"


if __name__ == "__main__":
    sys.exit(main())
