"""What OpenAI's clients get from `POST /v1/embeddings`, from real worker processes."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from carpool_predictor.served_model import Batching

from .conftest import Start

pytestmark = pytest.mark.uvloop

MEASURING = "m=sample_models:Measuring"
WINDOW = Batching(max_batch_size=4, max_latency=0.2)
BATCHING = pytest.mark.parametrize("batching", [None, WINDOW], ids=["one by one", "batched"])


def vectors(answer: Any) -> list[Any]:
    return [each["embedding"] for each in answer["data"]]


@BATCHING
async def test_an_answer_has_the_shape_that_openai_documents(start: Start, batching: Batching | None) -> None:
    predictor = await start(MEASURING, batching=batching)
    assert await predictor.embed({"model": "m", "input": "two words"}) == (
        200,
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [9.5, 1.0]}],
            "model": "m",
            "usage": {"prompt_tokens": 2, "total_tokens": 2},
        },
    )


@BATCHING
@pytest.mark.parametrize(
    ("given", "lengths", "tokens"),
    [
        ("a b c", [5], 3),
        ("", [0], 0),
        (["a", "b c", ""], [1, 3, 0], 3),
        ([7, 8, 9], [3], 3),
        ([[7, 8], [9]], [2, 1], 3),
        (["a b c", [7, 8]], [5, 2], 5),
        ('quoted "]" and \n, […]', [21], 5),
    ],
)
async def test_texts_and_token_ids_are_embedded_in_order_and_their_tokens_counted(
    start: Start, given: Any, lengths: list[int], tokens: int, batching: Batching | None
) -> None:
    predictor = await start(MEASURING, batching=batching)
    status, answer = await predictor.embed({"model": "m", "input": given, "user": "someone", "encoding_format": None})
    assert status == 200
    assert vectors(answer) == [[length + 0.5, float(len(lengths))] for length in lengths]
    assert [each["index"] for each in answer["data"]] == list(range(len(lengths)))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


async def test_spaces_anywhere_in_the_body_change_nothing(start: Start) -> None:
    predictor = await start(MEASURING)
    for given in (b'[\n "a",\t"bc" ]', b'"a"', b"[ 1 , 2 ]", b"[ [1 ],\n[2,3] ]"):
        spaced = await predictor.embed(b'{ "input" :  ' + given + b' , "model":\n"m"}')
        assert spaced == await predictor.embed({"model": "m", "input": json.loads(given)})
        assert spaced[0] == 200


@BATCHING
async def test_base64_is_the_same_numbers_as_little_endian_fp32(start: Start, batching: Batching | None) -> None:
    predictor = await start(MEASURING, batching=batching)
    status, answer = await predictor.embed({"model": "m", "input": ["abc", "d"], "encoding_format": "base64"})
    assert status == 200
    assert [struct.unpack("<2f", base64.b64decode(text)) for text in vectors(answer)] == [(3.5, 2.0), (1.5, 2.0)]


async def test_requests_share_a_call_of_the_model_and_nothing_else(start: Start) -> None:
    predictor = await start(MEASURING, batching=WINDOW)
    float_one, float_two, base64_one, (_, predictions) = await asyncio.gather(
        predictor.embed({"model": "m", "input": "a"}),
        predictor.embed({"model": "m", "input": [1, 2]}),
        predictor.embed({"model": "m", "input": "abc", "encoding_format": "base64"}),
        predictor.predict("m", b'{"instances":["x"]}'),
    )
    assert vectors(float_one[1]) == [[1.5, 2.0]]
    assert vectors(float_two[1]) == [[2.5, 2.0]]
    assert float_two[1]["usage"]["prompt_tokens"] == 2
    assert struct.unpack("<2f", base64.b64decode(vectors(base64_one[1])[0])) == (3.5, 1.0)
    assert json.loads(predictions) == {"predictions": [["x", 1]]}


async def test_the_body_names_the_model(start: Start) -> None:
    predictor = await start(MEASURING, "other=sample_models:Measuring")
    for name in ("m", "other"):
        status, answer = await predictor.embed({"model": name, "input": "a"})
        assert (status, answer["model"]) == (200, name)


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b"[1]", "the body must be a JSON object"),
        (b'{"model":"m","model":"m","input":"a"}', "duplicate member 'model'"),
        (b'{"input":"a"}', "'model' must be there, a string"),
        (b'{"model":7,"input":"a"}', "'model' must be there, a string"),
        (b'{"model":"m"}', "'input' must be a string, a list of token ids, or a list of such"),
        (b'{"model":"m","input":null}', "'input' must be"),
        (b'{"model":"m","input":{"text":"a"}}', "'input' must be"),
        (b'{"model":"m","input":[]}', "this list is empty"),
        (b'{"model":"m","input":[[1],[]]}', "input 1 is an empty list of token ids"),
        (b'{"model":"m","input":["a",7]}', "$[1]"),
        (b'{"model":"m","input":[1,"a"]}', "$[0][1]"),
        (b'{"model":"m","input":[1.5]}', "$[0][0]"),
        (b'{"model":"m","input":[true]}', "$[0]"),
        (b'{"model":"m","input":[["a"]]}', "$[0][0]"),
        (b'{"model":"m","input":"\xff"}', "not valid UTF-8"),
        (b'{"model":"m","input":"a","encoding_format":"int8"}', '\'encoding_format\' must be "float" or "base64"'),
        (b'{"model":"m","input":"a","dimensions":8}', "'dimensions' is not supported"),
        (b'{"model":"m","input":"invalid"}', "input 0 is not a text"),
        (b'{"model":"echo","input":"a"}', "model echo makes no embeddings"),
    ],
)
async def test_what_cannot_be_embedded_gets_400_with_the_reason_as_openai_has_it(
    start: Start, body: bytes, reason: str
) -> None:
    predictor = await start(MEASURING, "echo")
    status, answer = await predictor.embed(body)
    assert status == 400
    assert reason in answer["error"].pop("message")
    assert answer == {"error": {"type": "invalid_request_error", "param": None, "code": None}}


async def test_an_unknown_model_gets_404_with_its_code(start: Start) -> None:
    predictor = await start(MEASURING, wait=False)
    assert await predictor.embed({"model": "gpt", "input": "a"}) == (
        404,
        {
            "error": {
                "message": "no model 'gpt'; there are: m",
                "type": "invalid_request_error",
                "param": None,
                "code": "model_not_found",
            }
        },
    )


@BATCHING
async def test_model_exceptions_get_500_with_their_message(start: Start, batching: Batching | None) -> None:
    predictor = await start(MEASURING, batching=batching)
    status, answer = await predictor.embed({"model": "m", "input": "broken"})
    assert (status, answer["error"]["message"], answer["error"]["type"]) == (
        500,
        "the weights caught fire",
        "server_error",
    )


@pytest.mark.parametrize("text", ["tokens", "vectors"])
async def test_a_wrong_count_of_embeddings_or_tokens_gets_500(start: Start, text: str) -> None:
    predictor = await start("m=sample_models:Miscounting")
    status, answer = await predictor.embed({"model": "m", "input": text})
    assert (status, answer["error"]["message"]) == (500, "the model returned 0 predictions for 1 instances")


async def test_a_model_that_is_not_ready_gets_503(start: Start) -> None:
    predictor = await start(MEASURING)
    predictor.models["m"].stop()
    await predictor.runs[0]
    status, answer = await predictor.embed({"model": "m", "input": "a"})
    assert (status, answer["error"]["type"]) == (503, "server_error")


async def test_bodies_over_the_limit_get_413_and_other_methods_405_in_openais_shape(start: Start) -> None:
    predictor = await start(MEASURING, max_body=100)
    status, answer = await predictor.embed({"model": "m", "input": "a" * 100})
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    async with predictor.client.get("/v1/embeddings") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert "GET is not allowed" in (await response.json())["error"]["message"]
