"""What each server gains, as one picture: a bar for its own batching and one for the sidecar, beside neither.

It shows work and not throughput, which programs beside the scene disturb more.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import figure as figures
from matplotlib import ticker

from benchmarks.scenes import scene, stage, tables

STYLE: Any = {"font.size": 9, "axes.axisbelow": True, "svg.hashsalt": "carpool", "svg.fonttype": "none"}
BARS = ((stage.OWN, "its own batching", "#9aa5b1", 0.2), (stage.WITH, "with the sidecar", "#00796b", -0.2))
HIGH = 0.38  # of a bar; a scene has a room of 1


def draw(played: tables.Played, scenes: Sequence[scene.Scene], file: pathlib.Path) -> bool:
    """Write the SVG, largest gain first; False if nothing was played."""
    gains = {each: _gains(played, each) for each in scenes}
    shown = sorted((each for each in scenes if stage.WITH in gains[each]), key=lambda each: gains[each][stage.WITH])
    if not shown:
        return False
    with matplotlib.rc_context(STYLE):
        picture = figures.Figure(figsize=(9, 0.9 + 0.42 * len(shown)))
        plot = picture.subplots()
        for way, label, colour, offset in BARS:
            places = [(at + offset, gains[each][way]) for at, each in enumerate(shown) if way in gains[each]]
            bars = plot.barh(
                [at for at, _ in places], [gain - 1 for _, gain in places], HIGH, 1, color=colour, label=label
            )
            plot.bar_label(bars, [f" {gain:.1f}x " for _, gain in places], color="#444444")
        plot.set_xscale("log", base=2)
        plot.xaxis.set_major_formatter(ticker.FormatStrFormatter("%gx"))
        plot.axvline(1, color="black", linewidth=0.8)
        plot.set_yticks(range(len(shown)), [f"{each.server}\n{each.model}" for each in shown], fontsize=7)
        plot.margins(x=0.12)
        plot.set_title("Rows for the same processor time, times those without", loc="left", fontsize=9)
        plot.spines[["top", "right"]].set_visible(False)
        plot.legend(frameon=False, loc="lower right")
        picture.tight_layout()
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(file, metadata={"Date": None, "Creator": None})
    return True


def _gains(played: tables.Played, of: scene.Scene) -> dict[str, float]:
    rounds = played[of.name]["outcome"]["rounds"] if of.name in played else []
    found = {way: tables.figures(rounds, way) for way, *_ in BARS}
    return {way: each.saved for way, each in found.items() if each is not None}
