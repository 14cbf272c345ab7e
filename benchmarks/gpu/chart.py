"""The figures as one picture: what batching buys, what it costs in time, the policies, and S(n).

With is thick and black, without is red; a system of somebody else's has a colour, a dash and a marker of its own.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import figure as figures
from matplotlib import ticker

from benchmarks.gpu import policy, tables
from benchmarks.gpu.measuring import Row
from benchmarks.gpu.results import Section
from benchmarks.peers.chart import COLOURS, DASHES, MARKERS, MINE, STYLE

_WITH = {"color": MINE, "linewidth": 2.4, "zorder": 5, "marker": "o"}
_WITHOUT = {"color": COLOURS[0], "linewidth": 1.4, "linestyle": "--", "marker": "v"}

Plot = Callable[[Any, dict[str, Any]], None]


def draw(sections: Sequence[Section], file: pathlib.Path) -> bool:
    """Write the picture, a row for each model. False, and no file, if nothing that is drawn was measured."""
    models = list(dict.fromkeys(str(section.content["model"]) for section in sections if "model" in section.content))
    found = [
        (model, _plots([each.content for each in sections if each.content.get("model") == model], sections))
        for model in models
    ]
    drawn = [(model, plots) for model, plots in found if plots]
    if not drawn:
        return False
    widest = max(len(plots) for _, plots in drawn)
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "carpool"}):
        picture = figures.Figure(figsize=(4.4 * widest, 3.9 * len(drawn)))
        grid = picture.subplots(len(drawn), widest, squeeze=False)
        for row, (model, plots) in enumerate(drawn):
            for place in range(widest):
                if place < len(plots):
                    plot, content = plots[place]
                    plot(grid[row, place], content)
                    grid[row, place].set_title(f"{model}: {grid[row, place].get_title()}", fontsize=9)
                else:
                    grid[row, place].set_axis_off()
        picture.tight_layout()
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(file, metadata={"Date": None, "Creator": None})
    return True


def _plots(contents: Sequence[dict[str, Any]], sections: Sequence[Section]) -> list[tuple[Plot, dict[str, Any]]]:
    """What can be drawn of a model's sections."""
    kinds = {section.kind: section.content for section in sections if section.content in contents}
    plots: list[tuple[Plot, dict[str, Any]]] = []
    if "batching" in kinds:
        plots += [(_rates, kinds["batching"]), (_latencies, kinds["batching"])]
    if "policy" in kinds:
        plots += [(_sweep, kinds["policy"]), (_service, kinds["policy"])]
    return plots


def _rates(plot: Any, content: dict[str, Any]) -> None:
    _lines(plot, content, lambda row: row["rate"])
    plot.set_yscale("log")
    plot.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    plot.set_title("requests/s by callers")


def _latencies(plot: Any, content: dict[str, Any]) -> None:
    _lines(plot, content, lambda row: row["p99"] * 1e3)
    plot.set_yscale("log")
    plot.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    plot.set_title("p99, ms, by callers")


def _lines(plot: Any, content: dict[str, Any], value: Callable[[Row], float]) -> None:
    """A line for each system; rows that went wrong are left out."""
    names = list(dict.fromkeys(row["system"] for row in content["rows"]))
    for number, name in enumerate(names):
        rows = [row for row in content["rows"] if row["system"] == name and not tables.state(row)]
        plot.plot([row["callers"] for row in rows], [value(row) for row in rows], label=name, **_look(name, number))
    plot.set_xscale("log", base=2)
    plot.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    plot.set_xlabel("callers, each with one request at a time")
    plot.legend(frameon=False)


def _look(name: str, number: int) -> dict[str, Any]:
    if name in ("with", policy.ADAPTIVE):
        return _WITH
    if name == "without":
        return _WITHOUT
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "linewidth": 1.1, "linestyle": DASHES[number % len(DASHES)], "marker": marker}


def _sweep(plot: Any, content: dict[str, Any]) -> None:
    """p99 over the load, of every window thin and of the adaptive policy thick."""
    turns = list(dict.fromkeys((row["turn"], row["system"]) for row in content["rows"]))
    names = list(dict.fromkeys(name for _, name in turns))
    for turn, name in turns:
        rows = [row for row in content["rows"] if (row["turn"], row["system"]) == (turn, name)]
        rows = [row for row in rows if not tables.state(row)]
        shown = name if (turn, name) == next(each for each in turns if each[1] == name) else None
        look = _look(name, names.index(name))
        plot.plot([row["load"] for row in rows], [row["p99"] * 1e3 for row in rows], label=shown, **look)
    plot.set_yscale("log")
    plot.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    plot.xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    plot.set_xlabel(f"load, share of {content['capacity']:,.0f} req/s (Poisson)")
    plot.set_title("p99, ms, by load (none: saturated)")
    plot.legend(frameon=False, fontsize=7)


def _service(plot: Any, content: dict[str, Any]) -> None:
    """S(n), measured and learned."""
    sizes = [row["size"] for row in content["service"]]
    plot.plot(sizes, [row["median"] * 1e3 for row in content["service"]], label="measured", **_WITH)
    known = [each for each in content["learned"] if each["turn"] == 0 and "service_fixed_seconds" in each]
    for number, learned in enumerate(known):
        guesses = [policy.predicted(learned, size) * 1e3 for size in sizes]
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        plot.plot(
            sizes, guesses, label=f"learned at {learned['load']:.0%}", color=colour, linestyle=dash, linewidth=1.1
        )
    plot.set_ylim(bottom=0)
    plot.set_xlabel("instances in a call")
    plot.set_title("S(n), ms")
    plot.legend(frameon=False)
