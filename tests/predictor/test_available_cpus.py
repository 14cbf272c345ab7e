"""The CPUs a container may use."""

from __future__ import annotations

import os
import pathlib

import pytest

from carpool_predictor import model_loading


@pytest.mark.parametrize(("text", "limit"), [("50000 100000", 1), ("100000 100000", 1), ("150000 100000", 2)])
def test_a_cpu_limit_is_rounded_up(tmp_path: pathlib.Path, text: str, limit: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert model_loading.available_cpus(tmp_path / "cpu.max") == min(limit, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("text", ["max 100000", "99900000 100000", "nonsense", None])
def test_without_a_lower_limit_it_is_the_affinity_mask(tmp_path: pathlib.Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert model_loading.available_cpus(tmp_path / "cpu.max") == len(os.sched_getaffinity(0))
