"""Rerank requests through a whole sidecar in front of the fake v2 server, which is asked over HTTP or gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.app import v2_bench
from tests.protocols.pairs import stand_ins


@pytest.fixture(params=["http", "triton-http", "triton-grpc"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[v2_bench.Bench]:
    async with v2_bench.running(upstream=request.param, lists="rerank,tei-rerank", rerank_to="v2") as running:
        yield running


async def post(bench: v2_bench.Bench, path: str, body: Any) -> v2_bench.Answer:
    return await bench.post(path, body, {"Content-Type": "application/json"})


async def rank(bench: v2_bench.Bench, query: str, *documents: str, **others: Any) -> v2_bench.Answer:
    return await post(bench, "/v1/rerank", {"model": "pair_ranker", "query": query, "documents": documents, **others})


def told(answer: v2_bench.Answer) -> list[tuple[int, float]]:
    assert answer.status == 200, answer
    rows = answer.json if isinstance(answer.json, list) else answer.json["results"]
    return [(row["index"], row.get("relevance_score", row.get("score"))) for row in rows]


@pytest.mark.parametrize("model", ["pair_ranker", "two_ranker", "lone_ranker"])
async def test_scores_come_in_order_whatever_inputs_the_model_has(bench: v2_bench.Bench, model: str) -> None:
    answer = await rank(bench, "q", "a", "bé", "c", model=model, top_n=2, return_documents=True)
    assert told(answer) == stand_ins.ranked("q", ["a", "bé", "c"], 2)
    texts = ["a", "bé", "c"]
    assert [row["document"]["text"] for row in answer.json["results"]] == [texts[place] for place, _ in told(answer)]
    assert answer.json["model"] == model


async def test_callers_with_other_queries_share_a_call(bench: v2_bench.Bench) -> None:
    bench.fake.gate.clear()
    earlier = asyncio.ensure_future(rank(bench, "first", "a"))
    await bench.fake.at_work(1)
    tasks = [asyncio.ensure_future(rank(bench, query, "a", "b")) for query in ("q", "r", "s")]
    await bench.queued(4)
    bench.fake.gate.set()
    await earlier
    answers = await asyncio.gather(*tasks)
    assert [told(each) for each in answers] == [stand_ins.ranked(query, "ab") for query in "qrs"]
    assert bench.fake.batches == [1, 6]


async def test_a_list_longer_than_the_model_takes_is_split_and_counted_by_its_rule(bench: v2_bench.Bench) -> None:
    texts = [f"text {number}" for number in range(20)]
    assert told(await rank(bench, "q", *texts)) == stand_ins.ranked("q", texts)
    assert sorted(bench.fake.batches) == [4, 8, 8]
    assert await bench.metric('carpool_list_parts_total{rule="rerank"}') == 3


async def test_each_dialect_is_answered_in_its_own_form(bench: v2_bench.Bench) -> None:
    answer = await post(bench, "/rerank", {"model": "two_ranker", "query": "q", "texts": ["a"], "return_text": True})
    assert answer.json == [{"index": 0, "score": stand_ins.score("q", "a"), "text": "a"}]


async def test_a_score_that_is_no_number_comes_last(bench: v2_bench.Bench) -> None:
    assert told(await rank(bench, "q", "nan", "a")) == [(1, stand_ins.score("q", "a")), (0, None)]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": None}, 400, "the member 'model' is missing"),
        ({"model": "stranger"}, 404, "the model 'stranger' does not exist"),
        ({"model": "embedder"}, 400, "the model has 0 outputs that may be scores"),
        ({"model": "add_sub"}, 400, "the model has 2 outputs that may be scores"),
        ({"documents": []}, 400, "rule 'rerank': 'documents' is empty"),
        ({"truncate": True}, 400, "rule 'rerank': 'truncate' cannot be passed on to a predictor that speaks v2"),
        ({"documents": ["poison"]}, 500, "a document is poison"),
    ],
)
async def test_errors_are_told_as_clients_of_rerank_know_them(
    bench: v2_bench.Bench, change: dict[str, Any], status: int, words: str
) -> None:
    answer = await rank(bench, "q", **{"documents": ["a"], **change})
    assert answer.status == status
    assert words in answer.json["error"]["message"]
    assert answer.json["message"] == answer.json["detail"] == answer.json["error"]["message"]


async def test_one_bad_document_fails_its_caller_alone(bench: v2_bench.Bench) -> None:
    one, two = await asyncio.gather(rank(bench, "q", "a", "b"), rank(bench, "r", "poison"))
    assert told(one) == stand_ins.ranked("q", "ab")
    assert two.status == 500


async def test_a_setting_may_name_the_model_for_all() -> None:
    async with v2_bench.running(upstream="triton-http", lists="tei-rerank", rerank_to="v2:pair_ranker") as bench:
        answer = await post(bench, "/rerank", {"query": "q", "texts": ["a", "b"]})
        assert told(answer) == stand_ins.ranked("q", "ab")


@pytest.mark.parametrize(("limit", "batches"), [("max_batch_size: 3", [2, 3, 3]), ("max_characters: 20", [2, 2, 2, 2])])
async def test_the_limits_of_ones_own_rule_hold_beside_the_models(limit: str, batches: list[int]) -> None:
    rule = f"{{own: {{extends: rerank, {limit}}}}}"
    async with v2_bench.running(upstream="triton-http", lists=rule, rerank_to="v2") as bench:
        texts = [f"text{number}" for number in range(8)]
        assert told(await rank(bench, "query", *texts)) == stand_ins.ranked("query", texts)
        assert sorted(bench.fake.batches) == batches


async def test_embeddings_and_rerank_requests_go_together() -> None:
    async with v2_bench.running(upstream="triton-http", lists="openai-embeddings,rerank", rerank_to="v2") as bench:
        texts = ["x" * number for number in range(20)]
        answer = await post(bench, "/v1/embeddings", {"model": "embedder", "input": texts})
        assert [row["embedding"][0] for row in answer.json["data"]] == list(range(20))
        assert await bench.metric('carpool_list_parts_total{rule="openai-embeddings"}') == 3
        assert told(await rank(bench, "q", "a")) == stand_ins.ranked("q", "a")


async def test_each_path_has_its_own_rules_whatever_model_they_share() -> None:
    own = """
      infinity: {extends: rerank, path: /infinity/rerank, return_as: document}
      jina: {extends: rerank, path: /jina/rerank, max_batch_size: 2}
      nim: {extends: nim-ranking}
    """
    async with v2_bench.running(upstream="triton-http", lists=own, rerank_to="v2") as bench:
        body = {"model": "two_ranker", "query": "q", "documents": ["a", "b", "c"], "return_documents": True, "top_n": 1}
        found = {path: await post(bench, path, body) for path in ("/infinity/rerank", "/jina/rerank", "/v1/ranking")}
        (place, _), *_ = stand_ins.ranked("q", "abc")
        documents = {path: found[path].json["results"][0]["document"] for path in ("/infinity/rerank", "/jina/rerank")}
        assert documents == {"/infinity/rerank": "abc"[place], "/jina/rerank": {"text": "abc"[place]}}
        assert found["/v1/ranking"].status == 400
        assert "passages is missing" in found["/v1/ranking"].json["error"]
        assert bench.fake.batches == [3, 2, 1]


async def test_any_type_of_body_shares_a_call(bench: v2_bench.Bench) -> None:
    bench.fake.gate.clear()
    earlier = asyncio.ensure_future(rank(bench, "first", "a"))
    await bench.fake.at_work(1)
    body = {"model": "pair_ranker", "query": "q", "documents": ["a"]}
    types = ("application/json", "application/x-www-form-urlencoded", "text/plain")
    tasks = [asyncio.ensure_future(bench.post("/v1/rerank", body, {"Content-Type": each})) for each in types]
    await bench.queued(4)
    bench.fake.gate.set()
    for each in await asyncio.gather(earlier, *tasks):
        assert each.status == 200
    assert bench.fake.batches == [1, 3]


async def test_pairs_count_as_they_will_be_sent(bench: v2_bench.Bench) -> None:
    bench.fake.gate.clear()
    task = asyncio.ensure_future(rank(bench, "q" * 1000, *["d"] * 8))
    await bench.fake.at_work(1)
    assert bench.sidecar.ledger.held >= 8 * 1000
    bench.fake.gate.set()
    assert (await task).status == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [({"model": None}, 400), ({"model": "stranger"}, 404), ({"texts": []}, 400), ({"texts": ["poison"]}, 500)],
    ids=["no model", "no such model", "no texts", "a refusal"],
)
async def test_each_client_of_a_path_is_told_errors_in_its_own_words(
    bench: v2_bench.Bench, change: dict[str, Any], status: int
) -> None:
    answer = await post(bench, "/rerank", {"model": "two_ranker", "query": "q", "texts": ["a"], **change})
    assert (answer.status, set(answer.json)) == (status, {"error", "error_type"})


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "application/octet-stream"}, {"Accept": "text/event-stream"}, {"ce-id": "1"}],
    ids=["bytes", "stream", "event"],
)
async def test_no_type_of_body_or_answer_makes_a_request_pass_as_it_is(
    bench: v2_bench.Bench, headers: dict[str, str]
) -> None:
    body = {"model": "two_ranker", "query": "q", "texts": ["a", "b"]}
    assert told(await bench.post("/rerank", body, headers)) == stand_ins.ranked("q", "ab")
