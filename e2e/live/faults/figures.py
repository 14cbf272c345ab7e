"""The numbers of the faults, kept over runs: out/e2e/faults.json, and out/e2e/faults.md with the table for people."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from e2e.live import reports

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "out" / "e2e"
Run = dict[str, Any]

COLUMNS = (
    "what happens",
    "runs",
    "requests",
    "right",
    "wrong",
    "failed",
    "in seconds",
    "worst gap",
    "over after",
    "besides",
)


class Figures:
    """Adds runs to the file, and writes the table again. Runs of other sources are dropped."""

    def __init__(self, state: str, folder: Path = FOLDER) -> None:
        """`state` is the digest of the sources of the images."""
        self._state = state
        self._json = folder / "faults.json"
        self._table = folder / "faults.md"
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self, situation: str, report: reports.Report, *, planned: bool, recovery: float | None = None, **besides: Any
    ) -> None:
        """One run: what the load saw, the seconds from the fault to the last failed request, and other facts."""
        seconds = None if recovery is None else round(recovery, 2)
        run = {**report.figures(), "words": report.words, "recovery_s": seconds, "besides": besides}
        runs = self._runs()
        runs.append({"situation": situation, "planned": planned, "state": self._state, **run})
        self._json.write_text(json.dumps(runs, indent=2) + "\n")
        self._table.write_text(table(runs))

    def _runs(self) -> list[Run]:
        if not self._json.exists():
            return []
        return [run for run in json.loads(self._json.read_text()) if run["state"] == self._state]


def table(runs: list[Run]) -> str:
    """A Markdown table, a row for each situation, planned ones first: sums over its runs, and the worst of them."""
    rows: list[tuple[str, ...]] = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 2), "---")]
    situations = dict.fromkeys((not run["planned"], run["situation"]) for run in runs)
    for unplanned, situation in sorted(situations, key=lambda each: each[0]):
        of_it = [run for run in runs if run["situation"] == situation]
        rows.append(_row(f"{situation}{'' if unplanned else ' (planned)'}", of_it))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(title: str, runs: list[Run]) -> tuple[str, ...]:
    recoveries = [run["recovery_s"] for run in runs if run["recovery_s"] is not None]
    return (
        title,
        str(len(runs)),
        f"{sum(run['requests'] for run in runs):,}",
        f"{sum(run['right'] for run in runs):,}",
        _counted(run["wrong"] for run in runs),
        _counted(run["failed"] for run in runs),
        str(max(run["failing_seconds"] for run in runs)),
        f"{max(run['worst_gap_s'] for run in runs):.1f} s",
        f"{max(recoveries):.1f} s" if recoveries else "",
        _facts(run["besides"] for run in runs),
    )


def _counted(counts: Iterable[dict[str, int]]) -> str:
    total: collections.Counter[str] = collections.Counter()
    for each in counts:
        total.update(each)
    return ", ".join(f"{count:,} × {kind}" for kind, count in total.most_common()) or "0"


def _facts(runs: Iterable[dict[str, Any]]) -> str:
    """The sum of numbers, the longest of times in seconds, the first of words."""
    together: dict[str, Any] = {}
    for facts in runs:
        for name, value in facts.items():
            if isinstance(value, str) or name not in together:
                together.setdefault(name, value)
            else:
                together[name] = max(together[name], value) if name.endswith("_s") else together[name] + value
    return "; ".join(_fact(name, value) for name, value in together.items())


def _fact(name: str, value: Any) -> str:
    words = name.removesuffix("_s").replace("_", " ")
    return f"{words} {value:.1f} s" if name.endswith("_s") else f"{words}: {value}"
