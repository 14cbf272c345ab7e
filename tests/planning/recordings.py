"""Recordings made by the simulator: a sidecar of which everything is known, for tests that need no sockets."""

from __future__ import annotations

from carpool import measures
from carpool.scheduling import own_time
from carpool_sidecar.planning import engine, planner, replay, service_times, traffic
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
    after: float = 0.0,
) -> document.Recording:
    """What a sidecar with these settings would have recorded, behind Poisson callers, once it has run for so long."""
    make = planner.make_scheduler(replay.scheduler_limits(setting), setting.policy, predictor.overhead)
    load = traffic.Open(traffic.poisson(rate, 3), after + seconds, traffic.RequestKind(rows, size=100 * rows))
    learned = dict(learned or {})
    if any(own):
        learned |= {"own_batch_seconds": own.batch, "own_request_seconds": own.request}
    return of(engine.simulate(make, predictor, load, own=own), setting, rows, learned, after)


def of(
    result: engine.Result, setting: document.Setting, rows: int, learned: dict[str, float], after: float
) -> document.Recording:
    histograms = {name: measures.Histogram(measures.SECONDS) for name in ("wait", "predictor", "request")}
    histograms["batch_size"] = measures.Histogram(measures.SIZES)
    outcomes = [outcome for outcome in result.outcomes if outcome.read >= after]
    for outcome in outcomes:
        histograms["request"].observe(outcome.finished - outcome.read)
        histograms["wait"].observe(outcome.left - outcome.read)
    batches = sorted(trip for trip in result.round_trips if trip.left >= after)
    for batch in batches:
        histograms["predictor"].observe(batch.took)
        histograms["batch_size"].observe(batch.rows)
    count = len(outcomes)
    block = document.Block(
        began=1_700_000_000.0 + after,
        ended=1_700_000_000.0 + result.end,
        at=[round((outcome.read - after) * 1e6) for outcome in outcomes],
        rows=[rows] * count,
        bytes=[100 * rows] * count,
        keys=[1] * count,
        refused=0,
        batches=document.Batches(
            sent=[round((batch.left - after) * 1e6) for batch in batches],
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
