"""The comparison as tables, for the terminal and as Markdown, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import rich.table
from rich.markup import escape

from benchmarks.peers import cells, peer, samples
from benchmarks.sim import tables as plain

OURS = "Carpool"
NOTHING = "-"
LATE = 0.001
"""Seconds of the load generator's own lag (99th percentile) from which on a cell is marked."""


def all_tables(outcomes: Sequence[samples.Outcome]) -> list[plain.Table]:
    """Those that have rows."""
    servers = [outcome for outcome in samples.by_role(outcomes, peer.SERVER) if outcome.cells]
    sidecars = [outcome for outcome in samples.by_role(outcomes, peer.SIDECAR) if outcome.cells]
    candidates = [closed_loop(servers), open_loop(servers)]
    candidates += [sidecar(sidecars, cell) for cell in cells.SIDECAR_CELLS]
    return [table for table in [*candidates, absences(outcomes)] if table.rows]


def closed_loop(servers: Sequence[samples.Outcome]) -> plain.Table:
    """64 callers that wait for their answers."""
    free, serial, limit = cells.FREE_CLOSED.name, cells.SERIAL_CLOSED.name, cells.SERIAL.limit
    rows = [
        [
            outcome.name,
            outcome.version,
            _figure(outcome, free, _rate, _whole),
            _figure(outcome, free, _cpu, _milliseconds),
            _figure(outcome, serial, _rate, _whole),
            _figure(outcome, serial, _rate, lambda rate: f"{rate / limit:.1%}"),
            _figure(outcome, serial, _cpu, _milliseconds),
        ]
        for outcome in servers
    ]
    serial_title = cells.SERIAL_CLOSED.title
    header = ["server", "version", "zero-cost model: req/s", "CPU ms/req", f"{serial_title}: req/s"]
    title = f"Whole servers on one core, closed loop, {cells.CONNECTIONS} connections (limit {limit:,.0f} req/s)"
    return plain.Table(title, [*header, "of the limit", "CPU ms/req"], rows)


def open_loop(servers: Sequence[samples.Outcome]) -> plain.Table:
    """Poisson arrivals: latency from the intended send time."""
    rows = [[outcome.name, *(_latency(outcome, cell.name) for cell in cells.OPEN)] for outcome in servers]
    loads = [f"{cell.load:.0%} ({cell.offered:,.0f}/s)" for cell in cells.OPEN]
    title = f"Whole servers on one core, Poisson arrivals, {cells.SERIAL_CLOSED.title}: p50 / p99 in ms"
    return plain.Table(
        title, ["server", *loads], [*rows, ["client's own lag, p99", *map(_lag_of(servers), cells.OPEN)]]
    )


def sidecar(sidecars: Sequence[samples.Outcome], cell: cells.Cell) -> plain.Table:
    """One body size, or the serial model; each row beside the slowest one.

    A sidecar that uses much less than its core was not the limit of what was measured.
    """
    measured = [outcome for outcome in sidecars if cell.name in outcome.cells]
    rates = [rate for outcome in measured if (rate := outcome.median(cell.name, _rate))]
    slowest = min(rates, default=0.0)
    limit = cell.model.limit
    rows = [
        [
            outcome.name,
            outcome.version,
            _figure(outcome, cell.name, _rate, plain.rate_text),
            _figure(outcome, cell.name, _rate, lambda rate: f"{rate / slowest:.1f}x"),
            _figure(outcome, cell.name, _cpu, _milliseconds),
            _figure(outcome, cell.name, _busy, lambda busy: f"{busy:.0%}"),
            *([_figure(outcome, cell.name, _rate, lambda rate: f"{rate / limit:.1%}")] if cell.model.fixed_ms else []),
        ]
        for outcome in measured
    ]
    header = ["sidecar", "version", "req/s", "ratio", "CPU ms/req", "of its core"]
    what = f"{cell.title}, {cell.connections} connections" if str(cell.connections) not in cell.title else cell.title
    return plain.Table(f"Sidecar alone on a core: {what}", [*header, *(["of the limit"] if limit < 1e9 else [])], rows)


def absences(outcomes: Sequence[samples.Outcome]) -> plain.Table:
    """Who is missing, and which cells went wrong."""
    rows = [
        [outcome.name, "the rest" if outcome.cells else "everything", _line(outcome.absence)]
        for outcome in outcomes
        if outcome.absence
    ]
    rows += [[outcome.name, "warm-up", _line(outcome.trouble)] for outcome in outcomes if outcome.trouble]
    for outcome in outcomes:
        for name, rounds in outcome.cells.items():
            rows += [[outcome.name, name, _line(failure)] for failure in rounds.failures]
            if rounds.errors:
                said = ", ".join(f"{count} x {what}" for what, count in rounds.errors.items())
                rows.append([outcome.name, name, f"errors: {said}"])
    return plain.Table("Not measured, or with errors", ["peer", "what", "why"], rows)


def terminal(table: plain.Table) -> rich.table.Table:
    """For a person at a terminal; ours in bold."""
    shown = rich.table.Table(title=escape(table.title), title_justify="left", title_style="bold")
    for index, name in enumerate(table.header):
        shown.add_column(escape(name), justify="right" if index and "why" not in table.header else "left")
    for row in table.rows:
        shown.add_row(*map(escape, row), style="bold" if row[0].startswith(OURS) else "")
    return shown


def as_json(outcomes: Sequence[samples.Outcome], facts: dict[str, Any]) -> dict[str, Any]:
    """Everything: each round, and its median. Times in seconds, rates in requests/s."""
    return {
        **facts,
        "cells": [dataclasses.asdict(cell) for cell in (*cells.SERVER_CELLS, *cells.SIDECAR_CELLS)],
        "limit_rate": cells.SERIAL.limit,
        "peers": [dataclasses.asdict(outcome) | {"medians": _medians(outcome)} for outcome in outcomes],
    }


def _medians(outcome: samples.Outcome) -> dict[str, dict[str, Any]]:
    figures = {"rate": _rate, "p50": _p50, "p99": _p99, "cpu_per_request": _cpu, "busy": _busy, "lag_p99": _lag}
    return {
        name: {"is_saturated": rounds.is_saturated, **{key: rounds.median(value) for key, value in figures.items()}}
        for name, rounds in outcome.cells.items()
    }


def _rate(sample: samples.Sample) -> float:
    return sample.rate


def _p50(sample: samples.Sample) -> float:
    return sample.p50


def _p99(sample: samples.Sample) -> float:
    return sample.p99


def _cpu(sample: samples.Sample) -> float | None:
    return sample.cpu_per_request


def _busy(sample: samples.Sample) -> float | None:
    return sample.busy


def _lag(sample: samples.Sample) -> float | None:
    return sample.lag_p99


def _figure(
    outcome: samples.Outcome,
    cell: str,
    value: Callable[[samples.Sample], float | None],
    form: Callable[[float], str],
) -> str:
    found = outcome.median(cell, value)
    return NOTHING if found is None else form(found)


def _latency(outcome: samples.Outcome, cell: str) -> str:
    rounds = outcome.cells.get(cell)
    if is_saturated(outcome, cell):
        return "saturated"
    if rounds is None or not rounds.samples:
        return NOTHING
    lag = rounds.median(_lag) or 0.0
    text = f"{(rounds.median(_p50) or 0) * 1000:.1f} / {(rounds.median(_p99) or 0) * 1000:.1f}"
    return text + (" (client late)" if lag > LATE else "")


def is_saturated(outcome: samples.Outcome, cell: str) -> bool:
    """Whether this load was too much, or a lower one already."""
    names = [each.name for each in cells.OPEN]
    upto = names[: names.index(cell) + 1]
    return any(
        name in outcome.cells and outcome.cells[name].samples and outcome.cells[name].is_saturated for name in upto
    )


def _lag_of(servers: Sequence[samples.Outcome]) -> Callable[[cells.Cell], str]:
    """The largest lag of the load generator in a cell, whomever it was measuring."""

    def text(cell: cells.Cell) -> str:
        lags = [lag for outcome in servers if (lag := outcome.median(cell.name, _lag)) is not None]
        return f"{max(lags) * 1000:.2f}" if lags else NOTHING

    return text


def _whole(rate: float) -> str:
    return f"{rate:,.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
