"""The comparison as one picture: latency over load, and what each can do at most.

Ours is thick and black; the others differ in colour, dash and marker, so that they can be told apart in print.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import figure as figures
from matplotlib import ticker

from benchmarks.peers import cells, peer, samples, tables
from benchmarks.sim import tables as plain

STYLE = {"font.size": 9, "axes.grid": True, "grid.alpha": 0.25, "axes.axisbelow": True}
MINE = "black"
COLOURS = ("#b2182b", "#2166ac", "#1b7837", "#762a83", "#ef8a62", "#67a9cf", "#7fbf7b", "#af8dc3", "#8c510a")
MARKERS = "v^<>XPDsh"
DASHES = ("--", "-.", ":")
MINE_DASHES, MINE_MARKERS = ("-", "--", ":", "-."), "o*dp"
OTHER_BUILD = "0.55"  # grey

Line = dict[str, Any]


def draw(outcomes: Sequence[samples.Outcome], file: pathlib.Path) -> None:
    """Write the PNG; whoever was not measured is left out."""
    servers = [outcome for outcome in samples.by_role(outcomes, peer.SERVER) if outcome.cells]
    sidecars = [outcome for outcome in samples.by_role(outcomes, peer.SIDECAR) if outcome.cells]
    looks = lines([outcome.name for outcome in servers])
    with matplotlib.rc_context(STYLE):
        picture = figures.Figure(figsize=(11, 9.4))
        grid = picture.subplots(2, 2)
        _latency(grid[0, 0], servers, looks, "p50", lambda sample: sample.p50)
        _latency(grid[0, 1], servers, looks, "p99", lambda sample: sample.p99)
        _bars(grid[1, 0], servers)
        _sidecar_bars(grid[1, 1], sidecars)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        if handles:
            picture.legend(handles, labels, loc="upper center", ncols=5, frameon=False, handlelength=4)
        picture.tight_layout(rect=(0, 0, 1, 0.93))
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(file, dpi=110, metadata={"Software": None})


def lines(names: Sequence[str]) -> dict[str, Line]:
    """How each peer's line looks; no two alike without their colour."""
    mine = [name for name in names if name.startswith(tables.OURS)]
    others = [name for name in names if name not in mine]
    looks: dict[str, Line] = {}
    for index, name in enumerate(mine):
        dash, marker = MINE_DASHES[index % 4], MINE_MARKERS[index % 4]
        looks[name] = {"color": MINE, "linewidth": 2.4, "zorder": 5, "linestyle": dash, "marker": marker}
    for index, name in enumerate(others):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        looks[name] = {"color": colour, "linewidth": 1.1, "linestyle": DASHES[index % 3], "marker": marker}
    return looks


def _latency(
    plot: Any,
    servers: Sequence[samples.Outcome],
    looks: dict[str, Line],
    title: str,
    value: Callable[[samples.Sample], float],
) -> None:
    for outcome in servers:
        points = [
            (cell.load, found * 1000)
            for cell in cells.OPEN
            if not tables.is_saturated(outcome, cell.name) and (found := outcome.median(cell.name, value)) is not None
        ]
        # Without a point there is a name in the legend all the same: it was saturated at every load.
        plot.plot(*(zip(*points, strict=True) if points else ([], [])), label=outcome.name, **looks[outcome.name])
    plot.set_title(f"{title} from the intended send time (none: saturated)", fontsize=9)
    plot.set_yscale("log")
    plot.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    plot.yaxis.set_minor_formatter(ticker.LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    plot.xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    plot.set_xlim(0, 1)
    plot.set_xlabel(f"load, share of {cells.SERIAL.limit:,.0f} req/s (Poisson arrivals)")
    plot.set_ylabel(f"{title}, ms")


def _bars(plot: Any, servers: Sequence[samples.Outcome]) -> None:
    found = [(outcome.name, outcome.median(cells.FREE_CLOSED.name, lambda sample: sample.rate)) for outcome in servers]
    ranked = sorted(((name, rate) for name, rate in found if rate is not None), key=lambda pair: pair[1])
    colours = [MINE if name.startswith(tables.OURS) else COLOURS[1] for name, _ in ranked]
    bars = plot.barh([name for name, _ in ranked], [rate for _, rate in ranked], color=colours)
    plot.bar_label(bars, labels=[f"{rate:,.0f}" for _, rate in ranked], padding=3)
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    plot.margins(x=0.15)
    plot.set_title(f"whole servers, zero-cost model, {cells.CONNECTIONS} connections: req/s", fontsize=9)


def _sidecar_bars(plot: Any, sidecars: Sequence[samples.Outcome]) -> None:
    """Throughput by body size, on a logarithmic axis: it spans three decades."""
    sized = [cell for cell in cells.SIDECAR_CELLS if cell.size is not None]
    height = 0.8 / max(1, len(sidecars))
    mine = [outcome.name for outcome in sidecars if outcome.name.startswith(tables.OURS)]
    for index, outcome in enumerate(sidecars):
        rates = [outcome.median(cell.name, lambda sample: sample.rate) or 0.0 for cell in sized]
        colour = COLOURS[index % len(COLOURS)]
        if outcome.name in mine:
            colour = OTHER_BUILD if mine.index(outcome.name) else MINE
        places = [place - index * height for place in range(len(sized), 0, -1)]
        bars = plot.barh(places, rates, height=height * 0.9, color=colour, label=outcome.name)
        plot.bar_label(bars, labels=[plain.rate_text(rate) for rate in rates], padding=3)
    plot.set_yticks(
        [place - 0.4 + height / 2 for place in range(len(sized), 0, -1)], [cell.title.split(",")[0] for cell in sized]
    )
    plot.set_xscale("log")
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    plot.margins(x=0.2)
    plot.set_title("sidecars alone on a core, zero-cost predictor, by body: req/s", fontsize=9)
    if sidecars:
        plot.legend(frameon=False, loc="lower right")
