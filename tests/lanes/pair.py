"""Two sidecars, of which one has a short way for plain requests and one has not, and the same bytes through both."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import looptime

from tests.http1.tables import NUMBER
from tests.lanes import differences, exchange, lane, recorder

_SHOWN = 2000
# Two timers fall due at the same moment; which comes first is not promised.
_SAME = {"carpool_refused_total['predictor_timeout']": "carpool_refused_total['deadline']"}


@dataclass(frozen=True, repr=False)
class Stream:
    """What one client sends: `parts` (requests, or what looks like some), cut into writes at `cuts` (byte positions).

    After each write comes `pause`, or the next of several, over and over. `start` and `leave` are the seconds after
    which the client comes, and goes without reading on (None: it stays for the end).
    """

    parts: tuple[bytes, ...]
    cuts: tuple[int, ...] = ()
    pause: exchange.Step | tuple[exchange.Step, ...] = exchange.SHORTLY
    start: float = 0.0
    leave: float | None = None
    predicts: int = field(default=1, compare=False)
    """How many of the parts may become batches."""
    are_apart: bool = field(default=False, compare=False)
    """Whether they surely become batches of their own."""

    def __repr__(self) -> str:
        parts = ", ".join(repr(part[:_SHOWN]) + f"… {len(part)} bytes" * (len(part) > _SHOWN) for part in self.parts)
        return f"Stream(({parts}), {self.cuts}, {self.pause}, start={self.start}, leave={self.leave})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis asks for; bodies may be larger than it puts up with."""
        printer.text(repr(self))

    @property
    def raw(self) -> bytes:
        """All its bytes."""
        return b"".join(self.parts)

    def numbered(self, number: int) -> Stream:
        """The same with a number of its own."""
        return replace(self, parts=tuple(part.replace(NUMBER, b"%06d" % number) for part in self.parts))

    def steps(self) -> list[exchange.Step]:
        """What the client does."""
        raw, steps = self.raw, [exchange.Wait(self.start)] if self.start else []
        pauses = itertools.cycle(self.pause if isinstance(self.pause, tuple) else (self.pause,))
        edges = sorted({0, len(raw), *(cut for cut in self.cuts if 0 < cut < len(raw))})
        for begin, end in itertools.pairwise(edges):
            steps += [raw[begin:end], next(pauses)]
        return steps if self.leave is None else [*steps, exchange.Wait(self.leave), exchange.Leave.RESET]


class Complaints(logging.Handler):
    """Keeps what a sidecar or the loop logs as an error: there is no request that may make them do that."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message and the exception."""
        self.texts.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")

    def __enter__(self) -> Complaints:
        for name in ("carpool", "asyncio"):
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("carpool", "asyncio"):
            logging.getLogger(name).removeHandler(self)


@dataclass
class Pair:
    """Runs streams both ways."""

    fast: lane.Lane
    slow: lane.Lane
    loop: asyncio.AbstractEventLoop
    _number: int = 0

    def compare(self, streams: Sequence[Stream]) -> None:
        """Send all streams at once through either lane; fails with every difference there is."""
        __tracebackhide__ = not os.environ.get("LANES_TRACEBACK")
        numbered = [stream.numbered(self._next_number()) for stream in streams]
        with Complaints() as complaints:
            found = self.loop.run_until_complete(self._compare(numbered))
        found += [f"{streams}\nlogged as an error: {text}" for text in complaints.texts]
        assert not found, "\n\n".join(found)

    def run(self, script: Callable[[lane.Lane], Any]) -> tuple[Any, Any]:
        """The results of the same script on both lanes."""
        return tuple(self.loop.run_until_complete(script(each)) for each in (self.fast, self.slow))  # type: ignore[return-value]

    async def _compare(self, streams: Sequence[Stream]) -> list[str]:
        fast, fast_counts = await _observe(self.fast, streams)
        slow, slow_counts = await _observe(self.slow, streams)
        found = []
        for stream, ours, theirs in zip(streams, fast[:-1], slow[:-1], strict=True):
            told = self._difference(stream, ours, theirs)
            if told is not None:
                found.append(f"{stream}\n{told}")
        stray = differences.difference(fast[-1], slow[-1], is_timed=False, is_alone=False)
        if stray is not None:
            found.append(f"one of {streams}\n{stray}")
        ours_, theirs_ = ({name: count for name, count in each.items() if count} for each in (fast_counts, slow_counts))
        if ours_ != theirs_ and not found:
            found.append(f"{streams}\ncounted with the short way on:  {ours_}\ncounted without it: {theirs_}")
        return [*found, *_unrest(self.fast), *_unrest(self.slow)]

    def _difference(self, stream: Stream, ours: differences.Result, theirs: differences.Result) -> str | None:
        return differences.difference(
            ours,
            theirs,
            is_timed=stream.predicts < 2 and self._is_virtual,
            is_alone=stream.predicts < 2 or stream.are_apart,
            is_virtual=self._is_virtual,
        )

    @property
    def _is_virtual(self) -> bool:
        return isinstance(self.loop, looptime.LoopTimeEventLoop)

    def _next_number(self) -> int:
        self._number = self._number % 999_999 + 1
        return self._number


async def _observe(through: lane.Lane, streams: Sequence[Stream]) -> tuple[list[differences.Result], Counter[str]]:
    """Each stream's result, then one for what cannot be told whose it is; and what was counted meanwhile."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, looptime.LoopTimeEventLoop):
        await asyncio.sleep(1 - loop.time() % 1)  # aiohttp's timers end at whole seconds
    before = through.counts()
    through.predictor.seen.clear()
    transcripts = await asyncio.gather(*(through.converse(stream.steps()) for stream in streams))
    await _settle(through)
    by_number: dict[str, list[recorder.Seen]] = {}
    for one in through.predictor.seen:
        by_number.setdefault(one.stream, []).append(one)
    mine = []
    for stream, transcript in zip(streams, transcripts, strict=True):
        raw = stream.raw
        numbers = [number for number in by_number if number and number.encode() in raw]
        mine.append(differences.Result(transcript, [one for number in numbers for one in by_number.pop(number)]))
    stray = [one for several in by_number.values() for one in several]
    counts: Counter[str] = Counter()
    for name, value in through.counts().items():
        counts[_SAME.get(name, name)] += value - before[name]
    return [*mine, differences.Result(exchange.Transcript(), stray)], counts


async def _settle(through: lane.Lane) -> None:
    """Let those who were left alone notice it; in virtual time this takes as long as anything may."""
    for _ in range(50):
        if not through.leftovers():
            return
        await asyncio.sleep(lane.PATIENCE / 50)


def _unrest(through: lane.Lane) -> list[str]:
    left = through.leftovers()
    return [f"{through.name}: left behind {left}"] if left else []
