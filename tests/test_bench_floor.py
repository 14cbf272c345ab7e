"""The benchmark of single steps: it measures the same on a machine that does other things as well."""

from __future__ import annotations

import itertools

from benchmarks import floor


async def test_what_a_request_costs_is_measured_in_full_batches_whatever_else_the_machine_does(caplog):
    moments = itertools.count(1000.0, 0.02)  # other programs have the core for 20 ms between any two looks at the clock
    before, after = await floor.own_microseconds(lambda: next(moments), tries=1, turns=3)
    assert before > 0
    assert after > 0
    assert caplog.messages == []


def test_without_wrk_one_line_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert floor.main([]) == 1
    assert "wrk is not on PATH" in capsys.readouterr().out
