"""What would have been: recorded arrivals through the production scheduler under any settings, and the figures of it.

The predictor is the one that recorded batches tell of which had it to themselves. If those are few or too much alike,
it is what the sidecar learned. If that learned nothing, recorded batches are shown to the same model that the adaptive
policy learns with. If it is recorded what the sidecar takes itself, its core is simulated as well, and the predictor is
the one behind which such a core sees the round trips that were recorded. Before the recording begins its last part is
played, so that the policy has learned what it had learned then; nothing of that counts. Times are seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from carpool import measures
from carpool.scheduling import adaptive, limits, messages, own_time, predictor_model, scheduler, window
from carpool_sidecar.planning import engine, planner, recorded, service_times, traffic
from carpool_sidecar.recording import document

LEARNING = 0.25
"""So much of a recording is played before it, to learn from."""

# The sidecar's own defaults, in its units.
_WINDOW_LATENCY, _MOST_IN_FLIGHT = 500.0, 8

_TICK = 0.001  # of the timers that carry out the policy's waits
_USUAL_NOISE, _MOST_NOISE = 0.05, 0.5
# Predictors that are tried to find the one behind a busy core, each with so many of the requests at most.
_TRIES, _TRIED = 4, 10_000
# So many lone batches make a line, if the standard error of its slope matters less than so much.
_ENOUGH, _SURE = 50, 0.05


class Model(NamedTuple):
    """The predictor of a replay, and the batches that it was learned from.

    `largest` is the size that few batches exceeded (1 in 100), `is_varied` whether sizes differed enough to tell what
    an instance takes. `own` is what the sidecar takes itself; no time if that is not known.
    """

    predictor: service_times.Predictor
    batches: int
    largest: int
    is_varied: bool
    own: own_time.OwnTime = own_time.NO_TIME

    @property
    def words(self) -> str:
        """The time of a batch as `service_times.parse` reads it."""
        one, none = (self.predictor.service.seconds(rows, 0.0) for rows in (1, 0))
        return f"{none * 1000:.4g}+{(one - none) * 1000:.3g}n"


class Figures(NamedTuple):
    """What callers got. Seconds; `in_time` and `refused` are shares of all requests, `busy` of the time.

    `mean`, `p50` and `p99` are of answered requests; `wait` is the mean time until the first rows left. `margin` is two
    standard errors of `in_time`. `everybody` has the times of all requests as the sidecar sees them, from when it reads
    one until an answer or an error, in its own buckets.
    """

    requests: int
    rate: float
    busy: float
    mean_batch: float
    wait: float
    mean: float
    p50: float
    p99: float
    refused: float
    in_time: float
    margin: float
    everybody: measures.Distribution


class Nothing(ValueError):
    """There is too little to replay."""


def model(recording: document.Recording, blocks: Sequence[document.Block]) -> Model:
    """The predictor as these blocks show it. Raises `Nothing` if no batch came back in them."""
    sent = sorted(
        (block.began + at / 1e6, rows, took / 1e6)
        for block in blocks
        for at, rows, took in zip(block.batches.sent, block.batches.rows, block.batches.took, strict=True)
    )
    if not sent:
        raise Nothing("no batch came back from the predictor in this time: how long it takes is not known")
    watched, lone = _watch(sent)
    sizes = sorted(rows for _, rows, _ in sent)
    told = recording.head.learned
    overhead, workers = told.get("overhead_seconds", watched.overhead), int(told.get("workers", watched.workers))
    noise = min(_MOST_NOISE, watched.round_trip.spread) if watched.round_trip.is_trusted else _USUAL_NOISE
    line = _line(lone)
    if line is not None:
        fixed, per_row, noise = max(0.0, line[0] - overhead), line[1], min(_MOST_NOISE, line[2])
    elif told.get("service_fixed_seconds", 0.0) + told.get("service_instance_seconds", 0.0) > 0:
        fixed, per_row = told["service_fixed_seconds"], told["service_instance_seconds"]
    else:
        fixed, per_row = watched.fixed_work, watched.work(1) - watched.fixed_work
    predictor = service_times.Predictor(service_times.Affine(fixed, max(0.0, per_row)), overhead, workers, noise)
    largest, is_varied = int(engine.quantile(sizes, 0.99)), line is not None or _is_varied(sizes)
    own = recorded_own_time(recording)
    if any(own):
        service = _behind_the_core(predictor, (fixed, max(0.0, per_row)), own, recording.head.settings, blocks, sent)
        predictor = predictor._replace(service=service)
    return Model(predictor, len(sent), largest, is_varied, own)


def recorded_own_time(recording: document.Recording) -> own_time.OwnTime:
    """What the sidecar took itself, as it had measured it; no time if it had not."""
    told = recording.head.learned
    return own_time.OwnTime(told.get("own_batch_seconds", 0.0), told.get("own_request_seconds", 0.0))


def replay(
    setting: document.Setting,
    predictor: service_times.Predictor,
    arrivals: recorded.Arrivals,
    slo: float = math.inf,
    factor: float = 1.0,
    own: own_time.OwnTime = own_time.NO_TIME,
) -> Figures:
    """One pod under these settings, with so many times the arrivals. `slo` is what `in_time` is judged by."""
    return _figures(_simulated(setting, predictor, arrivals, factor, own), LEARNING * arrivals.span, slo)


def _simulated(
    setting: document.Setting,
    predictor: service_times.Predictor,
    arrivals: recorded.Arrivals,
    factor: float,
    own: own_time.OwnTime,
) -> engine.Result:
    before = LEARNING * arrivals.span
    workload = recorded.Replay(arrivals.stream(factor, planner.SEED, before), before + arrivals.span)
    bounds = scheduler_limits(setting)

    def make(clock: engine.Clock) -> engine.Scheduler:
        ids = itertools.count()
        policy: adaptive.Adaptive | window.Window
        if setting.policy == "adaptive":
            policy = adaptive.Adaptive(bounds, _TICK)
            policy.predictor.hint_overhead(predictor.overhead)  # which the sidecar measures when it starts
        else:
            policy = window.Window(bounds, _TICK)
        return scheduler.Scheduler(bounds, policy, clock, lambda: str(next(ids)))

    return engine.simulate(make, predictor, workload, 1, traffic.LeastLoaded, planner.SEED, own)


_Sent = Sequence[tuple[float, int, float]]  # of batches: when they left, their rows, seconds until they were back


def _behind_the_core(
    predictor: service_times.Predictor,
    guess: tuple[float, float],
    own: own_time.OwnTime,
    setting: document.Setting,
    blocks: Sequence[document.Block],
    sent: _Sent,
) -> service_times.Affine:
    """The predictor's own time, of round trips that the sidecar's core has a part in; `guess` leaves it in.

    Its part depends on how busy the core was, so it is found by trying: what a replay sees beyond what was recorded
    comes off the predictor's time.
    """
    arrivals = recorded.arrivals(recorded.latest(blocks, _TRIED))
    lone = _line(_watch(sent)[1])
    fixed, per_row = guess
    for _ in range(_TRIES):
        tried = predictor._replace(service=service_times.Affine(fixed, per_row))
        found = sorted(_simulated(setting, tried, arrivals, 1.0, own).round_trips)
        seen = _line(_watch(found)[1]) if found else None
        if lone is not None and seen is not None:
            fixed, per_row = fixed + lone[0] - seen[0], per_row + lone[1] - seen[1]
        elif found:  # a full queue answers a difference with a larger one, so only half of it counts
            fixed += (_mean([took for *_, took in sent]) - _mean([took for *_, took in found])) / 2
        fixed, per_row = max(0.0, fixed), max(0.0, per_row)
    return service_times.Affine(fixed, per_row)


class Measured(NamedTuple):
    """What the sidecar counted, by the names of `Figures`; all of it but quantiles is exact."""

    requests: int
    rate: float
    mean_batch: float
    wait: float
    refused: float
    everybody: measures.Distribution


def measured(blocks: Sequence[document.Block], arrivals: recorded.Arrivals) -> Measured:
    """What was counted while these blocks were written."""
    found = [block.measured for block in blocks]
    return Measured(
        requests=len(arrivals.times),
        rate=arrivals.rate,
        mean_batch=document.distribution([each.batch_size for each in found], measures.SIZES).mean,
        wait=document.distribution([each.wait for each in found], measures.SECONDS).mean,
        refused=sum(block.refused for block in blocks) / len(arrivals.times),
        everybody=document.distribution([each.request for each in found], measures.SECONDS),
    )


def scheduler_limits(setting: document.Setting) -> limits.Limits:
    """What the scheduler obeys, as the sidecar makes it of its settings.

    What an instance costs is known where that is its bytes, taken to be those of the request in equal parts.
    """
    allowed = setting.allowed_batch_sizes
    has_cost = bool(setting.max_batch_cost) and setting.instance_cost == "bytes"
    return limits.Limits(
        max_batch_size=allowed[-1] if allowed else setting.max_batch_size,
        max_latency=(_WINDOW_LATENCY if setting.max_latency is None else setting.max_latency) / 1000,
        timeout=setting.timeout,
        slo=math.inf if setting.slo is None else setting.slo / 1000,
        max_in_flight=setting.max_in_flight or _MOST_IN_FLIGHT,
        learns_in_flight=setting.max_in_flight is None,
        max_queue_instances=setting.max_queue_instances,
        max_queue_bytes=setting.max_queue_bytes,
        max_batch_bytes=setting.max_batch_bytes or math.inf,
        max_batch_cost=setting.max_batch_cost if has_cost else math.inf,
        row_sizes=traffic.row_sizes,
        row_costs=traffic.row_sizes if has_cost else None,
        allowed_sizes=allowed,
        small_batch_threshold=setting.small_batch_threshold,
        priority_ageing=setting.priority_ageing / 1000,
    )


def _watch(
    sent: _Sent,
) -> tuple[predictor_model.PredictorModel, list[tuple[int, float]]]:
    """The adaptive policy's model of the predictor, after these batches: when each left, its rows, and what it took.

    And rows and seconds of those batches that had the predictor to themselves when they left.
    """
    watched = predictor_model.PredictorModel(limits.Limits(learns_in_flight=True))
    ends = sorted((left + took, number) for number, (left, _, took) in enumerate(sent))
    out: dict[int, messages.Batch] = {}
    lone: list[tuple[int, float]] = []
    following = 0
    for end, number in ends:
        while following < len(sent) and sent[following][0] <= end:
            left, rows, took = sent[following]
            if not out:
                lone.append((rows, took))
            part = messages.Part(messages.Request("key", rows), 0, rows)
            out[following] = messages.Batch(str(following), "key", [part], messages.Reason.FULL)
            watched.sent(out[following], left)
            following += 1
        watched.completed(out.pop(number), end)
    return watched, lone


def _is_varied(sizes: Sequence[int]) -> bool:
    """Whether one batch in twenty at least is smaller than most by a quarter, or larger."""
    usual = sizes[len(sizes) // 2]
    return sum(abs(size - usual) > usual / 4 for size in sizes) > len(sizes) / 20


def _line(lone: Sequence[tuple[int, float]]) -> tuple[float, float, float] | None:
    """Seconds of a call, of an instance, and the noise (relative), by least squares over all of these batches.

    What the policy has learned tells of the last few only, which may all be of one size. None if these cannot tell
    either, because there are few or their sizes are too much alike.
    """
    count = len(lone)
    if count < _ENOUGH:
        return None
    mean_rows, mean_took = sum(rows for rows, _ in lone) / count, sum(took for _, took in lone) / count
    varied = sum((rows - mean_rows) ** 2 for rows, _ in lone)
    if not varied:
        return None
    per_row = sum((rows - mean_rows) * (took - mean_took) for rows, took in lone) / varied
    per_row = min(max(per_row, 0.0), mean_took / mean_rows)
    fixed = mean_took - per_row * mean_rows
    rest = sum((took - fixed - per_row * rows) ** 2 for rows, took in lone) / (count - 2)
    if math.sqrt(rest / varied) * mean_rows > _SURE * mean_took:
        return None
    return fixed, per_row, math.sqrt(rest) / mean_took


def _figures(result: engine.Result, before: float, slo: float) -> Figures:
    span = result.end - before
    counted = [outcome for outcome in result.outcomes if outcome.arrived >= before]
    answered = [outcome for outcome in counted if outcome.refused is None]
    took = sorted(outcome.finished - outcome.arrived for outcome in answered)
    histogram = measures.Histogram(measures.SECONDS)
    histogram.observe_all([outcome.finished - outcome.read for outcome in counted])
    waits = [outcome.left - outcome.read for outcome in counted if outcome.left < math.inf]
    sizes = [batch.rows for batch in result.batches if before <= batch.sent <= result.end]
    busy = sum(max(0.0, min(batch.ended, result.end) - max(batch.started, before)) for batch in result.batches)
    hits = [outcome.refused is None and outcome.finished - outcome.arrived <= slo for outcome in counted]
    in_time, margin = planner.share(hits)
    return Figures(
        requests=len(counted),
        rate=len(counted) / span,
        busy=busy / (span * result.workers),
        mean_batch=_mean(sizes),
        wait=_mean(waits),
        mean=_mean(took),
        p50=engine.quantile(took, 0.50),
        p99=engine.quantile(took, 0.99),
        refused=1 - len(answered) / len(counted) if counted else 0.0,
        in_time=in_time,
        margin=margin,
        everybody=histogram.read(),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
