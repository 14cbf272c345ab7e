"""The charts show every contender, and drawing them again changes no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sim import charts, contenders, grid, tables
from benchmarks.sim.cells import SYSTEMS

TINY = grid.REDUCED._replace(
    requests=60, systems=SYSTEMS[:1], irregular=(), poisson=(0.3, 0.6), callers=(4,), overloads=(1.3,)
)


@pytest.fixture(scope="module")
def found() -> grid.Results:
    return grid.run_all(grid.picture_tasks(TINY), processes=1)


def test_the_same_figures_give_the_same_files(found: grid.Results, tmp_path: Path) -> None:
    first, second = charts.draw_all(found, tmp_path / "a"), charts.draw_all(found, tmp_path / "b")
    assert {path.name for path in first} == {
        f"{stem}.{kind}" for stem in ("latency", "goodput", "throughput") for kind in ("png", "svg")
    }
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_every_contender_has_a_line_of_its_own() -> None:
    assert set(contenders.BY_NAME) <= set(charts.LINES)
    looks = [(line["linestyle"], line["marker"]) for line in charts.LINES.values()]
    assert len(set(looks)) == len(looks), "lines must be told apart without their colour"


def test_tables_have_a_row_for_every_contender(found: grid.Results) -> None:
    for table in (tables.latency(found, SYSTEMS[0]), tables.throughput(found, SYSTEMS[0])):
        assert [row[0] for row in table.rows] == list(contenders.BY_NAME)
        assert all(len(row) == len(table.header) for row in table.rows)
