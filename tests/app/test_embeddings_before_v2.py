"""OpenAI's embeddings through a whole sidecar in front of the fake v2 server, which is asked over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from tests.app import v2_bench

PATH = "/v1/embeddings"


@pytest.fixture(params=["triton-http", "triton-grpc"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[v2_bench.Bench]:
    async with v2_bench.running(upstream=request.param, lists="openai-embeddings") as running:
        yield running


async def post(
    bench: v2_bench.Bench, body: Any, path: str = PATH, kind: str = "application/json", **headers: str
) -> v2_bench.Answer:
    return await bench.post(path, body, {"Content-Type": kind, **headers})


async def embed(bench: v2_bench.Bench, what: Any, model: str = "embedder", **members: Any) -> v2_bench.Answer:
    return await post(bench, {"model": model, "input": what, **members})


def vectors(answer: v2_bench.Answer) -> list[list[float]]:
    assert answer.status == 200, answer
    assert [each["index"] for each in answer.json["data"]] == list(range(len(answer.json["data"])))
    rows = [each["embedding"] for each in answer.json["data"]]
    return [np.frombuffer(base64.b64decode(row), "<f4").tolist() if isinstance(row, str) else row for row in rows]


def told(answer: v2_bench.Answer, status: int) -> dict[str, Any]:
    """The error of an answer with this status, in OpenAI's shape."""
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == "application/json"
    assert list(answer.json) == ["error"]
    error: dict[str, Any] = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def behind_a_first(bench: v2_bench.Bench, *bodies: dict[str, Any]) -> list[v2_bench.Answer]:
    """The answers to these, all of which came while another was at the server."""
    bench.fake.gate.clear()
    earlier = asyncio.ensure_future(embed(bench, "first"))
    await bench.fake.at_work(1)
    tasks = [asyncio.ensure_future(post(bench, {"model": "embedder", **body})) for body in bodies]
    await bench.queued(1 + len(tasks))
    bench.fake.gate.set()
    await earlier
    return await asyncio.gather(*tasks)


async def test_a_text_is_answered_as_openai_does(bench: v2_bench.Bench) -> None:
    answer = await embed(bench, "abc", user="somebody")
    assert answer.json == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [3.0, 97.0]}],
        "model": "embedder",
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }
    assert answer.headers["carpool-batch-id"] == bench.fake.questions[-1].id
    assert bench.fake.questions[-1].outputs == ["vectors"]


async def test_texts_and_lists_in_both_forms_share_a_batch(bench: v2_bench.Bench) -> None:
    bodies = [
        {"input": "a"},
        {"input": ["bb", "c"], "encoding_format": "base64"},
        {"input": ["ddd"], "encoding_format": "float", "user": "x"},
    ]
    answers = await behind_a_first(bench, *bodies)
    assert [vectors(each) for each in answers] == [[[1, 97]], [[2, 98], [1, 99]], [[3, 100]]]
    assert bench.fake.batches == [1, 4]


async def test_a_request_larger_than_the_model_takes_is_split_and_rejoined(bench: v2_bench.Bench) -> None:
    texts = ["x" * number for number in range(20)]
    assert [row[0] for row in vectors(await embed(bench, texts))] == list(range(20))
    assert sorted(bench.fake.batches) == [4, 8, 8]


async def test_requests_for_different_models_do_not_meet(bench: v2_bench.Bench) -> None:
    asked = (("a", "embedder"), ("a", "negative_embedder"), ([1, 2], "token_embedder"), ([[3, 4]], "token_embedder"))
    answers = await behind_a_first(bench, *[{"input": what, "model": model} for what, model in asked])
    assert [vectors(each) for each in answers] == [[[1, 97]], [[-1, -97]], [[0.2, 0.3]], [[0.2, 0.7]]]
    assert sorted(bench.fake.batches) == [1, 1, 1, 2]


async def test_lists_of_token_ids_of_different_lengths_do_not_meet(bench: v2_bench.Bench) -> None:
    ask = [embed(bench, ids, "token_embedder") for ids in ([1], [1, 1], [[2, 2], [3, 3]])]
    answers = await asyncio.gather(*ask)
    assert [vectors(each) for each in answers] == [[[0.1, 0.1]], [[0.2, 0.2]], [[0.2, 0.4], [0.2, 0.6]]]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/openai/v1/embeddings", "/v1/embeddings?x=1"])
@pytest.mark.parametrize("kind", ["application/json", "text/html", "text/plain"])
async def test_the_body_is_read_at_every_path_and_whatever_text_it_is_called(
    bench: v2_bench.Bench, path: str, kind: str
) -> None:
    assert vectors(await post(bench, {"model": "embedder", "input": "a"}, path, kind)) == [[1, 97]]
    assert told(await post(bench, b"no json", path, kind), 400)["type"] == "invalid_request_error"
    assert not any("embeddings" in each.path for each in bench.fake.received)


async def test_a_model_without_a_batch_dimension_is_asked_for_one_text_at_a_time(bench: v2_bench.Bench) -> None:
    assert vectors(await embed(bench, ["a", "bb", "ccc"], "lone_embedder")) == [[1, 1], [2, 1], [3, 1]]
    assert len(bench.fake.questions) == 3


async def test_v1_requests_are_answered_beside_them(bench: v2_bench.Bench) -> None:
    answer = await post(bench, {"instances": ["abc"]}, "/v1/models/strings:predict")
    assert answer.json["predictions"] == [{"upper": ["ABC"], "length": [3]}]
    assert (await post(bench, {}, "/elsewhere")).status == 404


class TestRefusals:
    @pytest.mark.parametrize("model", ["nobody", "no/body", "..", "no body", "é", "x" * 300])
    async def test_a_model_that_is_not_there(self, bench: v2_bench.Bench, model: str) -> None:
        error = told(await embed(bench, "a", model), 404)
        assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")
        assert await bench.metric('carpool_refused_total{reason="model_not_found"}') == 1

    @pytest.mark.parametrize(
        ("body", "parameter"),
        [
            ({"input": "a", "model": "embedder", "dimensions": 1}, "dimensions"),
            ({"input": "a", "model": "embedder", "truncate": True}, "truncate"),
            ({"input": [], "model": "embedder"}, "input"),
            ({"input": [1], "model": "embedder"}, "input"),
            ({"input": "a", "model": "token_embedder"}, "input"),
            ({"input": [[1], [1, 2]], "model": "token_embedder"}, "input"),
            ({"input": "a", "model": "identity"}, "input"),
            ({"input": "a", "model": "strings"}, "model"),
            ({"input": "a", "model": "two_embeddings"}, "model"),
            ({"input": "a"}, "model"),
        ],
    )
    async def test_what_cannot_be_answered_is_told_by_the_member(
        self, bench: v2_bench.Bench, body: Any, parameter: str
    ) -> None:
        error = told(await post(bench, body), 400)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", parameter, None)
        assert bench.fake.questions == []

    async def test_a_deadline_that_is_none(self, bench: v2_bench.Bench) -> None:
        body = {"model": "embedder", "input": "a"}
        answer = await post(bench, body, **{"carpool-timeout-ms": "soon"})
        assert "carpool-timeout-ms" in told(answer, 400)["message"]

    async def test_a_text_that_the_model_fails_on_fails_its_caller_alone(self, bench: v2_bench.Bench) -> None:
        answers = await behind_a_first(bench, {"input": "a"}, {"input": "poison"}, {"input": ["b", "c"]})
        assert [answer.status for answer in answers] == [200, 500, 200]
        error = told(answers[1], 500)
        assert "a text is poison" in error["message"]
        assert error["type"] == "server_error"

    @pytest.mark.parametrize("chosen", ["float", "base64"])
    async def test_an_embedding_that_is_no_number_fails_its_caller_alone_and_costs_no_call(
        self, bench: v2_bench.Bench, chosen: str
    ) -> None:
        bodies: list[Any] = [{"input": "a"}, {"input": ["b", "nan"], "encoding_format": chosen}, {"input": "c"}]
        answers = await behind_a_first(bench, *bodies)
        assert [answer.status for answer in answers] == [200, 502, 200]
        assert "item 1 of 'input' has NaN" in told(answers[1], 502)["message"]
        assert bench.fake.batches == [1, 4]

    async def test_the_server_away(self, bench: v2_bench.Bench) -> None:
        assert (await embed(bench, "a")).status == 200
        await bench.fake.stop()
        for model in ("embedder", "identity"):
            error = told(await embed(bench, "a", model), 502)
            assert error["type"] == "server_error"
        await bench.fake.start()

    async def test_a_body_that_is_too_large(self) -> None:
        async with v2_bench.running(upstream="triton-http", lists="openai-embeddings", max_body_bytes=1024) as bench:
            assert told(await embed(bench, "x" * 2000), 413)["type"] == "invalid_request_error"


async def test_the_output_that_the_settings_name_is_taken() -> None:
    chosen = {"lists": "openai-embeddings", "embeddings_output": "halves"}
    async with v2_bench.running(upstream="triton-http", **chosen) as bench:
        assert vectors(await embed(bench, "abc", "two_embeddings")) == [[1.5, 48.5]]
        assert vectors(await embed(bench, "abc")) == [[3, 97]]
        assert [each.outputs for each in bench.fake.questions] == [["halves"], ["vectors"]]


async def test_clients_without_a_type_or_with_a_compressed_body_are_served(bench: v2_bench.Bench) -> None:
    body = json.dumps({"model": "embedder", "input": "abc"}).encode()
    assert vectors(await bench.post(PATH, body, {"Content-Type": ""})) == [[3, 97]]
    assert vectors(await post(bench, gzip.compress(body), **{"Content-Encoding": "gzip"})) == [[3, 97]]
