"""A plan in words and columns, for people, and as plain values, for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from carpool_sidecar.planning import forecasts, planner

_HEADS = (
    ("", "pods", "requests/s", "load", "busy", "mean", "p50", "p99", "in time"),
    ("", "", "per pod", "", "", "batch", "ms", "ms", ""),
)


def text(plan: planner.Plan, service: str) -> str:
    """The answer, the table, and why; `service` is the predictor's time as the person wrote it."""
    question = plan.question
    return "\n".join(
        [
            f"{_pods(plan.chosen.pods)} for {question.rate:,.10g} requests/s, {_percent(question.share)} of them "
            f"answered within {_ms(question.slo)} ms.",
            "",
            *_table(plan),
            "",
            *_reasons(plan),
            "",
            *_basis(plan, service),
        ]
    )


def values(plan: planner.Plan, service: str) -> dict[str, Any]:
    """The same as JSON values; times are milliseconds."""
    question = plan.question
    predictor = question.predictor
    return {
        "pods": plan.chosen.pods,
        "exact_to_pods": plan.step,
        "rate": question.rate,
        "slo_ms": question.slo * 1000,
        "share": question.share,
        "service": service,
        "max_batch_size": question.max_batch_size,
        "overhead_ms": predictor.overhead * 1000,
        "noise": predictor.variation,
        "workers": predictor.workers,
        "balancer": question.balancer.value,
        "chosen": _row(plan.chosen),
        "fewer": _row(plan.fewer) if plan.fewer else None,
        "more": _row(plan.more),
        "simulated_requests": plan.simulated,
    }


def _row(found: forecasts.Forecast) -> dict[str, float]:
    row = {name: round(value, 6) for name, value in found._asdict().items() if name not in ("p50", "p99")}
    return row | {f"{name}_ms": round(getattr(found, name) * 1000, 3) for name in ("p50", "p99")}


def _table(plan: planner.Plan) -> Iterator[str]:
    labelled = (("too few", plan.fewer), ("plan", plan.chosen), ("head-room", plan.more))
    rows = [*_HEADS, *(_cells(label, found) for label, found in labelled if found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for label, *cells in rows:
        line = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield f"{label:<{widths[0]}}  {line}".rstrip()


def _cells(label: str, found: forecasts.Forecast) -> Sequence[str]:
    return (
        label,
        f"{found.pods:,}",
        f"{found.rate_per_pod:,.4g}" if found.rate_per_pod < 1000 else f"{found.rate_per_pod:,.0f}",
        f"{found.load:.0%}" if found.load >= 0.1 else f"{found.load:.1%}",
        f"{found.busy:.0%}",
        f"{found.mean_batch:.1f}",
        f"{found.p50 * 1000:.1f}",
        f"{found.p99 * 1000:.1f}",
        f"{found.in_time:.2%} ± {found.margin * 100:.2f}",
    )


def _reasons(plan: planner.Plan) -> Iterator[str]:
    one = plan.question.predictor.service.seconds(1, 0.0)
    if plan.fewer is not None:
        yield f"{_pods(plan.fewer.pods)}: {_why_not(plan.fewer)}"
    elif plan.chosen.load < 1:
        yield f"1 pod is enough: it could do {plan.question.capacity:,.0f} requests/s, in full batches."
    if plan.question.slo < 2 * one + plan.question.predictor.overhead:
        yield "The objective is shorter than two batches of one instance: who comes just after one has left is late, so"
        yield "nearly every request has to find an idle pod."
    spare = plan.more.pods - plan.chosen.pods
    room = plan.more.pods / plan.chosen.pods - 1
    yield f"{_pods(plan.more.pods)}: room for {room:.0%} more requests, or for {_pods(spare)} out of service."


def _why_not(found: forecasts.Forecast) -> str:
    missed = 1 - found.in_time
    if found.load >= 1:
        return f"asked for {found.load:.0%} of what full batches can do; {missed:.1%} would be refused or late."
    late = max(0.0, missed - found.refused)
    return (
        f"queues are too long too often at {found.load:.0%} of capacity; {found.refused:.1%} would be refused early "
        f"and {late:.1%} late."
    )


def _basis(plan: planner.Plan, service: str) -> Iterator[str]:
    question = plan.question
    predictor = question.predictor
    workers = f", {predictor.workers} at once" if predictor.workers > 1 else ""
    exact = f" The answer is exact to {plan.step} pods." if plan.step > 1 else ""
    yield (
        f"Simulated {plan.simulated:,} requests (one instance each, Poisson) through the sidecar's own scheduler, "
        f"policy adaptive.{exact}"
    )
    yield (
        f"Balancer: {question.balancer.value}. Predictor: {service} ms for a batch of n, at most "
        f"{question.max_batch_size}{workers}; noise {predictor.variation:.0%}; {_ms(predictor.overhead)} ms around it."
    )
    yield "load: of what full batches can do. busy: of the time; high, because batches grow to fill it."
    yield "in time: answered within the objective, of all requests; ± two standard errors."


def _pods(count: int) -> str:
    return f"{count:,} pod" if count == 1 else f"{count:,} pods"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.10g}"


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"
