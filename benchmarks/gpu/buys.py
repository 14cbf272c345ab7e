"""What batching buys: the same callers without and with the sidecar, and whether answers stay what they were.

Both ask the same predictor process. Without the sidecar it computes one request at a time, as a model server without
batching does. Each number of callers is measured without and with the sidecar, one right after the other.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import measuring, systems

CALLERS = (1, 8, 32, 128, 512)
QUICK_CALLERS = (1, 32)
AT = 128  # callers at which the target is asked, and at which precisions are compared
TIMES = 10.0  # target: so many times the requests/s of one at a time
BUSY = 0.90  # target: share of time in which the GPU works
AGREEING = 256  # instances whose answers are compared
QUICK_AGREEING = 32
# Cosine to the answer in float32, one instance at a time: what rounding may cost.
LEAST_COSINE = {"float32": 0.999999, "float16": 0.999, "bfloat16": 0.99}
_TOGETHER = 32


def seconds(bench: measuring.Bench) -> float:
    """About how long `measure` takes, for a model that is ready in 20 seconds."""
    counts = QUICK_CALLERS if bench.quick else CALLERS
    return 25 + len(counts) * 2 * (bench.seconds + bench.warm_up + 0.5)


def measure(bench: measuring.Bench, model: systems.Model, precision: str) -> dict[str, Any]:
    """One row for each number of callers, without and with the sidecar."""
    setup = bench.setup(model, precision)
    rows = []
    alone, sidecar = systems.Alone(), systems.Sidecar()
    with alone.running(setup) as predictor, sidecar.before(predictor, setup) as batched:
        for count in QUICK_CALLERS if bench.quick else CALLERS:
            rows.append(bench.closed(alone.name, predictor, count))
            rows.append(bench.closed(sidecar.name, batched, count))
    return {"model": model.name, "precision": precision, "max_batch": setup.max_batch, "rows": rows}


def agreement_seconds(bench: measuring.Bench) -> float:
    """About how long `agree` takes."""
    return len(systems.PRECISIONS) * (25 + bench.seconds + bench.warm_up)


def agree(bench: measuring.Bench, model: systems.Model) -> dict[str, Any]:
    """Answers in each precision, one at a time and in batches, beside float32 one at a time; and how fast each is."""
    wanted: list[list[float]] = []
    rows = []
    for precision in systems.PRECISIONS:
        setup = bench.setup(model, precision)
        sidecar = systems.Sidecar()
        with systems.Alone().running(setup) as predictor:
            single = _one_by_one(predictor, QUICK_AGREEING if bench.quick else AGREEING)
            together = _together(model, predictor, len(single))
            wanted = wanted or single
            with sidecar.before(predictor, setup) as batched:
                row = bench.closed(f"{precision}, with", batched, 32 if bench.quick else AT)
        for kind, found in (("single", single), ("batch", together)):
            difference, cosine = measuring.agreement(found, wanted)
            row |= {f"{kind}_difference": difference, f"{kind}_cosine": cosine}
        bench.say(
            f"  {precision}: largest difference {row['batch_difference']:.1e}, least cosine {row['batch_cosine']:.6f}"
        )
        rows.append(row | {"precision": precision, "compared": len(wanted), "least_cosine": LEAST_COSINE[precision]})
    return {"model": model.name, "rows": rows}


def _one_by_one(predictor: systems.Running, count: int) -> list[list[float]]:
    with measuring.Asker(predictor) as asker:
        return [predictor.numbers(asker.ask(body)) for body in predictor.bodies[:count]]


def _together(model: systems.Model, predictor: systems.Running, count: int) -> list[list[float]]:
    """The same instances, in requests of several."""
    instances = list(model.instances())[:count]
    found: list[list[float]] = []
    with measuring.Asker(predictor) as asker:
        for at in range(0, len(instances), _TOGETHER):
            body = b'{"instances":[%b]}' % b",".join(instances[at : at + _TOGETHER])
            found += model.answered(asker.ask(body))
    return found
