"""Models in stages and models whose memory is full, as callers and the sidecar see them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from carpool_predictor.served_model import Batching
from carpool_sidecar import errors as sidecar_errors
from carpool_sidecar.batching import size_refusals

from .conftest import Predictor, Start, ready

pytestmark = pytest.mark.uvloop

STAGED = "m=sample_models:Staged"
WINDOW = Batching(max_batch_size=8, max_latency=0.2)
FIRE = (500, "the weights caught fire")


async def ask(predictor: Predictor, *instances: Any) -> tuple[int, Any]:
    status, body = await predictor.predict("m", json.dumps({"instances": instances}))
    answer = json.loads(body)
    return status, answer["predictions"] if status == 200 else answer["error"]


@pytest.mark.parametrize("batching", [None, WINDOW])
async def test_many_requests_at_once_each_get_their_own_predictions(start: Start, batching: Batching | None) -> None:
    predictor = await start(STAGED, batching=batching)
    answers = await asyncio.gather(*(ask(predictor, f"a {place}", "b") for place in range(50)))
    assert answers == [(200, [f"a {place}", "b"]) for place in range(50)]


@pytest.mark.parametrize("stage", ["prepare", "compute", "finish"])
@pytest.mark.parametrize("batching", [None, WINDOW])
async def test_what_a_stage_raises_fails_its_own_request_alone(
    start: Start, stage: str, batching: Batching | None
) -> None:
    predictor = await start(STAGED, batching=batching)
    for _ in range(3):
        answers = await asyncio.gather(ask(predictor, "x"), ask(predictor, f"{stage} raise"), ask(predictor, "y"))
        assert answers == [(200, ["x"]), FIRE, (200, ["y"])]


@pytest.mark.parametrize("stage", ["prepare", "compute", "finish"])
async def test_instances_that_no_stage_takes_are_told_as_400(start: Start, stage: str) -> None:
    predictor = await start(STAGED)
    assert await ask(predictor, f"{stage} invalid") == (400, "instance 0 is no picture")


async def test_a_lost_prediction_is_told(start: Start) -> None:
    predictor = await start(STAGED)
    assert await ask(predictor, "too few", "x") == (500, "the model returned 1 predictions for 2 instances")


async def test_a_malformed_body_disturbs_no_stage(start: Start) -> None:
    predictor = await start(STAGED)
    good, (status, _) = await asyncio.gather(ask(predictor, "x"), predictor.predict("m", b'{"instances":[1,]}'))
    assert (good, status) == ((200, ["x"]), 400)


async def test_embeddings_go_through_stages_of_their_own(start: Start) -> None:
    predictor = await start("m=sample_models:StagedMeasuring")
    status, answer = await predictor.embed({"model": "m", "input": ["a", "bcd"]})
    assert status == 200
    assert [each["embedding"] for each in answer["data"]] == [[1.0], [3.0]]
    assert answer["usage"]["total_tokens"] == 2
    for stage in ("prepare", "compute", "finish"):
        status, answer = await predictor.embed({"model": "m", "input": f"{stage} raise"})
        assert (status, answer["error"]["message"]) == FIRE


async def test_a_model_in_stages_that_makes_no_embeddings_says_so(start: Start) -> None:
    predictor = await start(STAGED)
    status, answer = await predictor.embed({"model": "m", "input": "x"})
    assert (status, answer["error"]["message"]) == (400, "model m makes no embeddings")


@pytest.mark.parametrize("stage", ["prepare", "compute", "finish"])
async def test_memory_that_is_full_is_told_so_that_the_sidecar_sends_fewer(start: Start, stage: str) -> None:
    predictor = await start(STAGED)
    status, body = await predictor.predict("m", json.dumps({"instances": [f"{stage} memory"] * 9}))
    assert size_refusals.read(sidecar_errors.UpstreamStatus(status, body), 9) == size_refusals.Sign(memory=True)
    assert await ask(predictor, "x") == (200, ["x"])


async def test_torchs_own_word_for_full_memory_is_told_so_as_well(start: Start) -> None:
    predictor = await start("m=sample_models:Hungry")
    status, body = await predictor.predict("m", b'{"instances":[1,2,3]}')
    assert size_refusals.read(sidecar_errors.UpstreamStatus(status, body), 3) == size_refusals.Sign(memory=True)
    assert await ask(predictor, 1, 2) == (200, [1, 2])


async def test_a_server_that_batches_by_itself_sends_fewer_when_memory_is_full(start: Start) -> None:
    predictor = await start("m=sample_models:Hungry", batching=WINDOW)
    answers = await asyncio.gather(*(ask(predictor, place) for place in range(8)))
    assert answers == [(200, [place]) for place in range(8)]
    assert await ask(predictor, "hungry") == (500, "CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("stage", ["prepare", "compute", "finish"])
async def test_a_worker_whose_device_is_lost_is_started_again(start: Start, stage: str) -> None:
    predictor = await start(STAGED)
    status, error = await ask(predictor, f"{stage} lost")
    assert status == 503
    assert "died" in error
    await ready(predictor.models["m"])
    while (answer := await ask(predictor, "x"))[0] == 503:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert answer == (200, ["x"])
