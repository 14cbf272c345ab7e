"""Recordings made by the simulator: a sidecar of which everything is known, for tests that need no sockets."""

from __future__ import annotations

import itertools

from carpool import measures
from carpool.scheduling import own_time, scheduler, window
from carpool_sidecar.planning import engine, replay, service_times, traffic
from carpool_sidecar.recording import document

TEN = service_times.Predictor(service_times.Affine(0.010, 0.0005), 0.001, 1, 0.05)


def recording(
    setting: document.Setting,
    rate: float = 300.0,
    seconds: float = 10.0,
    predictor: service_times.Predictor = TEN,
    rows: int = 1,
    learned: dict[str, float] | None = None,
    own: own_time.OwnTime = own_time.NO_TIME,
) -> document.Recording:
    """What a sidecar with these settings would have recorded, behind Poisson callers."""
    bounds = replay.scheduler_limits(setting)

    def make(clock):
        ids = itertools.count()
        return scheduler.Scheduler(bounds, window.Window(bounds), clock, lambda: str(next(ids)))

    load = traffic.Open(traffic.poisson(rate, 3), seconds, traffic.RequestKind(rows, size=100 * rows))
    learned = dict(learned or {})
    if any(own):
        learned |= {"own_batch_seconds": own.batch, "own_request_seconds": own.request}
    return of(engine.simulate(make, predictor, load, own=own), setting, rows, learned)


def of(result: engine.Result, setting: document.Setting, rows: int, learned: dict[str, float]) -> document.Recording:
    histograms = {name: measures.Histogram(measures.SECONDS) for name in ("wait", "predictor", "request")}
    histograms["batch_size"] = measures.Histogram(measures.SIZES)
    for outcome in result.outcomes:
        histograms["request"].observe(outcome.finished - outcome.read)
        histograms["wait"].observe(outcome.left - outcome.read)
    batches = sorted(result.round_trips)
    for batch in batches:
        histograms["predictor"].observe(batch.took)
        histograms["batch_size"].observe(batch.rows)
    count = len(result.outcomes)
    block = document.Block(
        began=1_700_000_000.0,
        ended=1_700_000_000.0 + result.end,
        at=[round(outcome.read * 1e6) for outcome in result.outcomes],
        rows=[rows] * count,
        bytes=[100 * rows] * count,
        keys=[1] * count,
        refused=0,
        batches=document.Batches(
            sent=[round(batch.left * 1e6) for batch in batches],
            rows=[batch.rows for batch in batches],
            took=[round(batch.took * 1e6) for batch in batches],
        ),
        measured=document.Measured(
            **{
                name: document.Histogram(histogram.read().counts, histogram.read().sum)
                for name, histogram in histograms.items()
            }
        ),
    )
    head = document.Head(version="1", settings=setting, learned=learned)
    return document.Recording(head, [(setting, block)], 0)


def written(found: document.Recording) -> bytes:
    """As /arrivals answers."""
    return document.encode([found.head, *(block for _, block in found.blocks)])
