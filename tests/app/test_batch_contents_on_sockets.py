"""Limits of a batch beside instances, and priorities, with real bodies."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.looptime


async def test_a_batch_keeps_its_budget_of_array_elements_and_all_are_answered(sidecar_of):
    bench = await sidecar_of(max_batch_size=32, max_latency=5, instance_cost="length", max_batch_cost=6)
    bodies = [json.dumps({"instances": [[0] * length]}) for length in (3, 2, 4, 9, 1)]
    answers = await bench.post_all(*bodies)
    assert [status for status, _, _ in answers] == [200] * 5
    costs = [[len(json.loads(row)) for row in batch] for batch in bench.predictor.batches]
    assert sorted(cost for batch in costs for cost in batch) == [1, 2, 3, 4, 9]
    assert all(sum(batch) <= 6 or batch == [9] for batch in costs)


async def test_a_body_with_more_bytes_than_a_batch_may_have_is_cut_at_its_instances(sidecar_of):
    bench = await sidecar_of(max_batch_size=32, max_latency=5, max_batch_bytes=100)
    instances = ["x" * 38] * 5
    _, body, headers = await bench.post(json.dumps({"instances": instances}))
    assert json.loads(body)["predictions"] == instances
    assert [len(batch) for batch in bench.predictor.batches] == [2, 2, 1]
    assert headers["carpool-batch-count"] == "3"
