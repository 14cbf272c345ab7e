"""What a batched function did: counted while it works, read as numbers that never change.

A `Recorder` counts for one batcher; `snapshot` makes `Stats` of it. A `Registry` knows all batchers that are alive, and
keeps the counts of those that are not.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
import math
import operator
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from carpool import errors, measures
from carpool.runtime import driver
from carpool.scheduling import messages, scheduler


class Tracing(Protocol):
    """Makes spans of what an observer is told."""

    def sent(self, batch: messages.Batch) -> None: ...

    def answered(self, batch: messages.Batch, seconds: float) -> None: ...

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None: ...

    def turned_away(self, call: messages.Request, error: errors.CarpoolError) -> None: ...

    def left(self, call: messages.Request) -> None: ...

    def forget(self) -> None:
        """No batch that is out comes back."""
        ...

    def enter(self, batch: messages.Batch, context: contextvars.Context) -> None:
        """Make a batch's span the current one in the context that its function runs in."""
        ...


class Recorder(driver.Observer):
    """Counts for one batcher. Any thread may count: each number grows in one step of the interpreter."""

    # Mutable state: all of it grows, until `reset`. Written by the batcher, and `cache_hits` by its callers. tracing.
    def __init__(self) -> None:
        self.tracing: Tracing | None = None
        self.reset()

    def reset(self) -> None:
        """Begin with nothing."""
        self.sizes = measures.Histogram(measures.SIZES)
        self.waits = measures.Histogram(measures.SECONDS)
        self.function_seconds = measures.Histogram(measures.SECONDS)
        self.request_seconds = measures.Histogram(measures.SECONDS)
        self.batches: dict[str, int] = dict.fromkeys(messages.Reason, 0)
        self.refusals: defaultdict[str, int] = defaultdict(int)
        self.failures: defaultdict[str, int] = defaultdict(int)
        self.items = 0
        self.abandoned = 0
        self.bugs = 0
        self.cache_hits = 0
        """Items whose result was in the cache; add to it."""
        self.deduplicated = 0
        """Items that the function was not given, as an equal one was in the batch; add to it."""

    def trace(self, tracing: Tracing | None) -> None:
        """Have this told as well; None: nobody asked for spans."""
        self.tracing = tracing
        self.before = None if tracing is None else tracing.sent

    def sent(self, batch: messages.Batch) -> None:
        self.batches[batch.reason] += 1
        self.sizes.observe(batch.rows)
        newcomers, now = batch.newcomers, batch.dispatched
        if len(newcomers) == 1:  # of one turn of a loop, mostly
            self.waits.observe(now - newcomers[0].arrived, getattr(newcomers[0], "callers", 1))
            return
        came: list[float] = []
        for request in newcomers:
            came += [request.arrived] * getattr(request, "callers", 1)
        self.waits.observe_since(came, now)

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        self.function_seconds.observe(seconds)
        self.items += batch.rows
        if self.tracing is not None:
            self.tracing.answered(batch, seconds)

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        if not isinstance(error, errors.Abandoned):
            self.failures[error.reason] += 1
        if self.tracing is not None:
            self.tracing.failed(batch, error)

    def turned_away(self, call: messages.Request, error: errors.CarpoolError) -> None:
        if self.tracing is not None:
            self.tracing.turned_away(call, error)

    def left(self, call: messages.Request) -> None:
        self.abandoned += 1
        if self.tracing is not None:
            self.tracing.left(call)

    def bug(self, words: str, error: BaseException, batch: messages.Batch | None = None) -> None:
        super().bug(words, error, batch)
        self.bugs += 1

    def refused(self, error: errors.CarpoolError, count: int = 1) -> None:
        """So many calls got this error."""
        self.refusals[error.reason] += count

    def finished(self, arrived: Sequence[float], now: float) -> None:
        """Calls that arrived then got their results now."""
        self.request_seconds.observe_since(arrived, now)


_NO_BATCHES: dict[str, int] = dict.fromkeys(messages.Reason, 0)
_NO_SIZES = measures.Distribution.empty(measures.SIZES)
_NO_SECONDS = measures.Distribution.empty(measures.SECONDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """What a function did since it was made, and how things are now. Times are in seconds.

    Of times and sizes only the bucket of each is kept: their means are exact, their quantiles estimates.
    """

    name: str
    queued: int = 0
    """Items that wait for a batch now; with `merge` their rows."""
    suspects: int = 0
    """Of those, the ones that resemble items for which the function raised, and travel apart."""
    keys: int = 0
    """How many different arguments the calls have that wait now; only equal ones share a batch."""
    in_flight: int = 0
    """Batches that the function works on now."""
    answered: int = 0
    """Items for which the function gave results; with `merge` their rows."""
    batches: Mapping[str, int] = dataclasses.field(default_factory=_NO_BATCHES.copy)
    """Batches sent, by the `carpool.scheduling.messages.Reason` they left for; all reasons are there."""
    sizes: measures.Distribution = _NO_SIZES
    """Items in a batch."""
    waits: measures.Distribution = _NO_SECONDS
    """From a call to its first batch leaving."""
    function_seconds: measures.Distribution = _NO_SECONDS
    """Of the function, for each batch that succeeded."""
    request_seconds: measures.Distribution = _NO_SECONDS
    """From a call to its result."""
    refused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Calls that got an exception, by its reason: overload, a timeout, what the function raised."""
    failed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Batches that failed, by reason."""
    abandoned: int = 0
    """Calls that were cancelled."""
    cache_hits: int = 0
    """Items whose result was in the cache."""
    deduplicated: int = 0
    """Items that the function was not given, as an equal one was in the batch."""
    internal_errors: int = 0
    """Bugs of Carpool's own; the log has the tracebacks."""
    learned: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What the adaptive policy learned, in base units; nothing where there is a `max_latency`."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The options in force, as plain values: of functions and classes the name, of other objects the `repr`."""

    @property
    def retries(self) -> int:
        """Batches that were sent again, in parts or whole."""
        return sum(self.batches[reason] for reason in messages.RETRIES)

    @property
    def mean_batch_size(self) -> float:
        """Items in a batch, on average; 0 while there was none."""
        return self.sizes.mean

    @classmethod
    def merged(cls, several: Iterable[Stats]) -> Stats:
        """What several batchers did together, with the name and settings of the first; ValueError if there is none.

        Of what they learned, the numbers of batches and the capacity add up; other numbers are means, weighted by how
        many batches each batcher had answered.
        """
        every = list(several)
        if not every:
            raise ValueError("there are no statistics to be merged")
        if len(every) == 1:
            return every[0]
        sums: dict[str, Any] = {
            field: _sum([getattr(each, field) for each in every])
            for field in (each.name for each in dataclasses.fields(cls))
            if field not in ("name", "learned", "settings")
        }
        settings = next((each.settings for each in every if each.settings), {})
        return cls(name=every[0].name, learned=_learned(every), settings=settings, **sums)

    def __str__(self) -> str:
        """A table of a few lines; what has not happened has none."""
        also = {"abandoned": self.abandoned, "from the cache": self.cache_hits, "deduplicated": self.deduplicated}
        also["internal errors"] = self.internal_errors
        sizes = f"{self.sizes.count:,} of {_number(self.mean_batch_size)} items on average"
        lines = {
            "batches": f"{sizes}: {_counts(self.batches)}" if self.sizes.count else "",
            "waits": _times(self.waits),
            "function": _times(self.function_seconds),
            "results": _times(self.request_seconds),
            "refused": _counts(self.refused),
            "failed": _counts(self.failed),
            "also": _counts(also),
            "learned": ", ".join(f"{name} {_number(value)}" for name, value in self.learned.items()),
            "settings": ", ".join(f"{name} {value}" for name, value in self.settings.items() if value),
        }
        head = f"{self.name}: {self.answered:,} items answered, {self.queued:,} waiting, {self.in_flight:,} batches out"
        return "\n".join([head, *(f"  {name:<9} {words}" for name, words in lines.items() if words)])


def snapshot(name: str, recorder: Recorder, core: scheduler.Scheduler, options: Any) -> Stats:
    """What a batcher did and how it is now, with its options, a dataclass. Any thread may ask."""
    return dataclasses.replace(
        counted(name, recorder),
        queued=core.waiting_rows,
        suspects=core.isolation.quarantine.rows,
        keys=len(core.backlog),
        in_flight=len(core.in_flight),
        learned=dict(core.learned()),
        settings=settings_of(options),
    )


def settings_of(options: Any) -> dict[str, Any]:
    """Options, a dataclass, as `Stats` tells them."""
    return {
        each.name: _plain(getattr(options, each.name)) for each in dataclasses.fields(options) if each.name != "name"
    }


def counted(name: str, recorder: Recorder) -> Stats:
    """What a batcher did, and nothing of how it is: for one that is gone."""
    return Stats(
        name=name,
        answered=recorder.items,
        batches=dict(recorder.batches),
        sizes=recorder.sizes.read(),
        waits=recorder.waits.read(),
        function_seconds=recorder.function_seconds.read(),
        request_seconds=recorder.request_seconds.read(),
        refused=dict(recorder.refusals),
        failed=dict(recorder.failures),
        abandoned=recorder.abandoned,
        cache_hits=recorder.cache_hits,
        deduplicated=recorder.deduplicated,
        internal_errors=recorder.bugs,
    )


# --- several batchers -------------------------------------------------------------------------------------------


class Source(Protocol):
    """A batcher, for those who show statistics. It can be referred to weakly."""

    name: str
    recorder: Recorder
    """What counts for it, always the same one."""

    def stats(self) -> Stats:
        """What it did and how it is now."""
        ...


class Registry:
    """All batchers of a process, without keeping them alive. What one has counted stays when it is gone.

    Any thread may use it. A forked child begins to count with nothing, as what its parent counted did not happen there.
    """

    # Mutable state: _entries, the batchers with what counts for them, to which anything may add; _retained, the sums of
    # those that are gone, by name; _gone, numbers of those whose counts are still to be moved there. Who moves them, or
    # reads both, holds the lock.
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._entries: dict[int, tuple[weakref.ref[Source], str, Recorder]] = {}
        self._retained: dict[str, Stats] = {}
        self._gone: deque[int] = deque()

    def add(self, source: Source) -> None:
        """A batcher begins."""
        number, gone = next(self._numbers), self._gone
        # Batchers begin and end wherever the garbage collector comes round, so neither may wait for the lock.
        ref = weakref.ref(source, lambda _: gone.append(number))
        self._entries[number] = ref, source.name, source.recorder
        if self._lock.acquire(blocking=False):
            try:
                self._retain()
            finally:
                self._lock.release()

    def stats(self) -> dict[str, Stats]:
        """All that happened, and how things are: for each function, by name. Counts never go back."""
        with self._lock:
            self._retain()
            retained, entries = self._retained.copy(), list(self._entries.values())
        # A batcher has a lock of its own, so it is asked without this one.
        found: dict[str, list[Stats]] = {name: [known] for name, known in retained.items()}
        for ref, name, recorder in entries:
            source = ref()
            found.setdefault(name, []).append(counted(name, recorder) if source is None else source.stats())
        return {name: Stats.merged(several) for name, several in found.items()}

    def _retain(self) -> None:
        """Add up what those counted that are gone; those who go meanwhile are for the next, or this might never end."""
        for _ in range(len(self._gone)):
            number = self._gone.popleft()
            _, name, recorder = self._entries[number]
            known = self._retained.get(name)
            self._retained[name] = Stats.merged([*([known] if known else []), counted(name, recorder)])
            del self._entries[number]

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # a thread that is not in this process may have had it
        self._retained.clear()
        for _, _, recorder in self._entries.values():
            recorder.reset()


live = Registry()
"""All batchers of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=live._after_fork)


# --- sums -------------------------------------------------------------------------------------------------------

# What a batcher learned of its own share of the work, which others have as well.
_SHARES = ("workers", "in_flight_limit", "capacity")


def _sum(values: Sequence[Any]) -> Any:
    """The sum of numbers or distributions, or of what mappings have for each key."""
    if isinstance(values[0], Mapping):
        return {key: sum([each.get(key, 0) for each in values]) for key in dict.fromkeys(itertools.chain(*values))}
    return functools.reduce(operator.add, values)


def _learned(several: Sequence[Stats]) -> dict[str, float]:
    knowing = [each for each in several if each.learned]
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for each in knowing for name in each.learned):
        values = [each.learned.get(name, 0.0) for each in knowing]
        weights = [float(each.function_seconds.count) for each in knowing]
        if name == "utilisation":  # a share of the capacity
            weights = [each.learned.get("capacity", 0.0) for each in knowing]
        if name in _SHARES:
            found[name] = sum(values)
        elif sum(weights):
            found[name] = math.fsum(map(operator.mul, values, weights)) / sum(weights)
        else:
            found[name] = sum(values) / len(values)
    return found


def _plain(value: Any) -> Any:
    """A value that can be copied, sent and compared wherever statistics are."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return getattr(value, "__qualname__", None) or repr(value)


# --- words ------------------------------------------------------------------------------------------------------


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _times(found: measures.Distribution) -> str:
    if not found.count:
        return ""
    estimates = (f"p50 {_estimate(found, 0.5)}", f"p99 {_estimate(found, 0.99)}", f"longest {_estimate(found, 1)}")
    return ", ".join([f"mean {_time(found.mean)}", *estimates])


def _estimate(found: measures.Distribution, share: float) -> str:
    estimate = found.quantile(share)
    if math.isinf(estimate):
        return f"over {_time(found.bounds[-1])}"
    return f"{'within' if share == 1 else 'about'} {_time(estimate)}"


def _time(seconds: float) -> str:
    if seconds >= 1 or not seconds:
        return f"{_number(seconds)} s"
    return f"{_number(seconds * 1e3)} ms" if seconds >= 0.001 else f"{_number(seconds * 1e6)} µs"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
