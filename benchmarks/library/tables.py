"""The comparison as tables, for the terminal and as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rich.table
from rich.markup import escape

from benchmarks.library import cells, systems, targets
from benchmarks.library.comparison import Outcome
from benchmarks.sim import tables as plain

NOTHING = "-"
LATE = 0.002
"""Seconds of the callers' own lag (99th percentile) from which on a cell says so."""

TRIAL_TITLES = {
    "shutdown": "shut down while 80 callers wait: each gets an answer or an error",
    "system_exit": "the function raises SystemExit: its 8 callers are told, and the next is answered",
    "one_bad_item": "the function raises for one item of 8: the others are answered",
    "shared_exception": "the function fails for 4 callers: each has an exception object of its own",
    "wrong_length": "one result too few for 8 callers: all are told",
    "cancelled_caller": "two of 16 callers are cancelled: the others are answered, and what was queued is not computed",
    "second_loop": "calls on a second event loop",
    "instances": "20 objects with a batched method, called once and dropped: all are freed",
    "context_variables": "context variables of 4 callers, read by the function",
}
assert set(TRIAL_TITLES) == set(cells.TRIALS)


def all_tables(outcomes: Sequence[Outcome], absent: dict[str, str], alone: dict[str, float]) -> list[plain.Table]:
    """Those that have rows."""
    candidates = [
        verdicts(outcomes),
        zero(outcomes),
        zero_cpu(outcomes),
        load(outcomes, alone),
        overload(outcomes),
        idle(outcomes),
        minilm(outcomes),
        faults(outcomes),
        failures(outcomes, absent),
    ]
    return [table for table in candidates if table.rows]


def terminal(table: plain.Table) -> rich.table.Table:
    """For a person at a terminal; sentences are wrapped."""
    has_sentences = max(len(text) for row in table.rows for text in row) > 40
    shown = rich.table.Table(
        title=escape(table.title), title_justify="left", title_style="bold", show_lines=has_sentences
    )
    for index, name in enumerate(table.header):
        shown.add_column(escape(name), justify="right" if index and not has_sentences else "left")
    for row in table.rows:
        shown.add_row(*(escape(text.replace("**", "")) for text in row))
    return shown


def verdicts(outcomes: Sequence[Outcome]) -> plain.Table:
    """The targets."""
    rows = [
        [each.target, each.ours, each.peer or NOTHING, "met" if each.is_met else "**missed**"]
        for each in targets.verdicts(outcomes)
    ]
    return plain.Table("Targets", ["target", "Carpool", "best peer", ""], rows)


def zero(outcomes: Sequence[Outcome]) -> plain.Table:
    """Items/s of a function that costs nothing."""
    return _by_system(
        outcomes, cells.ZERO, "A function of zero cost: items/s, and how far rounds lie from the median at most", _rate
    )


def zero_cpu(outcomes: Sequence[Outcome]) -> plain.Table:
    """The same, as CPU time."""
    return _by_system(
        outcomes,
        cells.ZERO,
        "A function of zero cost: microseconds of CPU an item, the callers' own work included, and wake-ups an item",
        _cpu,
    )


def load(outcomes: Sequence[Outcome], alone: dict[str, float]) -> plain.Table:
    """The function of 10 ms + 0.1 ms an item."""
    title = f"10 ms + 0.1 ms an item: share of {cells.LIMIT:,.0f} items/s, and p50 / p99 in ms under Poisson arrivals"
    table = _by_system(outcomes, cells.LOAD, title, _share_or_latency)
    for form, rate in alone.items() if table.rows else ():
        row = [f"the function alone, {form}", f"{rate / cells.LIMIT:.1%}"]
        table = table._replace(rows=[*table.rows, row + [""] * (len(table.header) - len(row))])
    return table


def overload(outcomes: Sequence[Outcome]) -> plain.Table:
    """Twice what the function can do."""
    rows = []
    for outcome in _of(outcomes, cells.OVER):
        goodput = outcome.median(cells.GOODPUT)
        if goodput is None:
            continue
        p99, answers, calls = (outcome.beside(cells.GOODPUT, name) or 0.0 for name in ("p99", "answers", "calls"))
        chosen = (outcome.best(cells.GOODPUT) or ("", []))[0]
        rows.append(
            [
                outcome.system.name,
                f"{goodput / cells.LIMIT:.1%}",
                f"{answers / calls:.0%}" if calls else NOTHING,
                f"{p99 * 1000:,.0f}" if answers else NOTHING,
                chosen if len(outcome.cell.variants(outcome.system)) > 1 else NOTHING,
            ]
        )
    slo = f"{cells.SLO * 1000:.0f} ms"
    title = f"Poisson arrivals at twice the limit, objective {slo}: answers within {slo}, of what the function can do"
    return plain.Table(title, ["system", "goodput", "answered", "p99 of those, ms", "best setting"], rows)


def idle(outcomes: Sequence[Outcome]) -> plain.Table:
    """After load, and before the first call."""
    rows = [
        [
            outcome.system.name,
            f"{figures['cpu_seconds'] * 1000:,.1f}",
            f"{max(0, figures['wakeups']):,}",
            str(figures["threads"]),
        ]
        for outcome in _of(outcomes, cells.IDLE)
        if (figures := outcome.only) is not None
    ]
    title = f"At rest, {cells.IDLE_SECONDS:.0f} s after load, as set by default"
    return plain.Table(title, ["system", "CPU ms", "wake-ups", "threads and processes before the first call"], rows)


def minilm(outcomes: Sequence[Outcome]) -> plain.Table:
    """The predictor's model."""
    return _by_system(outcomes, cells.MINILM, f"MiniLM on one core, {cells.MINILM_CALLERS} tasks: sentences/s", _rate)


def faults(outcomes: Sequence[Outcome]) -> plain.Table:
    """What happens, by fault: what Carpool does, who does as well, and who does not."""
    rows = []
    for trial in cells.TRIALS:
        found = [(each.system, each.only) for each in outcomes if each.cell.job.get("trial") == trial]
        known = [(system, finding) for system, finding in found if finding is not None]
        if not known:
            continue
        mine = [f"{_yes(finding)}: {finding['what']}" for system, finding in known if system.is_ours]
        peers = {system: finding for system, finding in known if system.is_peer}
        ill = dict.fromkeys(finding["what"] for finding in peers.values() if finding["fine"] is False)
        bad = [f"{_whose(peers, what=what, fine=False)}: {what}" for what in ill]
        texts = ["; ".join(dict.fromkeys(mine)), _whose(peers, fine=True), "; ".join(bad), _whose(peers, fine=None)]
        rows.append([TRIAL_TITLES[trial], *(text or NOTHING for text in texts)])
    return plain.Table(
        "Faults", ["fault", "Carpool", "peers that stand it", "peers that do not", "nothing to try"], rows
    )


def _whose(peers: Mapping[systems.System, dict[str, Any]], **wanted: Any) -> str:
    """Those whose findings have these values; without its form where that is so of all forms of one."""
    mine = [system for system, finding in peers.items() if wanted.items() <= finding.items()]
    whole = {system.title for system in mine} - {system.title for system in peers if system not in mine}
    return ", ".join(dict.fromkeys(system.title if system.title in whole else system.name for system in mine))


def failures(outcomes: Sequence[Outcome], absent: dict[str, str]) -> plain.Table:
    """Who was not measured, and calls that failed where none should."""
    rows = [[peer, "everything", reason] for peer, reason in absent.items()]
    for outcome in outcomes:
        rows += [[outcome.system.name, outcome.cell.name, reason] for reason in dict.fromkeys(outcome.failures)]
        if outcome.cell.group != cells.OVER and (errors := outcome.errors()):
            text = ", ".join(f"{count:,} x {kind}" for kind, count in errors.items())
            rows.append([outcome.system.name, outcome.cell.name, text])
        if hung := sum(one.get("hung", 0) for rounds in outcome.rounds.values() for one in rounds):
            rows.append([outcome.system.name, outcome.cell.name, f"{hung:,} callers without an answer at the end"])
    return plain.Table("Not measured, or with errors", ["system", "cell", "why"], rows)


def as_json(
    outcomes: Sequence[Outcome], absent: dict[str, str], alone: dict[str, float], facts: dict[str, Any]
) -> dict[str, Any]:
    """Everything: each round. Times in seconds, rates in items/s."""
    return {
        **facts,
        "limit_rate": cells.LIMIT,
        "versions": {system.name: systems.version(system) for system in systems.SYSTEMS if system.peer not in absent},
        "function_alone": alone,
        "targets": [each._asdict() for each in targets.verdicts(outcomes)],
        "absent": absent,
        "cells": [
            {
                "system": outcome.system.name,
                "cell": outcome.cell.name,
                "job": outcome.cell.job,
                "medians": {figure.name: outcome.median(figure) for figure in outcome.cell.figures},
                "best_settings": {
                    figure.name: found[0] for figure in outcome.cell.figures if (found := outcome.best(figure))
                },
                "rounds": outcome.rounds,
                "failures": outcome.failures,
            }
            for outcome in outcomes
        ],
    }


def _of(outcomes: Sequence[Outcome], group: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.cell.group == group]


def _by_system(outcomes: Sequence[Outcome], group: str, title: str, text: Callable[[Outcome], str]) -> plain.Table:
    """A row for each system, a column for each cell of a group."""
    mine = _of(outcomes, group)
    columns = {outcome.cell.name: outcome.cell.title for outcome in mine}
    found = {(outcome.system.name, outcome.cell.name): text(outcome) for outcome in mine}
    rows = [
        [name, *(found.get((name, column), NOTHING) for column in columns)]
        for name in dict.fromkeys(outcome.system.name for outcome in mine)
    ]
    return plain.Table(title, ["system", *columns.values()], rows)


def _rate(outcome: Outcome) -> str:
    rate, spread = outcome.median(cells.RATE), outcome.spread(cells.RATE)
    return NOTHING if rate is None else f"{rate:,.0f} ±{spread or 0:.0%}"


def _cpu(outcome: Outcome) -> str:
    cpu, wakeups = outcome.beside(cells.RATE, "cpu"), outcome.beside(cells.RATE, "wakeups")
    return NOTHING if cpu is None else f"{cpu * 1e6:.1f} / {wakeups or 0:.2f}"


def _share_or_latency(outcome: Outcome) -> str:
    if cells.RATE in outcome.cell.figures:
        rate = outcome.median(cells.RATE)
        return NOTHING if rate is None else f"{rate / cells.LIMIT:.1%}"
    p50, p99 = outcome.median(cells.P50), outcome.median(cells.P99)
    if p50 is None or p99 is None:
        return NOTHING
    lag = outcome.beside(cells.P99, "lag_p99") or 0.0
    return f"{p50 * 1000:,.1f} / {p99 * 1000:,.1f}" + (" (callers late)" if lag > LATE else "")


def _yes(finding: dict[str, Any]) -> str:
    return {True: "yes", False: "**no**", None: NOTHING}[finding["fine"]]
