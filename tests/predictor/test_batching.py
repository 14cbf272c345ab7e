"""A predictor that batches by itself: requests share calls of the model, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from typing import Any

import pytest

from carpool_predictor.served_model import Batching

from .conftest import Predictor, Start

pytestmark = pytest.mark.uvloop

COUNTING = "m=sample_models:Counting"
WINDOW = Batching(max_batch_size=8, max_latency=0.2)
ADAPTIVE = Batching(max_batch_size=8, max_latency=None)


async def ask(predictor: Predictor, *instances: Any) -> tuple[int, Any]:
    status, body = await predictor.predict("m", json.dumps({"instances": instances}))
    answer = json.loads(body)
    return status, answer["predictions"] if status == 200 else answer["error"]


async def together(predictor: Predictor, *requests: list[Any]) -> list[tuple[int, Any]]:
    return await asyncio.gather(*(ask(predictor, *instances) for instances in requests))


async def test_concurrent_requests_share_a_call_and_each_has_its_own_predictions(start: Start) -> None:
    predictor = await start(COUNTING, batching=WINDOW)
    answers = await together(predictor, ["a", "b"], ["c"], ["d", "e", "f"], ["g", "h"])
    assert answers == [
        (200, [["a", 8], ["b", 8]]),
        (200, [["c", 8]]),
        (200, [["d", 8], ["e", 8], ["f", 8]]),
        (200, [["g", 8], ["h", 8]]),
    ]


async def test_without_being_asked_to_each_request_is_a_call_of_its_own(start: Start) -> None:
    predictor = await start(COUNTING)
    assert await together(predictor, ["a", "b"], ["c"]) == [(200, [["a", 2], ["b", 2]]), (200, [["c", 1]])]


async def test_a_request_larger_than_a_batch_is_split_and_put_together_again(start: Start) -> None:
    predictor = await start(COUNTING, batching=WINDOW)
    status, predictions = await ask(predictor, *range(20))
    assert status == 200
    assert [number for number, _ in predictions] == list(range(20))
    assert {size for _, size in predictions} <= set(range(1, 9))


async def test_without_a_latency_what_waits_is_learned_and_all_are_answered(start: Start) -> None:
    predictor = await start(COUNTING, batching=ADAPTIVE)
    answers = await together(predictor, *([number, -number] for number in range(90)))
    assert [(status, [number for number, _ in found]) for status, found in answers] == [
        (200, [number, -number]) for number in range(90)
    ]


async def test_a_bad_instance_is_its_own_callers_alone(start: Start) -> None:
    predictor = await start("m=echo", batching=WINDOW, echo_poison='"bad"')
    answers = await together(predictor, [1, 2], ["good", "bad"], [3])
    assert answers == [(200, [1, 2]), (400, "instance 1 is poison"), (200, [3])]


async def test_a_model_that_raises_for_one_instance_fails_its_caller_alone(start: Start) -> None:
    predictor = await start("m=sample_models:Choosy", batching=WINDOW)
    answers = await together(predictor, [1], [2], ["odd"], [4])
    assert answers == [(200, [1]), (200, [2]), (500, "it is odd"), (200, [4])]


async def test_a_malformed_body_never_joins_a_batch(start: Start) -> None:
    predictor = await start(COUNTING, batching=WINDOW)
    good, (status, body) = await asyncio.gather(ask(predictor, "a"), predictor.predict("m", b'{"instances":[1,]}'))
    assert (good, status) == ((200, [["a", 1]]), 400)
    assert b"trailing comma" in body


async def test_predictions_come_back_byte_for_byte(start: Start) -> None:
    rows = rb'9007199254740993,1.0,1e400,"\u003c",-0.0,{"a" : [ 1 ]},"\ud83d\ude00"'
    predictor = await start("echo", batching=WINDOW)
    assert await predictor.predict("echo", b'{"instances":[' + rows + b"]}") == (
        200,
        b'{"predictions":[' + rows + b"]}",
    )


async def test_numbers_beyond_what_the_model_can_read_are_the_fault_of_their_caller(start: Start) -> None:
    predictor = await start(COUNTING, batching=WINDOW)
    good, (status, body) = await asyncio.gather(ask(predictor, "a"), predictor.predict("m", b'{"instances":[1e400]}'))
    assert (good[0], status) == (200, 400)
    assert b"out of range" in body


async def test_a_worker_that_dies_takes_its_batch_with_it(start: Start) -> None:
    predictor = await start("m=sample_models:Mortal", batching=WINDOW, pause=3600.0)
    answers = await together(predictor, [1], ["die"])
    assert [status for status, _ in answers] == [503, 503]
    assert "died" in answers[0][1]


async def test_as_many_calls_as_may_wait_are_counted_in_requests(start: Start) -> None:
    predictor = await start(COUNTING, batching=WINDOW, calls=2)
    answers = await together(predictor, ["a"], ["b"], ["c"])
    assert sorted(status for status, _ in answers) == [200, 200, 503]
    assert await ask(predictor, "d") == (200, [["d", 1]])


@pytest.mark.parametrize("batching", [None, Batching(max_batch_size=1, max_latency=0)])
async def test_each_device_has_a_worker_and_they_predict_at_the_same_time(
    start: Start, tmp_path: pathlib.Path, batching: Batching | None
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    predictor = await start("m=sample_models:Meeting", devices=("cpu", "cuda:1"), batching=batching)
    model = predictor.models["m"]
    while not all(each.state.value == "ready" for each in model.pool.workers):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    answers = await together(predictor, [f"READ {pipe}"], [f"WRITE {pipe}"])
    assert sorted(answers) == [(200, ["cpu"]), (200, ["cuda:1"])]
