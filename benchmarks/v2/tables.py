"""The tables of the v2 benchmark and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.peers import samples
from benchmarks.v2 import before_triton, cells, run, stand

DISTURBED = 0.10
"""Share of the sidecar's core that others may take before the report says so."""

Value = Callable[[stand.Sample], float | None]


def duels(found: Sequence[run.DuelOutcome], markdown: bool = False, title: str = "v2 against v1") -> Table:
    """Two rows for each: the first format, and the second with its ratio to that."""
    titles = (
        "req/s",
        "ratio",
        "target",
        "p50 ms",
        "p99 ms",
        "CPU ms/req",
        "ratio",
        "sidecar busy",
        "stub busy",
        "batch",
    )
    table = _table(f"{title}, one core for the sidecar", ("body", "format"), titles, markdown)
    for each in found:
        for row in duel_rows(each):
            table.add_row(*row)
    return table


def duel_rows(found: run.DuelOutcome) -> list[list[str]]:
    """The rows of one duel, as text."""
    cost = [side.median(lambda sample: sample.cpu_per_request) for side in (found.first, found.second)]
    more = f"{cost[1] / cost[0]:.2f}" if cost[0] and cost[1] is not None else ""
    ratios, verdicts = ("", f"{found.ratio:.2f}"), ("", verdict(found.ratio >= found.duel.target))
    rows = []
    for side, ratio, target, cost_ratio, told in zip(
        (found.first, found.second), ratios, ("", f"{found.duel.target:g}"), ("", more), verdicts, strict=True
    ):
        start = [found.duel.title, side.title, f"{side.rate:,.0f}", ratio, target]
        rows.append([*start, *_latencies(side), *_costs(side, cost_ratio), failed(side.rounds) or told])
    return rows


def rpc(found: Sequence[run.Side], markdown: bool = False) -> Table:
    """The sidecar, and beside it what callers and predictor do without it."""
    titles = (
        "req/s",
        "target",
        "p50 ms",
        "p99 ms",
        "CPU ms/req",
        "sidecar busy",
        "predictor busy",
        "callers busy",
        "batch",
    )
    table = _table(f"gRPC ModelInfer, a tensor of {cells.TENSOR_BYTES} bytes", ("",), titles, markdown)
    for number, side in enumerate(found):
        table.add_row(*rpc_row(side, is_sidecar=number == 0))
    return table


def rpc_row(side: run.Side, is_sidecar: bool) -> list[str]:
    """One row, as text; what is the sidecar's is left out of the other."""
    start = [side.title, f"{side.rate:,.0f}", f"{cells.RPC_TARGET:,.0f}" if is_sidecar else "", *_latencies(side)]
    own = [(lambda s: s.cpu_per_request and s.cpu_per_request * 1e3, "{:.3f}"), (lambda s: s.busy, "{:.0%}")]
    costs = [_text(side, value, form) if is_sidecar else "" for value, form in own]
    others = [_text(side, lambda s: s.behind_busy, "{:.0%}"), _text(side, lambda s: s.load_busy, "{:.0%}")]
    told = verdict(side.rate >= cells.RPC_TARGET) if is_sidecar else ""
    return [
        *start,
        *costs,
        *others,
        _text(side, lambda s: s.batch, "{:.1f}") if is_sidecar else "",
        failed(side.rounds) or told,
    ]


def triton(found: Sequence[before_triton.Outcome], markdown: bool = False) -> Table:
    """One row for each system."""
    titles = ("req/s", "of the limit", "CPU ms/req", "p50 ms at 80%", "p99 ms at 80%", "client late ms")
    title = f"One core for each, {before_triton.CLOSED.connections} callers; then {found[0].offered:,.0f} requests/s"
    table = _table(title, ("system",), titles, markdown)
    for each in found:
        table.add_row(*triton_row(each))
    return table


def triton_row(found: before_triton.Outcome) -> list[str]:
    """One row, as text."""
    rate = _rate(found)
    closed = [
        f"{rate:,.0f}",
        f"{rate / cells.TRITON_MODEL.limit:.1%}",
        _number(found.closed, lambda s: s.cpu_per_request, 3),
    ]
    if found.open.is_saturated:
        return [found.system.name, *closed, "saturated", "", "", failed(found.closed) or failed(found.open)]
    times = [_number(found.open, value, 1) for value in (lambda s: s.p50, lambda s: s.p99)]
    late = _number(found.open, lambda s: s.lag_p99, 2)
    return [found.system.name, *closed, *times, late, failed(found.closed) or failed(found.open)]


def triton_verdicts(found: Sequence[before_triton.Outcome]) -> list[str]:
    """Each sidecar against the best of Triton's settings, figure by figure, in words."""
    alone = [each for each in found if each.system.policy is None]
    best, p99 = max(map(_rate, alone)), min(filter(None, map(_p99, alone)), default=0.0)
    told = []
    for each in found:
        if each.system.policy is None:
            continue
        ratio, slower = _rate(each) / best if best else 0.0, (_p99(each) or float("inf")) / p99 if p99 else 0.0
        told.append(
            f"{each.system.name}: {ratio:.2f} of Triton's best throughput ({verdict(ratio >= 1)}), "
            f"{slower:.2f} of its best p99 ({verdict(slower <= 1)})"
        )
    return told


def disturbances(found: run.Outcome) -> list[str]:
    """Where others took a noticeable part of the sidecar's core, in the median of the rounds."""
    sides = [(f"{each.duel.title}, {side.title}", side) for each in found.duels for side in (each.first, each.second)]
    sides += [(f"gRPC {side.title}", side) for side in found.rpc[:1]]  # the other one does not use that core
    shares = [(title, side.median(lambda sample: sample.others_busy) or 0.0) for title, side in sides]
    return [f"{title} ({share:.0%})" for title, share in shares if share > DISTURBED]


def as_json(found: run.Outcome, facts: dict[str, Any]) -> dict[str, Any]:
    """The whole run, round by round. Times in seconds, rates in requests per second."""
    return {
        **facts,
        "duels": duels_as_json(found.duels),
        "grpc": {"target": cells.RPC_TARGET, "rounds": {side.title: _rounds(side.rounds) for side in found.rpc}},
        "triton": [
            {
                "system": each.system.name,
                "offered": each.offered,
                "closed": _rounds(each.closed),
                "open": _rounds(each.open),
            }
            for each in found.triton
        ],
        "absent": found.absent,
    }


def duels_as_json(found: Sequence[run.DuelOutcome]) -> list[dict[str, Any]]:
    """Of each its ratio, its target, and every round of both formats."""
    return [
        {
            "name": each.duel.name,
            "ratio": each.ratio,
            "target": each.duel.target,
            "rounds": {side.title: _rounds(side.rounds) for side in (each.first, each.second)},
        }
        for each in found
    ]


def verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def failed(rounds: samples.Rounds) -> str:
    """`FAILED` with what went wrong; empty if nothing did."""
    problems = [f"{count} {what}" for what, count in rounds.errors.items()]
    return f"FAILED: {', '.join(problems)}" if problems else ""


def _rounds(rounds: samples.Rounds) -> list[dict[str, Any]]:
    return [vars(sample) for sample in rounds.samples]


def _rate(found: before_triton.Outcome) -> float:
    return found.closed.median(lambda sample: sample.rate) or 0.0


def _p99(found: before_triton.Outcome) -> float | None:
    return None if found.open.is_saturated else found.open.median(lambda sample: sample.p99)


def _latencies(side: run.Side) -> list[str]:
    return [_number(side.rounds, value, 1) for value in (lambda s: s.p50, lambda s: s.p99)]


def _costs(side: run.Side, ratio: str) -> list[str]:
    shares = [_text(side, value, "{:.0%}") for value in (lambda s: s.busy, lambda s: s.behind_busy)]
    return [
        _number(side.rounds, lambda s: s.cpu_per_request, 3),
        ratio,
        *shares,
        _text(side, lambda s: s.batch, "{:.1f}"),
    ]


def _number(rounds: samples.Rounds, value: Callable[[samples.Sample], float | None], digits: int) -> str:
    """The median in milliseconds."""
    found = rounds.median(value)
    return "" if found is None else f"{found * 1000:,.{digits}f}"


def _text(side: run.Side, value: Value, form: str) -> str:
    found = side.median(value)
    return "" if found is None else form.format(found)


def _table(title: str, left: Sequence[str], right: Sequence[str], markdown: bool) -> Table:
    style = box.MARKDOWN if markdown else box.SIMPLE_HEAD
    table = Table(title=None if markdown else title, box=style, title_justify="left")
    for each in left:
        table.add_column(each, no_wrap=True)
    for each in right:
        table.add_column(each, justify="right")
    table.add_column("")
    return table
