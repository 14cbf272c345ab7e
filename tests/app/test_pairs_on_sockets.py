"""Rerank requests through a whole sidecar in front of a predictor that takes pairs: shared calls, limits, failures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.app.fake_predictor import Seen
from tests.protocols.pairs import stand_ins

PATHS = {"documents": "/v1/rerank", "texts": "/rerank"}


def ranker(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    """A predictor with every way of taking pairs, and no /rerank."""
    found = stand_ins.PATHS.get(request.path)
    if found is None:
        return web.json_response({"error": f"no {request.path}"}, status=404)
    body = json.loads(seen.body)
    if "poison" in seen.body.decode():
        return web.json_response({"error": "a text is poison", "error_type": "validation"}, status=422)
    return web.json_response(found(body))


def asked(query: str, *documents: str, name: str = "documents", **others: Any) -> str:
    return json.dumps({"query": query, name: documents, "model": "ranker", **others})


def told(answer: tuple[int, bytes, Any]) -> list[tuple[int, float]]:
    assert answer[0] == 200, answer
    found = json.loads(answer[1])
    rows = found if isinstance(found, list) else found["results"]
    return [(row["index"], row.get("relevance_score", row.get("score"))) for row in rows]


@pytest.mark.looptime
@pytest.mark.parametrize("to", sorted([*stand_ins.KINDS, "v1"]))
async def test_callers_with_other_queries_share_a_call_and_get_what_each_gets_alone(sidecar_of, to):
    bench = await sidecar_of(max_batch_size=6, max_latency=500, lists="rerank", rerank_to=to)
    bench.predictor.behave = ranker
    bodies = [asked("q", "a", "b", "c"), asked("r", "a", "d", top_n=1), asked("s", "e", return_documents=True)]
    answers = await bench.post_all(*bodies, path="/v1/rerank")
    assert [seen.target for seen in bench.predictor.seen] == [
        {"tei-predict": "/predict", "vllm-score": "/score"}.get(to, "/v1/models/ranker:predict")
    ]
    expected = [stand_ins.ranked("q", "abc"), stand_ins.ranked("r", "ad", 1), stand_ins.ranked("s", "e")]
    assert [told(answer) for answer in answers] == expected
    assert json.loads(answers[2][1])["results"][0]["document"] == {"text": "e"}
    assert await bench.metric("carpool_batch_size_sum") == 6
    alone = [await bench.post(body, path="/v1/rerank") for body in bodies]
    assert [told(answer) for answer in alone] == expected


@pytest.mark.looptime
async def test_dialects_of_one_path_share_a_call(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, lists="rerank,tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    bodies = [asked("q", "a", "b"), asked("r", "c", name="texts", return_text=True)]
    one, two = await bench.post_all(*bodies, path="/rerank")
    assert len(bench.predictor.seen) == 1
    assert [told(one), told(two)] == [stand_ins.ranked("q", "ab"), stand_ins.ranked("r", "c")]
    assert json.loads(two[1])[0]["text"] == "c"


@pytest.mark.looptime
async def test_a_list_longer_than_the_server_takes_goes_in_parts_that_are_counted(sidecar_of):
    bench = await sidecar_of(max_batch_size=100, max_latency=0, lists="tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    texts = [f"text {number}" for number in range(70)]
    answer = await bench.post(asked("q", *texts, name="texts"), "/rerank")
    assert told(answer) == stand_ins.ranked("q", texts)
    assert [len(json.loads(seen.body)["inputs"]) for seen in bench.predictor.seen] == [32, 32, 6]
    assert await bench.metric('carpool_list_parts_total{rule="tei-rerank"}') == 3
    assert answer[2]["carpool-batch-count"] == "3"


@pytest.mark.looptime
async def test_a_list_is_held_to_the_characters_of_its_rule_with_the_query_of_each_pair(sidecar_of):
    own = "{own: {extends: rerank, max_characters: 20}}"
    bench = await sidecar_of(max_batch_size=100, max_latency=0, lists=own, rerank_to="tei-predict")
    bench.predictor.behave = ranker
    texts = ["aaaaa", "bbbbb", "ccccc", "ddddd"]
    assert told(await bench.post(asked("qqqqq", *texts), "/rerank")) == stand_ins.ranked("qqqqq", texts)
    assert [len(json.loads(seen.body)["inputs"]) for seen in bench.predictor.seen] == [2, 2]


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "documents",
            {"error": {"message": "a text is poison", "type": "predictor_status", "param": None, "code": 422}},
        ),
        ("texts", {"error": "a text is poison", "error_type": "predictor_status"}),
    ],
)
async def test_what_the_predictor_refuses_is_told_its_caller_in_its_own_words_and_no_other(sidecar_of, name, expected):
    rule = {"documents": "rerank", "texts": "tei-rerank"}[name]
    bench = await sidecar_of(max_batch_size=3, max_latency=500, lists=rule, rerank_to="tei-predict", retry_budget=100)
    bench.predictor.behave = ranker
    one, two = await bench.post_all(asked("q", "a", "b", name=name), asked("r", "poison", name=name), path=PATHS[name])
    assert told(one) == stand_ins.ranked("q", "ab")
    assert two[0] == 422
    assert json.loads(two[1]).items() >= expected.items()


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (asked("q", "poison", name="texts"), 422, "a text is poison"),
        ('{"query": "q", "texts": []}', 400, "rule 'tei-rerank': 'texts' is empty"),
        ('{"texts": ["a"]}', 400, "rule 'tei-rerank': 'query' is missing: it is the text"),
    ],
)
async def test_each_client_of_a_path_of_several_dialects_is_told_errors_in_its_own(sidecar_of, body, status, words):
    bench = await sidecar_of(max_batch_size=3, max_latency=0, lists="rerank,tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    found = await bench.post(body, "/rerank")
    assert (found[0], set(json.loads(found[1]))) == (status, {"error", "error_type"})
    assert json.loads(found[1])["error"].startswith(words)
    other = await bench.post(body.replace('"texts"', '"documents"'), "/rerank")
    assert (other[0], set(json.loads(other[1]))) == (status, {"error", "message", "detail"})


@pytest.mark.looptime
async def test_a_request_that_no_pairs_can_be_made_of_is_answered_400_and_never_sent(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=0, lists="tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    status, body, _ = await bench.post('{"query": "q", "texts": []}', "/rerank")
    assert (status, json.loads(body)) == (
        400, {"error": "rule 'tei-rerank': 'texts' is empty", "error_type": "bad_request"},
    )  # fmt: skip
    assert not bench.predictor.seen


@pytest.mark.looptime
async def test_an_answer_with_fewer_rows_is_an_error_of_the_predictor(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=0, lists="tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = lambda seen, request: web.json_response([[{"score": 1, "label": "x"}]] * 5)
    status, body, _ = await bench.post(asked("q", "a", name="texts"), "/rerank")
    assert (status, json.loads(body)["error"]) == (502, "the predictor's answer has 5 rows; the batch has 1")


@pytest.mark.looptime
async def test_other_paths_stay_as_they_are(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=0, lists="tei-rerank,tei-embed", rerank_to="tei-predict")
    bench.predictor.behave = lambda seen, request: web.json_response([[1.0]])
    await asyncio.gather(bench.post('{"inputs": "a"}', "/embed"), bench.post('{"inputs": "a"}', "/predict"))
    assert sorted(seen.target for seen in bench.predictor.seen) == ["/embed", "/predict"]


@pytest.mark.looptime
async def test_the_predictor_is_told_the_type_of_the_call_whatever_its_callers_said_of_theirs(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500, lists="tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    types = ("application/x-www-form-urlencoded", "text/plain")
    sent = [bench.post(asked("q", "a", name="texts"), "/rerank", headers={"Content-Type": each}) for each in types]
    assert [answer[0] for answer in await asyncio.gather(*sent)] == [200, 200]
    assert [seen.headers["Content-Type"] for seen in bench.predictor.seen] == ["application/json"]


@pytest.mark.looptime
async def test_pairs_count_as_memory_as_they_will_be_sent(sidecar_of):
    bench = await sidecar_of(max_batch_size=9, max_latency=500, lists="tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    task = asyncio.ensure_future(bench.post(asked("q" * 1000, *["d"] * 8, name="texts"), "/rerank"))
    await bench.queued(1)
    assert bench.sidecar.ledger.held >= 8 * 1000
    assert (await task)[0] == 200
    assert bench.sidecar.ledger.held < 1000


FOREIGN = (
    {"Content-Type": "application/octet-stream"}, {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Type": "text/html"}, {"Content-Type": "application/json", "Accept": "text/event-stream"},
    {"Content-Type": "application/json", "ce-id": "1", "ce-type": "t", "ce-source": "s", "ce-specversion": "1.0"},
)  # fmt: skip


@pytest.mark.looptime
@pytest.mark.parametrize("headers", FOREIGN, ids=["bytes", "form", "html", "stream", "event"])
async def test_no_type_of_body_or_answer_makes_a_request_pass_to_the_predictor_as_it_is(sidecar_of, headers):
    bench = await sidecar_of(max_batch_size=3, max_latency=0, lists="tei-rerank", rerank_to="tei-predict")
    bench.predictor.behave = ranker
    answer = await bench.post(asked("q", "a", "b", name="texts"), "/rerank", headers=headers)
    assert told(answer) == stand_ins.ranked("q", "ab")
    status, body, _ = await bench.post("--x", "/rerank", headers=headers)
    assert (status, json.loads(body)["error_type"]) == (400, "bad_request")
    assert [seen.target for seen in bench.predictor.seen] == ["/predict"]


@pytest.mark.looptime
async def test_more_pairs_than_may_be_held_are_refused_however_small_their_bodies(sidecar_of):
    bench = await sidecar_of(
        max_batch_size=50,
        max_latency=500,
        lists="tei-rerank",
        rerank_to="v1:ranker",
        max_queue_bytes=100_000,
        max_body_bytes=50_000,
    )
    bench.predictor.behave = ranker
    body, larger = (asked("q" * 1000, *["d"] * count, name="texts") for count in (40, 200))
    answers = await bench.post_all(body, body, body, larger, path="/rerank")
    assert sorted(answer[0] for answer in answers) == [200, 200, 413, 429]
