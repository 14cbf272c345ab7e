"""The comparison as one picture: items/s of a function of zero cost, and latency over load.

Ours is black; the others differ in colour, dash and marker, so that they can be told apart in print. The same figures
give the same file, byte for byte.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import figure as figures
from matplotlib import ticker

from benchmarks.library import cells
from benchmarks.library.comparison import Outcome
from benchmarks.peers import chart as peers

STYLE = peers.STYLE | {"svg.hashsalt": "carpool", "svg.fonttype": "path"}
MORE_MARKERS = "x+1234"
FLOOR = "0.6"  # grey: no system


def draw(outcomes: Sequence[Outcome], file: pathlib.Path) -> bool:
    """Write the SVG of what was measured; False if that has neither bars nor lines."""
    bars = [name for name in ("zero-asyncio-64", "zero-threads-64") if _rates(outcomes, name)]
    lines = [figure for figure in (cells.P50, cells.P99) if _points(outcomes, figure)]
    if not bars and not lines:
        return False
    with matplotlib.rc_context(STYLE):
        rows = bool(bars) + bool(lines)
        picture = figures.Figure(figsize=(12, 4.4 * rows + 0.4), layout="constrained")
        grid = picture.subplots(rows, 2, squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for axes, name in zip(grid[0], bars, strict=False):
            _bars(axes, outcomes, name)
        for axes, figure in zip(grid[-1], lines, strict=False):
            _lines(axes, outcomes, figure)
        if lines:  # the same systems in each
            handles, labels = grid[-1][0].get_legend_handles_labels()
            picture.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, handlelength=4)
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(file, metadata={"Date": None, "Creator": None})
    return True


def _rates(outcomes: Sequence[Outcome], name: str) -> list[tuple[Outcome, float]]:
    found = [(each, each.median(cells.RATE)) for each in outcomes if each.cell.name == name]
    return sorted(((each, rate) for each, rate in found if rate is not None), key=lambda pair: pair[1])


def _bars(axes: Any, outcomes: Sequence[Outcome], name: str) -> None:
    axes.set_visible(True)
    ranked = _rates(outcomes, name)
    colours = [
        FLOOR if each.system.is_floor else peers.MINE if each.system.is_ours else peers.COLOURS[1] for each, _ in ranked
    ]
    bars = axes.barh([each.system.name for each, _ in ranked], [rate for _, rate in ranked], color=colours)
    axes.bar_label(bars, labels=[f"{rate:,.0f}" for _, rate in ranked], padding=3)
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.margins(x=0.2)
    axes.set_title(f"function of zero cost, {ranked[0][0].cell.title}: items/s", fontsize=9)


def _points(outcomes: Sequence[Outcome], figure: cells.Figure) -> dict[str, list[tuple[float, float]]]:
    """Of each system: load, as a share of the limit, and milliseconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        if figure in outcome.cell.figures and (seconds := outcome.median(figure)) is not None:
            load = outcome.cell.job["rate"] / cells.LIMIT
            found.setdefault(outcome.system.name, []).append((load, seconds * 1000))
    return found


def _lines(axes: Any, outcomes: Sequence[Outcome], figure: cells.Figure) -> None:
    axes.set_visible(True)
    points = _points(outcomes, figure)
    looks = peers.lines(list(points))
    theirs = [name for name in points if looks[name]["color"] != peers.MINE]
    for name, marker in zip(theirs[len(peers.COLOURS) :], MORE_MARKERS, strict=False):
        looks[name] |= {"marker": marker}  # the colours begin again
    for name, found in points.items():
        axes.plot(*zip(*found, strict=True), label=name, **looks[name])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(ticker.LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    axes.set_xlabel(f"load, share of {cells.LIMIT:,.0f} items/s (Poisson arrivals)")
    axes.set_ylabel(f"{figure.name}, ms")
    axes.set_title(f"10 ms + 0.1 ms an item: {figure.name} from when a call was due", fontsize=9)
