"""Lists by rules through a whole sidecar: what is merged, what each caller gets, what is passed on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.app.fake_predictor import Seen, refuse

EMBED = "/openai/v1/embeddings"
VECTORS = """
vectors:
  path: /embed
  list: texts
  scalar: unwrapped
  answers: vectors
"""


def embedder(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
    """An OpenAI embedder: the embedding of a text is its length; each text counts for three tokens."""
    if request.path.endswith(":predict"):
        return None
    given = json.loads(seen.body)
    texts = given["input"] if isinstance(given["input"], list) else [given["input"]]
    data = [
        {"object": "embedding", "embedding": [len(text), 0.5], "index": number} for number, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 3 * len(texts), "total_tokens": 3 * len(texts)}
    return web.json_response({"object": "list", "data": data, "model": given.get("model"), "usage": usage})


def vectors(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    """A server of one's own that takes lists alone."""
    texts = json.loads(seen.body)["texts"]
    if not isinstance(texts, list):
        return web.json_response({"vector": [len(texts)]})
    return web.json_response({"vectors": [[len(text)] for text in texts]})


def asked(*texts: Any, **others: Any) -> list[str]:
    return [json.dumps({"input": text, "model": "m", **others}) for text in texts]


def told(answer: tuple[int, bytes, Any]) -> list[list[float]]:
    assert answer[0] == 200, answer
    return [row["embedding"] for row in json.loads(answer[1])["data"]]


@pytest.mark.looptime
async def test_embeddings_of_several_callers_are_one_call_and_each_gets_its_own(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=500, lists="openai-embeddings")
    bench.predictor.behave = embedder
    one, two, three = await bench.post_all(*asked("a", ["bb", "ccc"], "dddd"), path=EMBED)
    assert [json.loads(seen.body)["input"] for seen in bench.predictor.seen] == [["a", "bb", "ccc", "dddd"]]
    assert bench.predictor.seen[0].target == EMBED
    assert [told(each) for each in (one, two, three)] == [[[1, 0.5]], [[2, 0.5], [3, 0.5]], [[4, 0.5]]]
    assert [[row["index"] for row in json.loads(body)["data"]] for _, body, _ in (one, two, three)] == [
        [0],
        [0, 1],
        [0],
    ]
    shares = [json.loads(body)["usage"]["prompt_tokens"] for _, body, _ in (one, two, three)]
    assert sum(shares) == 12
    for _, _, headers in (one, two, three):
        assert headers["carpool-usage"] == "prorated"
        assert headers["carpool-batch-id"] == one[2]["carpool-batch-id"]
    assert await bench.metric("carpool_batch_size_sum") == 4


@pytest.mark.looptime
async def test_a_request_that_travels_alone_goes_as_it_came_and_is_answered_unread(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=0, lists="openai-embeddings")
    body = b' {"input" : "a" , "model":"m"}\n'
    bench.predictor.behave = lambda seen, request: web.Response(
        body=b"anything at all", content_type="text/odd", headers={"X-Request-ID": "theirs", "Server": "odd"}
    )
    status, answer, headers = await bench.post(body, EMBED)
    assert (status, answer, headers["Content-Type"]) == (200, b"anything at all", "text/odd")
    assert headers["X-Request-Id"] == "theirs"
    assert "Server" not in headers
    assert "carpool-usage" not in headers
    assert [seen.body for seen in bench.predictor.seen] == [body]


@pytest.mark.looptime
async def test_requests_that_differ_in_anything_but_their_rows_never_share_a_call(sidecar_of):
    bench = await sidecar_of(max_batch_size=8, max_latency=100, lists="openai-embeddings")
    bench.predictor.behave = embedder
    json_ = {"Content-Type": "application/json"}
    calls = [
        bench.post(asked("a")[0], EMBED),
        bench.post(asked("b", dimensions=8)[0], EMBED),
        bench.post(asked("c")[0], EMBED + "?api-version=1"),
        bench.post(asked("d")[0], "/v1/embeddings"),
        bench.post(asked([1, 2])[0], EMBED),
        bench.post(asked("e")[0], EMBED, headers={**json_, "api-key": "mine"}),
        bench.post(asked("f")[0], EMBED, headers={**json_, "api-key": "yours"}),
    ]
    bench.predictor.behave = lambda seen, request: web.json_response(
        {"data": [{"index": 0, "embedding": [0]}], "usage": {}}
    )
    await asyncio.gather(*calls)
    assert len(bench.predictor.seen) == len(calls)
    assert sorted(seen.headers.get("api-key", "") for seen in bench.predictor.seen)[-2:] == ["mine", "yours"]


@pytest.mark.looptime
async def test_a_rule_of_ones_own_wraps_and_unwraps_a_single_value(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, lists=VECTORS)
    bench.predictor.behave = vectors
    answers = await bench.post_all('{"texts": "a"}', '{"texts": ["bb", "ccc"]}', path="/embed")
    assert [json.loads(seen.body) for seen in bench.predictor.seen] == [{"texts": ["a", "bb", "ccc"]}]
    assert [json.loads(body) for _, body, _ in answers] == [{"vectors": [1]}, {"vectors": [[2], [3]]}]


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("path", "body", "headers", "reason"),
    [
        (EMBED, "{", {}, "no_rows"),
        (EMBED, '{"input": []}', {}, "no_rows"),
        (EMBED, '{"input": null}', {}, "no_rows"),
        (EMBED, '{"model": "m"}', {}, "no_rows"),
        (EMBED, '{"input": "a", "input": "b"}', {}, "no_rows"),
        (EMBED, '{"input": "a", "stream": true}', {}, "streaming"),
        (EMBED, '{"input": ["a", "b"], "late_chunking": true}', {}, "dependent_rows"),
        (EMBED, '{"input": "a"}', {"Accept": "text/event-stream"}, "streaming"),
        ("/v1/rerank", '{"query": "q", "documents": ["a"]}', {}, "one_query"),
        (EMBED, "data", {"Content-Type": "multipart/form-data; boundary=x"}, "media_type"),
    ],
)
async def test_what_no_rule_understands_is_passed_on_as_it_came_and_counted(sidecar_of, path, body, headers, reason):
    bench = await sidecar_of(max_batch_size=4, max_latency=0, lists="openai-embeddings")
    status, answer, _ = await bench.post(body, path, headers={"Content-Type": "application/json", **headers})
    assert (status, answer) == (200, b"passed:" + body.encode())
    assert await bench.metric(f'carpool_unbatched_total{{reason="{reason}"}}') == 1


@pytest.mark.looptime
async def test_our_own_errors_have_the_shape_that_clients_of_the_server_know(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=0, lists="openai-embeddings", timeout=1)
    bench.predictor.gate.clear()
    status, answer, _ = await bench.post(asked("a")[0], EMBED)
    assert status == 504
    assert json.loads(answer)["error"]["type"] in ("deadline", "predictor_timeout")
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.looptime
async def test_a_text_that_the_server_refuses_fails_alone(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=500, lists="openai-embeddings")

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        return refuse(400)(seen, request) if b"poison" in seen.body else embedder(seen, request)

    bench.predictor.behave = behave
    answers = await bench.post_all(*asked("a", "poison", "ccc", "dddd"), path=EMBED)
    assert [each[0] for each in answers] == [200, 400, 200, 200]
    assert answers[1][1] == b'{"error":"no"}'
    assert [told(each) for each in answers if each[0] == 200] == [[[1, 0.5]], [[3, 0.5]], [[4, 0.5]]]


@pytest.mark.looptime
async def test_a_request_larger_than_a_batch_goes_whole_where_the_answer_has_no_rows(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=0, lists="openai-embeddings")
    bench.predictor.behave = lambda seen, request: web.json_response({"all": len(json.loads(seen.body)["input"])})
    status, answer, _ = await bench.post(asked(["a", "b", "c", "d", "e", "f"])[0], EMBED)
    assert (status, json.loads(answer)) == (200, {"all": 6})


@pytest.mark.looptime
async def test_answers_without_the_rows_of_the_batch_end_batching_for_a_minute(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500, lists=VECTORS)
    bench.predictor.behave = lambda seen, request: web.json_response({"vectors": [[1]]})
    bodies = ['{"texts": ["a"]}', '{"texts": ["b"]}']
    assert [each[1] for each in await bench.post_all(*bodies, path="/embed")] == [b'{"vectors": [[1]]}'] * 2
    calls = len(bench.predictor.seen)
    assert [each[0] for each in await asyncio.gather(*[bench.post(body, "/embed") for body in bodies])] == [200, 200]
    assert len(bench.predictor.seen) == calls + 2
    assert await bench.metric('carpool_unbatched_total{reason="outputs"}') == 2
    await asyncio.sleep(61)
    bench.predictor.behave = vectors
    await asyncio.gather(*[bench.post(body, "/embed") for body in bodies])
    assert json.loads(bench.predictor.seen[-1].body) == {"texts": ["a", "b"]}


@pytest.mark.looptime
async def test_columns_and_v1_rows_share_a_path_and_each_is_batched_with_its_like(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500, lists="tfserving-columns")

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        given = json.loads(seen.body)
        return web.json_response({"outputs": given["inputs"]}) if isinstance(given.get("inputs"), dict) else None

    bench.predictor.behave = behave
    path = "/v1/models/m:predict"
    bodies = [
        '{"inputs": {"x": [1], "y": [[2]]}}', '{"inputs": {"x": [3], "y": [[4]]}}',
        '{"instances": [5]}', '{"instances": [6]}',
    ]  # fmt: skip
    answers = await asyncio.gather(*[bench.post(body, path) for body in bodies])
    assert [json.loads(body) for _, body, _ in answers[:2]] == [
        {"outputs": {"x": [1], "y": [[2]]}}, {"outputs": {"x": [3], "y": [[4]]}},
    ]  # fmt: skip
    assert [json.loads(body)["predictions"] for _, body, _ in answers[2:]] == [[5], [6]]
    assert len(bench.predictor.seen) == 2


@pytest.mark.looptime
async def test_nan_in_somebodys_row_reaches_that_caller_as_the_server_wrote_it(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, lists=VECTORS)
    bench.predictor.behave = lambda seen, request: web.Response(
        body=b'{"note": "NaN \\" NaN", "vectors": [ [1] ,NaN, {"a": [-Infinity, NaN]} ], "x": NaN}'
    )
    answers = await bench.post_all(*[json.dumps({"texts": [text]}) for text in "abc"], path="/embed")
    assert [body for _, body, _ in answers] == [
        b'{"note": "NaN \\" NaN", "vectors": [ %b ], "x": NaN}' % row
        for row in (b"[1]", b"NaN", b'{"a": [-Infinity, NaN]}')
    ]
    assert len(bench.predictor.seen) == 1


@pytest.mark.looptime
async def test_errors_about_requests_that_are_passed_on_have_the_same_shape(sidecar_of):
    bench = await sidecar_of(max_latency=0, lists="openai-embeddings", timeout=1)

    def hang_up(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        assert request.transport is not None
        request.transport.abort()
        return None

    bench.predictor.behave = hang_up
    status, answer, _ = await bench.post('{"input": ""}', EMBED)
    assert status == 502
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.looptime
async def test_a_long_list_to_rank_goes_in_parts_side_by_side_and_comes_back_in_one_order(sidecar_of):
    """text-embeddings-inference refuses more than 32 texts."""
    bench = await sidecar_of(max_batch_size=100, max_latency=0, lists="tei-embed,tei-rerank")

    def rank(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        texts = json.loads(seen.body)["texts"]
        if len(texts) > 32:
            return web.json_response({"error": "batch size > maximum", "error_type": "validation"}, status=422)
        order = sorted(range(len(texts)), key=lambda place: -int(texts[place]))
        return web.json_response([{"index": place, "score": int(texts[place])} for place in order])

    bench.predictor.behave = rank
    bench.predictor.gate.clear()
    numbers = [(37 * number) % 101 for number in range(70)]
    asking = asyncio.create_task(bench.post(json.dumps({"query": "q", "texts": [*map(str, numbers)]}), "/rerank"))
    await bench.predictor.received(2)  # while the first is not answered
    bench.predictor.gate.set()
    status, answer, _ = await asking
    assert status == 200
    found = json.loads(answer)
    assert [row["score"] for row in found] == sorted(numbers, reverse=True)
    assert all(numbers[row["index"]] == row["score"] for row in found)
    assert [len(json.loads(seen.body)["texts"]) for seen in bench.predictor.seen] == [32, 32, 6]
    assert await bench.metric('carpool_list_parts_total{rule="tei-rerank"}') == 3


@pytest.mark.looptime
async def test_a_list_with_more_tokens_than_its_rule_allows_goes_in_parts_and_is_answered_as_one(sidecar_of):
    limited = "{mine: {extends: openai-embeddings, max_tokens: 4, characters_a_token: 3}}"
    bench = await sidecar_of(max_batch_size=100, max_latency=0, lists=limited)
    bench.predictor.behave = embedder
    texts = ["abc", "abcd", "a", "ab", "abcdefghijklmnop"]
    answer = await bench.post(*asked(texts), "/v1/embeddings")
    assert told(answer) == [[len(text), 0.5] for text in texts]
    assert json.loads(answer[1])["usage"]["total_tokens"] == 3 * len(texts)
    assert [json.loads(seen.body)["input"] for seen in bench.predictor.seen] == [texts[:3], texts[3:4], texts[4:]]
    assert await bench.metric('carpool_list_parts_total{rule="mine"}') == 3


@pytest.mark.looptime
async def test_a_ranked_request_that_its_server_refuses_gets_the_servers_own_words(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=0, lists="rerank")
    bench.predictor.behave = lambda seen, request: web.json_response({"message": "no such model"}, status=404)
    body = json.dumps({"query": "q", "documents": ["a", "b", "c"], "top_n": 1})
    status, answer, _ = await bench.post(body, "/v1/rerank")
    assert (status, json.loads(answer)) == (404, {"message": "no such model"})
