"""What `top` shows, as text: the snapshot and the latest batches laid out for one screen."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from carpool_sidecar import admin_client

MOST_BATCHES = 40
_QUEUES = 6
_BAR = 16

_COLOURS = {
    "full": "cyan", "due": "cyan", "rest": "green", "idle": "blue", "just_in_time": "magenta", "hold": "yellow",
    "probe": "bright_magenta", "drain": "white", "suspect": "bright_red", "isolate": "red", "closed": "red",
    "smaller": "bright_green",
}  # fmt: skip


def render(
    snapshot: Mapping[str, Any], batches: Sequence[Mapping[str, Any]], height: int, trouble: str | None = None
) -> RenderableType:
    """A screen of at most `height` lines, for what the stream told last; `trouble` says why it may be out of date."""
    if not snapshot:
        return Text(trouble or "connecting …")
    above = [_head(snapshot, trouble), _figures(snapshot), _queues(snapshot), _learned(snapshot), _counts(snapshot)]
    used = 3 + 5 + (4 + min(_QUEUES, max(1, len(snapshot["queues"])))) + (2 + len(snapshot["sentences"])) + 3
    return Group(*above, _batches(batches, max(3, height - used - 4)))


def _head(snapshot: Mapping[str, Any], trouble: str | None) -> RenderableType:
    policy = f"{snapshot['policy']} policy" if snapshot["batching"] else "passes through"
    line = Text.assemble(
        ("Carpool ", "bold"), f"{snapshot['version']}  {policy}  ", (snapshot["phase"], _phase(snapshot["phase"])),
        f"  up {_duration(snapshot['uptime'])}  {_count(snapshot['connections'], 'connection')}  ",
        (datetime.datetime.fromtimestamp(snapshot["at"]).strftime("%H:%M:%S"), "dim"),
    )  # fmt: skip
    return Group(line, Text(trouble or "", style="bold red"))


def _figures(snapshot: Mapping[str, Any]) -> RenderableType:
    table = Table(box=box.ROUNDED, expand=True, border_style="dim", header_style="dim")
    rates, wait, predictor = snapshot["rates"], snapshot["wait"], snapshot["predictor"]
    size = rates["rows"] / rates["batches"] if rates and rates["batches"] else None
    cap = snapshot["largest_batch"]
    learned = snapshot["learned"]
    load = f"{learned['utilisation']:.0%}" if learned.get("capacity") else "–"
    cells = {
        "arrivals/s": _rate(rates and rates["arrivals"]),
        "answers/s": _rate(rates and rates["answers"]),
        "batches/s": _rate(rates and rates["batches"]),
        "batch size": "–" if size is None else f"{size:.1f} of {cap:,}",
        "wait p50 / p99": f"{_ms(wait['p50'])} / {_ms(wait['p99'])} ms",
        "predictor p50 / p99": f"{_ms(predictor['p50'])} / {_ms(predictor['p99'])} ms",
        "load": load,
        "in flight": f"{snapshot['in_flight']} of {snapshot['in_flight_limit']:,}",
    }
    for name in cells:
        table.add_column(name, no_wrap=True)
    table.add_row(*(Text(cell, style="bold") for cell in cells.values()))
    return table


def _queues(snapshot: Mapping[str, Any]) -> RenderableType:
    title = f"queues: {_count(snapshot['queued_rows'], 'instance')} in {_count(snapshot['keys'], 'queue')}"
    table = Table(box=None, expand=True, show_header=False, pad_edge=False)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for _ in range(3):
        table.add_column(no_wrap=True, justify="right")
    for queue in snapshot["queues"][:_QUEUES]:
        table.add_row(
            Text.assemble(admin_client.plain(queue["path"]), (f" key {queue['key']}", "dim")),
            _bar(queue["rows"], queue["cap"], "cyan"),
            f"{queue['rows']:,} of {queue['cap']:,}",
            f"oldest {_ms(queue['waited'])} ms",
        )
    if not snapshot["queues"]:
        table.add_row(Text("nothing waits", style="dim"))
    return Panel(table, title=title, title_align="left", border_style="dim")


def _learned(snapshot: Mapping[str, Any]) -> RenderableType:
    text = Text("\n".join(snapshot["sentences"]))
    return Panel(text, title="what was learned", title_align="left", border_style="dim")


def _counts(snapshot: Mapping[str, Any]) -> RenderableType:
    totals = snapshot["totals"]
    shown = {"left": "batches", "refused": "refused", "failed calls": "predictor_errors", "not batched": "unbatched"}
    lines = []
    for label, name in shown.items():
        counts = sorted(totals[name].items(), key=lambda item: -item[1])
        listed = ", ".join(f"{reason} {count:,.0f}" for reason, count in counts)
        lines.append(Text.assemble((f"{label}: ", "dim"), listed or "none", overflow="ellipsis", no_wrap=True))
    return Group(Text.assemble(lines[0]), Text("   ").join(lines[1:]))


def _batches(batches: Sequence[Mapping[str, Any]], most: int) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, expand=True, header_style="dim", pad_edge=False)
    for name in ("left", "why"):
        table.add_column(name, no_wrap=True)
    table.add_column("instances", no_wrap=True)
    for name in ("requests", "waited ms", "predictor ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("path", ratio=1, no_wrap=True, overflow="ellipsis")
    for batch in reversed(batches[-most:]):
        left = datetime.datetime.fromtimestamp(batch["left"])
        colour = _COLOURS.get(batch["reason"], "white")
        told = Text(batch["reason"], style=colour)
        if "error" in batch:
            told = Text(f"{batch['reason']}: {batch['error']}", style="bold red")
        table.add_row(
            f"{left:%H:%M:%S}.{left.microsecond // 1000:03d}",
            told,
            Text.assemble(_bar(batch["rows"], batch["cap"], colour), f" {batch['rows']:,}/{batch['cap']:,}"),
            f"{batch['requests']:,}",
            f"{(batch['left'] - batch['first']) * 1000:,.1f}",
            f"{batch['took']:,.1f}",
            admin_client.plain(batch["path"]),
        )
    return table


def _bar(rows: int, cap: int, colour: str) -> Text:
    filled = min(_BAR, max(1, round(_BAR * rows / cap))) if rows else 0
    return Text.assemble(("━" * filled, colour), ("╌" * (_BAR - filled), "bright_black"))


def _phase(phase: str) -> str:
    return "green" if phase == "serving" else "bold yellow"


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _count(value: int, word: str) -> str:
    return f"{value:,} {word}" if value == 1 else f"{value:,} {word}s"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
