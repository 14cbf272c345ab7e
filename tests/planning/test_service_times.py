"""Service times as people write them are read exactly, or refused in words."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar.planning import service_times


@pytest.mark.parametrize(
    ("text", "fixed", "per_row"),
    [
        ("10+0.1n", 10, 0.1),
        ("10 + 0.1*n", 10, 0.1),
        (" 10 + .1 * n ", 10, 0.1),
        ("0.1n+10", 10, 0.1),
        ("12", 12, 0),
        ("0.5n", 0, 0.5),
        ("n", 0, 1),
        ("3 + n", 3, 1),
        ("0 + 2n", 0, 2),
    ],
)
def test_formula_is_a_fixed_part_and_a_part_for_each_instance(text: str, fixed: float, per_row: float) -> None:
    assert service_times.parse(text) == service_times.Affine(fixed / 1000, per_row / 1000)


def test_measured_pairs_are_joined_by_straight_lines() -> None:
    curve = service_times.parse("1:10, 9:18, 33:30")
    seconds = [curve.seconds(rows, 0.0) for rows in (1, 5, 9, 21, 33, 45)]
    assert seconds == pytest.approx([0.010, 0.014, 0.018, 0.024, 0.030, 0.036])


def test_a_batch_smaller_than_any_measured_is_not_hoped_to_be_faster() -> None:
    assert service_times.parse("4:10,8:11").seconds(1, 0.0) == 0.010


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 50)), min_size=2, max_size=6))
def test_measured_times_never_shrink_as_batches_grow(steps: list[tuple[int, float]]) -> None:
    rows, milliseconds, pairs = 0, 1.0, []
    for more_rows, more_milliseconds in steps:
        rows, milliseconds = rows + more_rows, milliseconds + more_milliseconds
        pairs.append(f"{rows}:{milliseconds:.6f}")
    curve = service_times.parse(",".join(pairs))
    times = [curve.seconds(size, 0.0) for size in range(1, rows + 10)]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(times))
    assert curve.seconds(rows, 0.0) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not a number"),
        ("fast", "is not a number"),
        ("10-0.1n", "is not a number"),
        ("-10", "is not a number"),
        ("1e3", "is not a number"),
        ("inf", "is not a number"),
        ("nan", "is not a number"),
        ("*n", "is not a number"),
        ("10+", "is not a number"),
        ("10+0.1n+2n", "two terms of one kind"),
        ("10+5", "two terms of one kind"),
        ("0", "no time at all"),
        ("0+0n", "no time at all"),
        ("99999999", "more than an hour"),
        ("9" * 400, "more than an hour"),
        ("1:10", "is one measurement"),
        ("8:10,1:9", "sizes must ascend, and 1 comes after 8"),
        ("1:10,1:11", "sizes must ascend"),
        ("1:10,8:9", "a batch of 8 cannot take less time than one of 1"),
        ("0:10,8:11", "'0' is not a batch size"),
        ("1.5:10,8:11", "'1.5' is not a batch size"),
        ("1:0,8:11", "cannot take no time"),
        ("1:10,", "'' is not a batch size"),
        ("1:10,8", "'' is not a number"),
    ],
)
def test_what_cannot_be_a_service_time_is_refused_with_what_is_allowed(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: milliseconds for a batch of n instances") as caught:
        service_times.parse(text)
    assert complaint in str(caught.value)
