"""The numbers of the faults: what hey's summary says, and what the table makes of several runs."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.live import reports
from e2e.live.faults import figures, hey

SUMMARY = """
Status code distribution:
  [200]\t1194 responses
  [502]\t3 responses

Error distribution:
  [2]\tPost "http://198.51.100.1:30080/v1/models/echo:predict": EOF
"""


def report(*kinds: str) -> reports.Report:
    seen = tuple(reports.Outcome(number, number + 1, kind) for number, kind in enumerate(kinds))
    return reports.Report(seen, seconds=len(kinds))


def test_answers_and_errors_of_hey_are_counted_apart() -> None:
    count = hey.read(SUMMARY)
    assert count.statuses == {200: 1194, 502: 3}
    assert count.errors == {'Post "http://198.51.100.1:30080/v1/models/echo:predict": EOF': 2}
    assert (count.failed, count.requests) == (5, 1199)


def test_a_summary_without_errors_has_none() -> None:
    assert hey.read(SUMMARY.partition("Error")[0]).failed == 3
    assert hey.read("").requests == 0


def test_a_row_has_the_sums_of_its_runs_and_the_worst_of_their_times(tmp_path: Path) -> None:
    book = figures.Figures("one", tmp_path)
    book.add("pod killed", report("right", "502", "right"), planned=False, recovery=1.25, back_s=3.0, pods=2)
    book.add("pod killed", report("right", "right", "hung up"), planned=False, recovery=4.5, back_s=1.0, pods=3)
    book.add("rolling update", report("right"), planned=True)
    lines = (tmp_path / "faults.md").read_text().splitlines()
    assert lines[2].startswith("| rolling update (planned) | 1 | 1 | 1 | 0 | 0 | 0 | 1.0 s |")
    assert lines[3] == (
        "| pod killed | 2 | 6 | 4 | 0 | 1 × 502, 1 × hung up | 1 | 2.0 s | 4.5 s | back 3.0 s; pods: 5 |"
    )


def test_runs_of_other_sources_are_dropped(tmp_path: Path) -> None:
    figures.Figures("old", tmp_path).add("pod killed", report("502"), planned=False)
    figures.Figures("new", tmp_path).add("pod killed", report("right"), planned=False)
    (run,) = json.loads((tmp_path / "faults.json").read_text())
    assert run["state"] == "new"
