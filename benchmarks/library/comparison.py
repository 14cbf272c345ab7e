"""The order of measuring, and what came out: systems take turns within each cell, so that a busy hour meets all."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.library import cells, runs, systems
from benchmarks.peers import environments

Measure = Callable[[systems.System, dict[str, Any]], dict[str, Any]]
"""Carries out a job and returns its figures; raises `runs.Failed`."""


@dataclasses.dataclass
class Outcome:
    """A system in a cell: for each setting that was measured to the end, the rounds; and why there are none."""

    system: systems.System
    cell: cells.Cell
    rounds: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    def median(self, figure: cells.Figure | str) -> float | None:
        """The median of a figure over the rounds, of the setting that is best in it."""
        found = self.best(figure)
        return None if found is None else statistics.median(found[1])

    def spread(self, figure: cells.Figure | str) -> float | None:
        """How far rounds lie from the median at most, as a share of it."""
        found = self.best(figure)
        if found is None or not (middle := statistics.median(found[1])):
            return None
        return max(abs(value - middle) for value in found[1]) / middle

    def best(self, figure: cells.Figure | str) -> tuple[str, list[float]] | None:
        """The setting that is best in a figure by its median, and the figure in each of its rounds."""
        name, more = (figure.name, figure.more_is_better) if isinstance(figure, cells.Figure) else (figure, True)
        found = {setting: values(rounds, name) for setting, rounds in self.rounds.items()}
        usable = {setting: seen for setting, seen in found.items() if seen}
        if not usable:
            return None
        sign = 1 if more else -1
        chosen = max(usable, key=lambda setting: sign * statistics.median(usable[setting]))
        return chosen, usable[chosen]

    def beside(self, figure: cells.Figure, other: str) -> float | None:
        """The median of another figure, in the setting that is best in this one."""
        found = self.best(figure)
        seen = values(self.rounds[found[0]], other) if found else []
        return statistics.median(seen) if seen else None

    @property
    def only(self) -> dict[str, Any] | None:
        """What a cell gave that has one round."""
        return next((rounds[0] for rounds in self.rounds.values() if rounds), None)

    def errors(self) -> dict[str, int]:
        """Calls that failed, by what they failed with, over all rounds."""
        found: dict[str, int] = {}
        for one in (one for rounds in self.rounds.values() for one in rounds):
            for kind, count in one.get("errors", {}).items():
                found[kind] = found.get(kind, 0) + count
        return found


def values(rounds: Iterable[dict[str, Any]], figure: str) -> list[float]:
    """A figure in each of the rounds that have it. JSON's NaN, of no answers, is none."""
    found = [one.get(figure) for one in rounds]
    return [value for value in found if isinstance(value, int | float) and not math.isnan(value)]


def setting_text(variant: dict[str, Any]) -> str:
    """How a setting is named."""
    queue = f", queue {variant['queue']}" if variant.get("queue") else ""
    in_flight = f", {variant['in_flight']} in flight" if variant.get("in_flight") else ""
    return f"{variant['wait'] * 1000:g} ms{queue}{in_flight}"


@dataclasses.dataclass
class Comparison:
    """Runs cells. `seconds` are for cells that say nothing else, halved if `brief`; `say` is told each step."""

    measure: Measure
    seconds: float
    rounds: int
    trial_seconds: float
    say: Callable[[str], None]
    advance: Callable[[], None] = lambda: None
    loop: str = "asyncio"
    brief: bool = False

    def run(self, chosen: Sequence[cells.Cell], field: Sequence[systems.System]) -> Iterator[list[Outcome]]:
        """Measure every cell, and everybody in it; the outcomes of one cell after the other."""
        for cell in chosen:
            outcomes = [Outcome(system, cell) for system in field if cell.takes(system)]
            self._cell(cell, outcomes)
            yield outcomes
            self.advance()

    def _cell(self, cell: cells.Cell, outcomes: list[Outcome]) -> None:
        kept = {outcome.system: self._kept(cell, outcome) for outcome in outcomes}
        for number in range(self.rounds if cell.is_repeated else 1):
            # Everybody begins a round once, so that nobody is always measured behind the same one.
            turn = number % max(1, len(outcomes))
            for outcome in outcomes[turn:] + outcomes[:turn]:
                self.say(f"{cell.name}, round {number + 1}: {outcome.system.name}")
                for variant in kept[outcome.system]:
                    self._one(outcome, variant, self._length(cell), seed=1000 + number)

    def _length(self, cell: cells.Cell) -> float:
        return (cell.seconds or self.seconds) * (0.5 if self.brief and cell.seconds else 1.0)

    def _trial_length(self, cell: cells.Cell) -> float:
        """An open loop has half a second in which nothing is counted."""
        return self.trial_seconds + (1.0 if cell.job["cell"] == "open" else 0.0)

    def _kept(self, cell: cells.Cell, outcome: Outcome) -> list[dict[str, Any]]:
        """The settings that are best in one of the cell's figures, by a short trial of each."""
        variants = cell.variants(outcome.system)
        if len(variants) == 1:
            return variants
        trial = Outcome(outcome.system, cell)
        for variant in variants:
            self.say(f"{cell.name}, trial of {setting_text(variant)}: {outcome.system.name}")
            self._one(trial, variant, self._trial_length(cell), seed=999)
        best = [trial.best(figure) for figure in cell.figures]
        names = {found[0] for found in best if found is not None}
        return [variant for variant in variants if setting_text(variant) in names] or variants[:1]

    def _one(self, outcome: Outcome, variant: dict[str, Any], seconds: float, seed: int) -> None:
        job = {**outcome.cell.job, **variant, "seconds": seconds, "seed": seed, "loop": self.loop}
        if outcome.cell.group == cells.MINILM:
            job["path"] = cells.minilm_path() or []
        try:
            figures = self.measure(outcome.system, job)
        except runs.Failed as failure:
            outcome.failures.append(str(failure))
            return
        outcome.rounds.setdefault(setting_text(variant), []).append(figures)


def steps(chosen: Sequence[cells.Cell]) -> int:
    """How often `advance` will be called."""
    return len(chosen)


def prepare(
    field: Sequence[systems.System], cache: pathlib.Path, say: Callable[[str], None]
) -> tuple[list[systems.System], dict[str, str]]:
    """Install what is pinned. Returns whom that leaves, and why the others are not there, by peer."""
    absent: dict[str, str] = {}
    for peer in dict.fromkeys(system.peer for system in field if system.is_peer):
        reason = environments.missing(peer)
        if reason is None:
            try:
                environments.prepare(cache, peer, say)
            except OSError as error:
                reason = " ".join(str(error).split())[:300]
        if reason is not None:
            absent[peer] = reason
    return [system for system in field if system.peer not in absent], absent
