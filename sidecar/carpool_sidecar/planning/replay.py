"""What would have been: recorded arrivals through the production scheduler under any settings, and the figures of it.

If it is recorded what the sidecar takes itself, its core is simulated as well. Before the recording begins its last
part is played, so that the policy has learned what it had learned then; nothing of that counts. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from carpool import measures
from carpool.scheduling import limits, own_time
from carpool_sidecar.planning import engine, planner, recorded, service_times, traffic
from carpool_sidecar.recording import document

LEARNING = 0.25
"""So much of a recording is played before it, to learn from."""

# The sidecar's own defaults, in its units.
_WINDOW_LATENCY, _MOST_IN_FLIGHT = 500.0, 8


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


def replay(
    setting: document.Setting,
    predictor: service_times.Predictor,
    arrivals: recorded.Arrivals,
    slo: float = math.inf,
    factor: float = 1.0,
    own: own_time.OwnTime = own_time.NO_TIME,
) -> Figures:
    """One pod under these settings, with so many times the arrivals. `slo` is what `in_time` is judged by."""
    return _figures(simulated(setting, predictor, arrivals, factor, own), LEARNING * arrivals.span, slo)


def simulated(
    setting: document.Setting,
    predictor: service_times.Predictor,
    arrivals: recorded.Arrivals,
    factor: float,
    own: own_time.OwnTime,
) -> engine.Result:
    """All that happens then, from when the last part of the recording is played on."""
    before = LEARNING * arrivals.span
    workload = recorded.Replay(arrivals.stream(factor, planner.SEED, before), before + arrivals.span)
    make = planner.make_scheduler(scheduler_limits(setting), setting.policy, predictor.overhead)
    return engine.simulate(make, predictor, workload, 1, traffic.LeastLoaded, planner.SEED, own)


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
        mean_batch=mean(sizes),
        wait=mean(waits),
        mean=mean(took),
        p50=engine.quantile(took, 0.50),
        p99=engine.quantile(took, 0.99),
        refused=1 - len(answered) / len(counted) if counted else 0.0,
        in_time=in_time,
        margin=margin,
        everybody=histogram.read(),
    )


def mean(values: Sequence[float]) -> float:
    """0 of none."""
    return sum(values) / len(values) if values else 0.0
