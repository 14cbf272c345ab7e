"""The benchmark of the longest step: a large request goes through all stages, and its caller is sent its rows."""

from __future__ import annotations

import json

import pytest

from benchmarks import longest


@pytest.mark.parametrize("is_nested", [True, False])
def test_a_large_request_is_taken_through_every_stage(monkeypatch: pytest.MonkeyPatch, is_nested: bool) -> None:
    monkeypatch.setattr(longest, "_NUMBERS", 1000)
    stages = list(longest.v2_json(is_nested))
    names = ["request read", "joined with another", "copied into one", "answer read", "answer written"]
    assert [stage.name for stage in stages] == names
    assert all(0 <= stage.longest <= stage.all for stage in stages)
    (output,) = json.loads(stages[-1].result)["outputs"]
    assert output["shape"] == [10, 100]
