"""The benchmark's tables and its JSON."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from benchmarks import lag, stand

IDLE_TARGET = 0.002  # share of a core
RSS_TARGET_MB = 80.0
DISTURBED = 0.15  # share of the sidecar's core that others may take before the report says so


def load_table(results: Sequence[stand.Result], markdown: bool = False) -> Table:
    """One row for each cell, the target beside the measured rate."""
    table = _table("Throughput", markdown)
    table.add_column("body", no_wrap=True)
    for title in ("req/s", "target", "p50 ms", "p99 ms", "CPU s per 1,000", "sidecar busy", "predictor busy", "batch"):
        table.add_column(title, justify="right", no_wrap=title == "req/s")
    table.add_column("")
    for result in results:
        table.add_row(*load_row(result))
    return table


def load_row(result: stand.Result) -> list[str]:
    """The cells of one row, as text."""
    measured = result.measured
    return [
        result.cell.title,
        _rate(result),
        f"{result.cell.target:,.0f}" if result.cell.target else "",
        f"{measured.p50 * 1000:,.1f}",
        f"{measured.p99 * 1000:,.1f}",
        _optional(result.sidecar_cpu_per_1000, "{:.3f}"),
        _optional(result.sidecar_busy, "{:.0%}"),
        _optional(result.predictor_busy, "{:.0%}"),
        _optional(result.mean_batch, "{:.1f}"),
        verdict(result),
    ]


def verdict(result: stand.Result) -> str:
    """`FAILED` with what went wrong, else whether the target was met; empty without a target."""
    if result.has_failed:
        problems = [f"{count} {what}" for what, count in result.measured.errors.items()]
        if result.wrong_answers:
            problems.append(f"{result.wrong_answers} wrong answers")
        return f"FAILED: {', '.join(problems) or 'no answers'}"
    if result.cell.target is None:
        return ""
    return _met(result.measured.rate >= result.cell.target)


def spread(results: Sequence[stand.Result]) -> list[str]:
    """One line for each cell that was measured several times: its rates, and the longest p99."""
    lines = []
    for cell in dict.fromkeys(result.cell for result in results):
        runs = [result.measured for result in results if result.cell == cell]
        if len(runs) > 1:
            rates, p99 = [run.rate for run in runs], max(run.p99 for run in runs) * 1000
            figures = (
                f"{min(rates):,.0f} req/s at least, {statistics.median(rates):,.0f} median; p99 {p99:.1f} ms at most"
            )
            lines.append(f"{cell.title}, {len(runs)} runs: {figures}")
    return lines


def disturbances(results: Sequence[stand.Result]) -> list[str]:
    """The titles of the rows during which other programs took a noticeable part of the sidecar's core."""
    return [
        f"{result.cell.title} ({result.others_busy:.0%})"
        for result in results
        if result.others_busy is not None and result.others_busy > DISTURBED
    ]


def adaptive_table(results: Sequence[stand.Result], markdown: bool = False) -> Table:
    """One row for each cell of the adaptive policy, the simulated figures beside the measured ones."""
    table = _table("Adaptive policy", markdown)
    table.add_column("predictor, callers", no_wrap=True)
    compared = ("req/s", "sim. req/s", "ratio", "target", "p50 ms", "sim. p50", "p99 ms", "batch", "sim. batch")
    for title in compared:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for result in results:
        table.add_row(*adaptive_row(result))
    return table


def adaptive_row(result: stand.Result) -> list[str]:
    """The cells of one row, as text. Ratio is measured over simulated requests per second."""
    measured, simulated = result.measured, result.simulated
    return [
        result.cell.title,
        f"{measured.rate:,.0f}",
        _optional(simulated and simulated.throughput, "{:,.0f}"),
        _optional(result.of_simulated, "{:.2f}"),
        _optional(result.cell.target, "{:,.0f}"),
        f"{measured.p50 * 1000:,.1f}",
        _optional(simulated and simulated.p50 * 1000, "{:,.1f}"),
        f"{measured.p99 * 1000:,.1f}",
        _optional(result.mean_batch, "{:.1f}"),
        _optional(simulated and simulated.mean_batch, "{:.1f}"),
        verdict(result),
    ]


def idle_table(idle: stand.Idle, markdown: bool = False) -> Table:
    """CPU and memory of the sidecar after the load."""
    table = _table("Sidecar at rest, after the body sizes above", markdown)
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    for row in idle_rows(idle):
        table.add_row(*row)
    return table


def idle_rows(idle: stand.Idle) -> list[list[str]]:
    """The rows of the second table, as text."""
    cpu = [f"idle CPU over {idle.seconds:.0f} s, share of a core", f"{idle.busy:.3%}", f"< {IDLE_TARGET:.1%}"]
    memory = ["resident memory", f"{idle.rss_mb:.1f} MB", f"< {RSS_TARGET_MB:.0f} MB"]
    return [[*cpu, _met(idle.busy < IDLE_TARGET)], [*memory, _met(idle.rss_mb < RSS_TARGET_MB)]]


def lag_table(met: lag.Outcome, markdown: bool = False) -> Table:
    """One row for each scene and sidecar: the small requests beside the large ones."""
    table = _table(f"{lag.PACE} small requests/s beside large ones", markdown)
    table.add_column("sidecar, large bodies", no_wrap=True)
    for title in ("p50 ms", "p99 ms", "max ms", "large/s", "loop lag p99 ms", "peak MB", "after MB"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for result in met.results:
        table.add_row(*lag_row(result))
    return table


def lag_row(result: lag.Result) -> list[str]:
    """The cells of one row, as text."""
    small = result.small
    return [
        f"{result.system}: {result.scene.title}",
        *(f"{seconds * 1000:,.1f}" for seconds in (small.p50, small.p99, small.longest)),
        f"{result.large.rate:,.1f}" if result.scene.size else "",
        _optional(result.lag_p99 and result.lag_p99 * 1000, "≤ {:,.3g}"),
        _optional(result.rss_peak_mb, "{:,.0f}"),
        f"{result.rss_after_mb:,.0f}",
        lag_verdict(result),
    ]


def lag_verdict(result: lag.Result) -> str:
    """`FAILED` with what went wrong, or how late the prober itself was if that spoils the row; else empty."""
    if result.has_failed:
        problems = [f"{count} {what}" for what, count in result.errors.items()]
        return f"FAILED: {', '.join(problems) or 'no answers'}"
    late = result.small.lag_p99
    return f"late {late * 1000:.1f} ms" if late > lag.LATE else ""


def as_json(
    results: Sequence[stand.Result],
    idle: stand.Idle | None,
    facts: dict[str, Any],
    met: lag.Outcome | None = None,
) -> dict[str, Any]:
    """The whole run. Times in seconds, rates in requests per second, memory in MB (10^6 bytes)."""
    return {
        **facts,
        "cells": [_cell_json(result) for result in results],
        "idle": None if idle is None else vars(idle),
        "lag": None if met is None else [_lag_json(result) for result in met.results],
        "lag_absent": {} if met is None else met.absent,
        "targets": {"idle_busy": IDLE_TARGET, "rss_mb": RSS_TARGET_MB},
    }


def write(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _cell_json(result: stand.Result) -> dict[str, Any]:
    cell, measured = result.cell, result.measured
    return {
        "name": cell.name,
        "body_bytes": cell.size,
        "connections": cell.connections,
        "predictor": cell.predictor_arguments,
        "sidecar": cell.sidecar,
        "target_rate": cell.target,
        "limit_rate": cell.limit,
        "rate": measured.rate,
        **vars(measured),
        "wrong_answers": result.wrong_answers,
        "failed": result.has_failed,
        "mean_batch": result.mean_batch,
        "sidecar_cpu_per_1000": result.sidecar_cpu_per_1000,
        "sidecar_busy": result.sidecar_busy,
        "predictor_busy": result.predictor_busy,
        "sidecar_rss_mb": result.sidecar_rss_mb,
        "others_busy": result.others_busy,
        "simulated": result.simulated and result.simulated._asdict(),
        "of_simulated": result.of_simulated,
    }


def _lag_json(result: lag.Result) -> dict[str, Any]:
    return {
        "system": result.system,
        **vars(result.scene),
        "small": vars(result.small),
        "large": {"rate": result.large.rate, **vars(result.large)},
        "failed": result.has_failed,
        # JSON has no infinity: above all of the histogram's bounds.
        "lag_p99": "above" if result.lag_p99 == float("inf") else result.lag_p99,
        "lag_samples": result.lag_samples,
        "rss_peak_mb": result.rss_peak_mb,
        "rss_after_mb": result.rss_after_mb,
    }


def _table(title: str, markdown: bool) -> Table:
    style = box.MARKDOWN if markdown else box.SIMPLE_HEAD
    return Table(title=None if markdown else title, box=style, title_justify="left")


def _rate(result: stand.Result) -> str:
    text = f"{result.measured.rate:,.0f}"
    limit = result.cell.limit
    return f"{text} ({result.measured.rate / limit:.1%})" if limit else text


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
