"""Carpool forms batches, and lets requests wait, differently from KServe's batcher, on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from e2e.live.batcher import sides, tables, targets


def sizes(calls: list[targets.Call]) -> list[int]:
    """Instances in each call, the largest first."""
    return sorted((len(call.instances) for call in calls), reverse=True)


async def test_callers_of_two_models_at_the_same_time(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """requests share a batch only if they agree in their path: nobody gets another model's predictions"""
    both = await asyncio.gather(short_wait.predict(f"a-{model}", [1, 2]), short_wait.predict(f"b-{model}", [3]))
    assert [answer.status for answer in both] == [200, 200]
    calls = await short_wait.recorded(model)
    expected = side.expects(kserve="3 instances to 1 of 2 models", carpool="3 instances to 2 of 2 models")
    called = {call.target for call in calls}
    assert observed(f"{sum(sizes(calls))} instances to {len(called)} of 2 models") == expected


async def test_callers_with_two_queries_at_the_same_time(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """the query reaches the predictor, and only those with the same one share a batch"""
    headers = {"Content-Type": "application/json"}
    asked = [(f"{targets.predict_path(model)}?signature={name}", b'{"instances": [1]}') for name in ("one", "two")]
    await asyncio.gather(*(short_wait.send("POST", target, body, headers) for target, body in asked))
    queries = sorted(call.target.partition("?")[2] for call in await short_wait.recorded(model))
    assert observed(" and ".join(each or "no query" for each in queries)) == side.expects(
        kserve="no query", carpool="signature=one and signature=two"
    )


async def test_callers_with_two_signatures_at_the_same_time(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """members beside `instances` reach the predictor, and only those with the same ones share a batch"""
    bodies = [{"instances": [1], "signature_name": name} for name in ("one", "two")]
    await asyncio.gather(*(short_wait.predict_raw(model, json.dumps(body).encode()) for body in bodies))
    seen = sorted(json.loads(call.body).get("signature_name", "none") for call in await short_wait.recorded(model))
    assert observed(" and ".join(seen)) == side.expects(kserve="none", carpool="one and two")


async def test_callers_with_two_forms_of_instances_at_the_same_time(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """what a caller gets from a server that makes one array of all instances does not depend on who is beside it"""
    await short_wait.predict_all(model, [[1], ["one"]])
    calls = await short_wait.recorded(model)
    assert observed(f"calls of {sizes(calls)}") == side.expects(kserve="calls of [2]", carpool="calls of [1, 1]")


async def test_callers_with_two_credentials_at_the_same_time(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """credentials reach the predictor, and callers with different ones share no batch"""
    tokens = ("Bearer one", "Bearer two")
    await asyncio.gather(*(short_wait.predict(model, [1], {"Authorization": token}) for token in tokens))
    seen = sorted(call.headers.get("authorization", "none") for call in await short_wait.recorded(model))
    assert observed(" and ".join(seen)) == side.expects(kserve="none", carpool="Bearer one and Bearer two")


async def test_a_request_larger_than_max_batch_size(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """maxBatchSize is a cap, not a trigger: a larger request is split and rejoined"""
    answer = await small_batches.predict(model, range(10))
    assert answer.json["predictions"] == list(range(10))
    calls = sizes(await small_batches.recorded(model))
    when = "at once" if answer.elapsed < sides.SMALL_BATCHES.window / 2 else "after maxLatency"
    assert observed(f"of 10, in a call: {calls}; {when}") == side.expects(
        kserve="of 10, in a call: [10]; at once", carpool="of 10, in a call: [4, 4, 2]; at once"
    )
    assert answer.headers.get("carpool-batch-count", "1") == side.expects(kserve="1", carpool="3")


async def test_two_requests_that_are_larger_than_max_batch_size_together(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """maxBatchSize is a cap, not a trigger"""
    answers = await short_wait.predict_all(model, [range(20), range(20)])
    assert all(answer.json["predictions"] == list(range(20)) for answer in answers)
    calls = sizes(await short_wait.recorded(model))
    assert observed(f"largest call: {calls[0]}") == side.expects(kserve="largest call: 40", carpool="largest call: 20")
    assert sum(calls) == 40


async def test_a_caller_that_came_while_the_predictor_was_busy(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """maxLatency counts from a request's arrival; KServe's clock stands still while a call runs"""
    async with asyncio.TaskGroup() as group:
        group.create_task(short_wait.predict(f"first-{model}", [{"wait": 1.5}]))
        await short_wait.until_recorded(f"first-{model}")
        group.create_task(short_wait.predict(f"second-{model}", [1]))
    first, second = await short_wait.recorded(model)
    assert first.ended is not None
    waited = second.began - first.ended
    is_at_once = waited < sides.SHORT_WAIT.window / 2
    assert observed("as the predictor is free" if is_at_once else "maxLatency later") == side.expects(
        kserve="maxLatency later", carpool="as the predictor is free"
    )
    assert is_at_once or waited >= sides.SHORT_WAIT.window


@pytest.mark.parametrize("side", sides.BY_ANNOTATION, ids=lambda side: side.key, indirect=True)
async def test_two_full_batches_at_the_same_time(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """max-in-flight is 2 here: for predictors that work on several calls at once"""
    slow = [{"wait": 0.6}, 2, 3, 4]
    await small_batches.predict_all(model, [slow, slow])
    first, second = sorted(await small_batches.recorded(model), key=lambda call: call.began)
    assert first.ended is not None
    overlap = second.began < first.ended
    assert observed("side by side" if overlap else "one after the other") == side.expects(
        kserve="one after the other", carpool="side by side"
    )


async def test_a_caller_that_hangs_up_while_it_waits(
    short_wait: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """nothing is computed for a caller that has left"""
    staying = asyncio.create_task(short_wait.predict(model, ["stays"]))
    with contextlib.suppress(TimeoutError):
        await short_wait.predict(model, ["leaves"], patience=0.25)
    assert (await staying).json["predictions"] == ["stays"]
    (call,) = await short_wait.recorded(model)
    assert observed(f"predicts for {' and '.join(sorted(call.instances))}") == side.expects(
        kserve="predicts for leaves and stays", carpool="predicts for stays"
    )


async def test_a_lone_request_without_a_max_latency(
    defaults: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """KServe's default of 5 s helps no caller; the webhook lets the sidecar learn when to send"""
    times = side.expects(kserve=1, carpool=3)
    elapsed = min([(await defaults.predict(model, [1])).elapsed for _ in range(times)])
    at_least, below = side.expects(kserve=(5.0, 7.0), carpool=(0.0, 0.45), drop_in=(0.5, 2.0))
    assert at_least <= elapsed < below, elapsed
    assert observed(f"after {at_least:g} s") == side.expects(
        kserve="after 5 s", carpool="after 0 s", drop_in="after 0.5 s"
    )
