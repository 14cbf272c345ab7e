"""Pictures of a run, as PNG and SVG: latency over load, goodput over overload, throughput over callers.

The same figures give the same files, byte for byte: no dates, no random ids. Ours are thick and black; the others
differ in colour, dash and marker, so that they can be told apart in print.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("agg")

from matplotlib import figure as figures
from matplotlib import ticker

from benchmarks.sim import acceptance, cells, contenders, tables
from benchmarks.sim.cells import Cell, Kind, System
from benchmarks.sim.grid import Results
from carpool_sidecar.planning import engine

CHARTS = Path(__file__).with_name("charts")
STYLE = {"svg.hashsalt": "carpool", "svg.fonttype": "path", "font.size": 9, "axes.grid": True, "grid.alpha": 0.25}

Line = dict[str, Any]
MINE: Line = {"color": "black", "linewidth": 2.4, "zorder": 5}
LINES: dict[str, Line] = {
    contenders.ADAPTIVE: MINE | {"linestyle": "-", "marker": "o", "markersize": 5},
    contenders.WINDOW[5]: MINE | {"linestyle": "--", "marker": "s", "markersize": 4},
    contenders.WINDOW[20]: MINE | {"linestyle": ":", "marker": "D", "markersize": 4},
    contenders.KSERVE[5]: {"color": "#b2182b", "linestyle": "--", "marker": "v"},
    contenders.KSERVE[20]: {"color": "#ef8a62", "linestyle": ":", "marker": "^"},
    "eager window 5 ms": {"color": "#762a83", "linestyle": "--", "marker": "<"},
    "eager window 20 ms": {"color": "#af8dc3", "linestyle": ":", "marker": ">"},
    contenders.IDLE_1: {"color": "#1b7837", "linestyle": "-", "marker": "x"},
    contenders.IDLE_2: {"color": "#7fbf7b", "linestyle": "-", "marker": "+"},
    "BentoML": {"color": "#2166ac", "linestyle": "-.", "marker": "P"},
    "Clipper": {"color": "#67a9cf", "linestyle": "-.", "marker": "*"},
}


class Panel(NamedTuple):
    """One plot: which cells, and what of them."""

    title: str
    wanted: Callable[[Cell], bool]
    value: Callable[[Cell, engine.Summary], float]


class Axes(NamedTuple):
    """What the axes say, and how far the vertical one goes."""

    x: str
    y: str
    limits: tuple[float, float]
    log_x: bool = False
    log_y: bool = False


def draw_all(found: Results, folder: Path = CHARTS) -> list[Path]:
    """Draw what the figures allow; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    systems = list(dict.fromkeys(cell.system for cell, _ in found if cell.system in cells.SYSTEMS))
    with matplotlib.rc_context(STYLE):
        return [
            *_draw(found, folder / "latency", _latency(systems), _axes_of_latency()),
            *_draw(found, folder / "goodput", _goodput(systems), _axes_of_goodput()),
            *_draw(found, folder / "throughput", _throughput(systems), _axes_of_throughput()),
        ]


def _latency(systems: Sequence[System]) -> list[Panel]:
    return [
        Panel(
            str(system),
            lambda cell, system=system: cell.system == system and cell.kind is Kind.POISSON,
            lambda cell, summary: summary.mean * 1000,
        )
        for system in systems
    ]


def _goodput(systems: Sequence[System]) -> list[Panel]:
    def wanted(cell: Cell, system: System) -> bool:
        return cell.system == system and cell.kind is Kind.OVERLOAD and cell.deadline == tables.SHOWN_DEADLINE

    return [
        Panel(
            str(system),
            lambda cell, system=system: wanted(cell, system),
            lambda cell, summary: acceptance.goodput(cell, summary) * 100,
        )
        for system in systems
    ]


def _throughput(systems: Sequence[System]) -> list[Panel]:
    return [
        Panel(
            str(system),
            lambda cell, system=system: cell.system == system and cell.kind is Kind.CLOSED and cell.x <= 128,
            lambda cell, summary: summary.throughput / cell.system.capacity * 100,
        )
        for system in systems
    ]


def _axes_of_latency() -> Axes:
    return Axes("load, share of capacity (Poisson arrivals)", "mean latency, ms", (3, 1000), log_y=True)


def _axes_of_goodput() -> Axes:
    said = f"% answered within {tables.SHOWN_DEADLINE} S(B)+h"
    return Axes("load, share of capacity (Poisson arrivals)", said, (0, 104))


def _axes_of_throughput() -> Axes:
    return Axes("callers in a closed loop", "answers, % of capacity", (1, 104), log_x=True)


def _draw(found: Results, stem: Path, panels: Sequence[Panel], axes: Axes) -> list[Path]:
    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    picture = figures.Figure(figsize=(5.2 * columns, 3.4 * rows + 0.9))
    grid = picture.subplots(rows, columns, squeeze=False)
    for plot, panel in zip(grid.flat, panels, strict=False):
        _plot(plot, found, panel, axes)
    for plot in grid.flat[len(panels) :]:
        plot.set_axis_off()
    for plot in grid[:, 0]:
        plot.set_ylabel(axes.y)
    for plot in grid[-1]:
        plot.set_xlabel(axes.x)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="lower center", ncols=4, frameon=False, handlelength=4)
    picture.tight_layout(rect=(0, 0.8 / (3.4 * rows + 0.9), 1, 1))
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    picture.savefig(png, dpi=110, metadata={"Software": None})
    picture.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def _plot(plot: Any, found: Results, panel: Panel, axes: Axes) -> None:
    for name, line in LINES.items():
        points = sorted(
            (cell.x, panel.value(cell, summary))
            for (cell, contender), summary in found.items()
            if contender == name and panel.wanted(cell)
        )
        if points:
            plot.plot(*zip(*points, strict=True), label=name, **({"linewidth": 1.1, "markersize": 5} | line))
    plot.set_title(panel.title)
    plot.set_ylim(*axes.limits)
    if axes.log_y:
        plot.set_yscale("log")
        plot.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    if axes.log_x:
        plot.set_xscale("log", base=2)
        plot.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
