"""All that a viewer sees but the batches, taken at one moment as one value.

Counts are those of `/metrics`, read from the same objects, so both always agree. What is a rate or a quantile is made
of the counts some seconds before: viewers need no history of their own, and all of them see the same.
"""

from __future__ import annotations

import heapq
import math
import operator
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

import carpool_sidecar
from carpool import measures
from carpool.scheduling import messages, scheduler
from carpool_sidecar import config, metrics
from carpool_sidecar.live import recorder, sentences

RATE_SECONDS = 2.0
"""Rates are those of about so many seconds, or of fewer if nobody looked before."""
QUANTILE_SECONDS = 10.0
"""Quantiles are those of about so many seconds, likewise."""
MOST_QUEUES, MOST_IN_FLIGHT = 24, 16

_milliseconds = recorder.milliseconds


class QueueShown(msgspec.Struct):
    """What waits under one batch key. `waited` is the oldest request's, in milliseconds; `cap` is a batch's."""

    path: str
    key: str
    rows: int
    cap: int
    bytes: int
    waited: float


class OutShown(msgspec.Struct):
    """A batch at the predictor, for `out` milliseconds so far."""

    id: str
    reason: str
    path: str
    key: str
    rows: int
    cap: int
    requests: int
    out: float


class Quantiles(msgspec.Struct):
    """Of `count` values, in milliseconds, estimated as Prometheus does; None where there are no values."""

    count: int
    p50: float | None
    p99: float | None


class Rates(msgspec.Struct):
    """A second, over the last seconds. `rows` are instances that left in batches."""

    arrivals: float
    answers: float
    batches: float
    rows: float


class Totals(msgspec.Struct):
    """Since the process began: the values of `/metrics`. Maps leave out what is 0."""

    answers: Mapping[str, int]
    codes: Mapping[str, int]
    batches: Mapping[str, int]
    rows: int
    refused: Mapping[str, int]
    unbatched: Mapping[str, int]
    predictor_errors: Mapping[str, int]
    retries: Mapping[str, int]
    internal_errors: Mapping[str, int]
    abandoned: int


class Snapshot(msgspec.Struct):
    """What `event: snapshot` of the stream has. Moments are seconds since 1970 (UTC), durations milliseconds."""

    version: str
    process: str
    at: float
    uptime: float
    phase: str
    policy: str
    batching: bool
    rates: Rates | None
    window: float
    wait: Quantiles
    predictor: Quantiles
    answer: Quantiles
    totals: Totals
    queued_rows: int
    queued_bytes: int
    suspects: int
    keys: int
    queues: Sequence[QueueShown]
    in_flight: int
    in_flight_limit: int
    out: Sequence[OutShown]
    open_requests: int
    connections: int
    held_bytes: int
    learned: Mapping[str, float]
    sentences: Sequence[str]
    largest_batch: int
    knee: int
    settings: Mapping[str, object]
    viewers: int


class Sources(NamedTuple):
    """What snapshots are taken of. `clock` is the scheduler's, `wall` gives the Unix time."""

    core: scheduler.Scheduler
    counters: metrics.Metrics
    settings: Callable[[], config.Settings]
    phase: Callable[[], str]
    connections: Callable[[], int]
    clock: Callable[[], float]
    wall: Callable[[], float]


class _Sample(NamedTuple):
    """The counts of one moment, as far as rates and quantiles are made of them."""

    at: float
    arrived: float
    answered: float
    batches: float
    rows: float
    wait: measures.Distribution
    predictor: measures.Distribution
    answer: measures.Distribution


class Snapshots:
    """Takes snapshots; they know each other, so take them a few times a second. `forget` begins anew."""

    # State: the samples of the last seconds, the oldest first.
    def __init__(self, sources: Sources, keys: recorder.Keys) -> None:
        self._sources = sources
        self._keys = keys
        self._samples: deque[_Sample] = deque()
        self._process = secrets.token_hex(8)
        self._began = sources.clock()
        self.epoch = sources.wall() - self._began
        """The Unix time at the clock's zero."""

    def forget(self) -> None:
        """The next snapshot knows no rates."""
        self._samples.clear()

    def take(self, viewers: int) -> Snapshot:
        """What is now."""
        sources, core = self._sources, self._sources.core
        now, settings, learned = sources.clock(), sources.settings(), core.learned()
        totals = _totals(sources.counters)
        sample = _sample(now, totals, sources)
        before = self._remember(sample)
        queues = _queues(core, now, self._keys)
        return Snapshot(
            version=carpool_sidecar.__version__,
            process=self._process,
            at=round(self.epoch + now, 3),
            uptime=round(now - self._began, 1),
            phase=sources.phase(),
            policy="adaptive" if settings.is_adaptive else "window",
            batching=settings.enable_batcher,
            rates=_rates(sample, self._samples),
            window=round(now - before.at, 2),
            wait=_quantiles(sample.wait, before.wait),
            predictor=_quantiles(sample.predictor, before.predictor),
            answer=_quantiles(sample.answer, before.answer),
            totals=totals,
            queued_rows=core.waiting_rows,
            queued_bytes=core.backlog.size,
            suspects=core.isolation.quarantine.rows,
            keys=len(core.backlog),
            queues=queues,
            in_flight=len(core.in_flight),
            in_flight_limit=int(min(core.policy.max_in_flight, 1_000_000)),
            out=_out(core, now, self._keys),
            open_requests=core.ledger.active,
            connections=sources.connections(),
            held_bytes=core.ledger.held,
            learned={name: value for name, value in learned.items() if math.isfinite(value)},
            sentences=_sentences(settings, core, learned),
            largest_batch=int(core.limits.max_batch_size),
            knee=sentences.knee(learned, int(core.limits.max_batch_size)) if settings.is_adaptive else 0,
            settings={name: getattr(settings, name) for name in settings.live},
            viewers=viewers,
        )

    def _remember(self, sample: _Sample) -> _Sample:
        """Keep it; returns the one that quantiles begin with."""
        samples = self._samples
        samples.append(sample)
        while len(samples) > 2 and samples[1].at <= sample.at - QUANTILE_SECONDS:
            samples.popleft()
        return samples[0]


def _totals(counters: metrics.Metrics) -> Totals:
    lanes: dict[str, int] = {}
    codes: dict[str, int] = {}
    for counter in (counters.requests, counters.rpc):
        for (lane, code), count in counter.read().items():
            lanes[lane] = lanes.get(lane, 0) + int(count)
            codes[code] = codes.get(code, 0) + int(count)
    return Totals(
        answers=lanes,
        codes=codes,
        batches=_by_label(counters.batches),
        rows=int(counters.batch_size.read().sum),
        refused=_by_label(counters.refused),
        unbatched=_by_label(counters.not_batched),
        predictor_errors=_by_label(counters.predictor_errors),
        retries=_by_label(counters.retries),
        internal_errors=_by_label(counters.internal_errors),
        abandoned=int(counters.abandoned.value),
    )


def _by_label(counter: metrics.Counter[*tuple[object, ...]]) -> dict[str, int]:
    return {label: int(count) for (label,), count in counter.read().items() if count}


def _sample(now: float, totals: Totals, sources: Sources) -> _Sample:
    counters = sources.counters
    answered = sum(totals.answers.values())
    # Whoever came was answered, left, or is still here.
    arrived = answered + totals.abandoned + sources.core.ledger.active
    return _Sample(
        now, arrived, answered, sum(totals.batches.values()), totals.rows, counters.queue_seconds.read(),
        counters.predictor_seconds.read(), counters.request_seconds.read(),
    )  # fmt: skip


def _rates(sample: _Sample, samples: Sequence[_Sample]) -> Rates | None:
    since = next((each for each in reversed(samples) if each.at <= sample.at - RATE_SECONDS), samples[0])
    seconds = sample.at - since.at
    if seconds <= 0:
        return None
    # Requests that came before `since` and left early may make it look as if fewer than none had come.
    counts = (max(0.0, new - old) for new, old in zip(sample[1:5], since[1:5], strict=True))
    arrivals, answers, batches, rows = (round(count / seconds, 1) for count in counts)
    return Rates(arrivals, answers, batches, rows)


def _quantiles(latest: measures.Distribution, before: measures.Distribution) -> Quantiles:
    values = latest.since(before)
    if not values.count:
        return Quantiles(0, None, None)
    return Quantiles(values.count, _milliseconds(values.p50), _milliseconds(values.p99))


def _queues(core: scheduler.Scheduler, now: float, keys: recorder.Keys) -> list[QueueShown]:
    """The longest queues, the longest first."""
    shown = []
    for queue in heapq.nlargest(MOST_QUEUES, core.backlog.queues(), key=operator.attrgetter("rows")):
        oldest = queue.oldest
        waited = round((now - oldest.arrived) * 1000, 1)
        path, digest = recorder.path_of(oldest.tag.target), keys.digest(oldest.key)
        shown.append(QueueShown(path, digest, queue.rows, queue.max_batch_size, queue.size, waited))
    return shown


def _out(core: scheduler.Scheduler, now: float, keys: recorder.Keys) -> list[OutShown]:
    """Batches at the predictor, those that have been there for longest first."""

    def shown(batch: messages.Batch) -> OutShown:
        first = batch.parts[0].request
        path, digest, cap = (
            recorder.path_of(first.tag.target),
            keys.digest(batch.key),
            recorder.cap_of(first, core.limits),
        )
        out = round((now - batch.dispatched) * 1000, 1)
        return OutShown(batch.id, str(batch.reason), path, digest, batch.rows, cap, len(batch.parts), out)

    oldest = heapq.nsmallest(MOST_IN_FLIGHT, core.in_flight, key=operator.attrgetter("dispatched"))
    return [shown(batch) for batch in oldest]


def _sentences(settings: config.Settings, core: scheduler.Scheduler, learned: Mapping[str, float]) -> list[str]:
    if not settings.enable_batcher:
        by_probe = " By --from-probe answers in a batch have other texts than alone." if settings.from_probe else ""
        return [f"Nothing is batched: --enable-batcher is false.{by_probe}"]
    refused = [
        *sentences.refusals(core.smallest_limit(), core.smallest_bytes(), core.kept_apart()),
        *sentences.apart(settings.mix_forms, settings.group_by_length),
    ]
    if settings.is_adaptive:
        of_sizes = sentences.sizes(learned, int(core.limits.max_batch_size))
        return [*sentences.adaptive(learned), *of_sizes, *refused]
    size, most, learns = core.limits.max_batch_size, core.policy.max_in_flight, core.limits.learns_in_flight
    return [*sentences.window(size, settings.latency_bound, most, learns), *refused]
