"""What a run came to, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from benchmarks.attack import conformance, run, target, verdicts, victim


def trials(found: Sequence[verdicts.Trial], markdown: bool) -> Table:
    """An attack a row. Times in ms, memory in MB."""
    table = Table(box=box.MARKDOWN if markdown else box.SIMPLE_HEAD, pad_edge=markdown)
    for name in ("attack", "server"):
        table.add_column(name, no_wrap=True)
    for name in (
        "gRPC p50/p99",
        "HTTP p50/p99",
        "PING p99",
        "p99 before",
        "late",
        "wrong",
        "failed",
        "MB before/peak/after",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how it ended")
    table.add_column("verdict")
    for each in found:
        table.add_row(*_row(each))
    return table


def checks(found: Sequence[conformance.Check], markdown: bool) -> Table:
    """A tool's check a row."""
    table = Table(box=box.MARKDOWN if markdown else box.SIMPLE_HEAD, pad_edge=markdown)
    for name in ("tool", "check", "result"):
        table.add_column(name)
    for each in found:
        result = "[green]passed[/]" if each.has_passed else f"[bold red]failed[/]: {escape(each.words)}"
        table.add_row(each.tool, escape(each.name), escape(each.words) if each.has_passed and each.words else result)
    return table


def as_json(outcome: run.Outcome, facts: dict[str, Any]) -> Any:
    """Everything, with the targets and the facts about the machine."""
    targets = {
        "p99_seconds": verdicts.P99,
        "times_p99_before": verdicts.BUSY,
        "kept_mb": verdicts.MOST_KEPT,
        "peak_mb": verdicts.MOST_PEAK,
        "failed_share": verdicts.MOST_FAILED,
    }
    rows = [{**asdict(each), "misses": each.misses()} for each in outcome.trials]
    return {**facts, "targets": targets, "attacks": rows, "checks": [each._asdict() for each in outcome.checks]}


def verdict(each: verdicts.Trial) -> str:
    """Held or missed, in rich's markup."""
    misses = each.misses()
    words = "[green]held[/]" if not misses else f"[bold red]missed[/]: {escape('; '.join(misses))}"
    if each.is_busy:
        words += f" (busy machine: {verdicts.BUSY:g}x the p99 before)"
    return words + (f" (run {each.runs})" if each.runs > 1 else "")


def ending(told: target.Told | None) -> str:
    """How the attack ended, in words."""
    if told is None:
        return "not at all"
    sent = f"{told.bytes_sent / 1e6:.1f} MB"
    words = ", ".join(f"{word} x {count}" if count > 1 else word for word, count in sorted(told.last_words.items()))
    resets = f"{told.resets} streams reset" if told.resets else ""
    if not told.cut:
        parts = [words or "served", f"{sent} in {told.seconds:.1f} s", resets]
    else:
        first = f"first after {told.first_cut:.1f} s" if told.first_cut is not None else ""
        parts = [f"{told.cut} of {told.connections} cut ({words})", first, sent, resets]
    return ", ".join(part for part in parts if part)


def _row(each: verdicts.Trial) -> list[str]:
    before = max((seen.p99 for kind, seen in each.before.items() if kind != victim.LATE), default=0.0)
    judged = [seen for kind, seen in each.during.items() if kind != victim.LATE]
    return [
        each.attack,
        each.server,
        _times(each.during.get(victim.RPC)),
        _times(each.during.get(victim.HTTP)),
        _ms(each.during[victim.PING].p99) if victim.PING in each.during else "",
        _ms(before),
        _ms(each.late),
        str(sum(seen.wrong for seen in judged)),
        str(sum(seen.failed for seen in judged)),
        f"{each.memory_before:.0f}/{each.memory_peak:.0f}/{each.memory_after:.0f}",
        escape(ending(each.told)),
        verdict(each),
    ]


def _times(seen: verdicts.Seen | None) -> str:
    return "" if seen is None else f"{_ms(seen.p50)}/{_ms(seen.p99)}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if seconds < 0.1 else f"{1000 * seconds:.0f}"
