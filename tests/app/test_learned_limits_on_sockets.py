"""Predictors that refuse batches for their size, behind the whole sidecar: what callers and operators are told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from e2e.triton import http_requests
from tests.app import v2_bench
from tests.app.conftest import Bench
from tests.app.fake_predictor import Behaviour, Seen

looptime = pytest.mark.looptime


def takes(most: int, status: int, words: str) -> Behaviour:
    """Refuses more rows than that; `%d` in the words are the rows and the most."""

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        if len(seen.rows) <= most:
            return None
        return web.json_response({"error": words % (len(seen.rows), most) if "%" in words else words}, status=status)

    return behave


def takes_bytes(most: int) -> Behaviour:
    """Refuses larger bodies, as a proxy does."""

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        return web.Response(status=413, text="<html>Request Entity Too Large</html>") if len(seen.body) > most else None

    return behave


@looptime
@pytest.mark.parametrize(
    ("behave", "first", "later"),
    [
        (takes(8, 413, "too large"), [32, 16, 8, 8, 8, 8], [8, 8, 8, 8]),
        (takes(12, 422, "batch size %d > maximum allowed batch size %d"), [32, 12, 12, 8], [12, 12, 8]),
        (takes(8, 500, "OutOfMemoryError : CUDA out of memory."), [32, 16, 8, 8, 8, 8], [8, 8, 8, 8]),
        (takes_bytes(100), [32, 16, 16], [16, 16]),
    ],
)
@pytest.mark.parametrize("retry_statuses", ["", None])
async def test_requests_of_a_batch_that_is_too_large_are_all_answered(
    sidecar_of: Callable[..., Awaitable[Bench]],
    behave: Behaviour,
    first: list[int],
    later: list[int],
    retry_statuses: str | None,
) -> None:
    chosen = {} if retry_statuses is None else {"retry_statuses": retry_statuses}
    bench = await sidecar_of(max_batch_size=32, max_latency=500, max_in_flight=1, retry_budget=0, **chosen)
    bench.predictor.behave = behave
    for expected in (first, later):
        bench.predictor.seen.clear()
        answers = await bench.post_all(*(f'{{"instances":[{row}]}}' for row in range(32)))
        assert [json.loads(body)["predictions"] for _, body, _ in answers] == [[row] for row in range(32)]
        assert [len(batch) for batch in bench.predictor.batches] == expected


@looptime
async def test_operators_see_the_limit_and_what_it_costs(
    sidecar_of: Callable[..., Awaitable[Bench]], caplog: pytest.LogCaptureFixture
) -> None:
    bench = await sidecar_of(max_batch_size=8, max_latency=500)
    assert await bench.metric("carpool_learned_batch_size") == 0
    assert await bench.metric('carpool_retries_total{reason="smaller"}') == 0
    bench.predictor.behave = takes(4, 413, "too large")
    with caplog.at_level(logging.WARNING):
        await bench.post_all(*(f'{{"instances":[{row}]}}' for row in range(8)), path="/v1/models/m:predict?secret=1")
    assert await bench.metric("carpool_learned_batch_size") == 4
    assert await bench.metric('carpool_retries_total{reason="smaller"}') == 2
    assert await bench.metric('carpool_predictor_errors_total{reason="predictor_status"}') == 1
    [record] = [record for record in caplog.records if "for its size" in record.message]
    facts: dict[str, Any] = record.facts  # type: ignore[attr-defined]
    assert facts["target"] == "/v1/models/m:predict"
    assert (facts["instances"], facts["at_most"], facts["status"]) == (8, 4, 413)


@looptime
async def test_a_request_that_is_too_large_as_it_came_gets_the_predictors_own_answer(
    sidecar_of: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await sidecar_of(max_batch_size=32, max_latency=500)
    bench.predictor.behave = takes(4, 422, "batch size %d > maximum allowed batch size %d")
    status, body, _ = await bench.post('{"instances":[1,2,3,4,5]}')
    assert (status, json.loads(body)) == (422, {"error": "batch size 5 > maximum allowed batch size 4"})


@looptime
async def test_one_giant_row_gets_its_own_413_and_the_others_their_answers(
    sidecar_of: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await sidecar_of(max_batch_size=8, max_latency=500)
    bench.predictor.behave = takes_bytes(1000)
    rows = [*map(str, range(7)), "1" * 2000]
    answers = await bench.post_all(*(f'{{"instances":[{row}]}}' for row in rows))
    assert [status for status, _, _ in answers] == [200] * 7 + [413]
    assert answers[7][1] == b"<html>Request Entity Too Large</html>"
    assert await bench.metric("carpool_learned_batch_size") == 0


# --- lists --------------------------------------------------------------------------------------------------------


def tei(most: int) -> Behaviour:
    """text-embeddings-inference, started with `--max-client-batch-size`; the embedding of a text is its length."""

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        texts = json.loads(seen.body)["inputs"]
        if len(texts) > most:
            words = f"batch size {len(texts)} > maximum allowed batch size {most}"
            return web.json_response({"error": words, "error_type": "Validation"}, status=422)
        return web.json_response([[len(text)] for text in texts])

    return behave


@looptime
async def test_lists_in_a_batch_that_is_too_large_are_all_answered(sidecar_of: Callable[..., Awaitable[Bench]]) -> None:
    bench = await sidecar_of(max_batch_size=16, max_latency=500, lists="tei-embed")
    bench.predictor.behave = tei(4)
    counts = [1, 3, 7, 5]
    for sizes in ([16, 4, 4, 4, 4], [4, 4, 4, 4]):
        bench.predictor.seen.clear()
        bodies = [json.dumps({"inputs": ["x" * n for n in range(count)]}) for count in counts]
        answers = await bench.post_all(*bodies, path="/embed")
        assert [json.loads(body) for _, body, _ in answers] == [[[n] for n in range(count)] for count in counts]
        assert [len(json.loads(seen.body)["inputs"]) for seen in bench.predictor.seen] == sizes
    assert await bench.metric("carpool_learned_batch_size") == 4


# --- v2, over HTTP and gRPC -------------------------------------------------------------------------------------


@pytest.fixture
async def v2() -> AsyncIterator[v2_bench.Bench]:
    async with v2_bench.running(retry_budget=0) as running:
        yield running


async def behind_a_first(bench: v2_bench.Bench, first: Awaitable[Any], *others: Awaitable[Any]) -> list[Any]:
    """The answers to the others, all of whom came while the first was at the server."""
    bench.fake.gate.clear()
    earlier = asyncio.ensure_future(first)
    await bench.fake.at_work(1)
    tasks = [asyncio.ensure_future(other) for other in others]
    await bench.queued(1 + len(tasks))
    bench.fake.gate.set()
    await earlier
    return await asyncio.gather(*tasks)


async def test_v2_requests_over_http_are_all_answered(v2: v2_bench.Bench) -> None:
    v2.fake.most_rows = 4
    asked = [http_requests.ask("", "identity", http_requests.rows([n, 1], (1, 2))) for n in range(8)]
    answers = await behind_a_first(v2, v2.ask(asked[0]), *map(v2.ask, asked))
    assert [answer.json["outputs"][0]["data"] for answer in answers] == [[number, 1] for number in range(8)]
    assert v2.fake.batches == [1, 4, 4]
    assert await v2.metric("carpool_learned_batch_size") == 4


async def test_v2_requests_over_grpc_are_all_answered(v2: v2_bench.Bench) -> None:
    v2.fake.most_rows = 4
    asked = [v2.infer("identity", ("rows", [[n, 1]])) for n in range(8)]
    answers = await behind_a_first(v2, v2.infer("identity", ("rows", [[7]])), *asked)
    assert [answer.as_numpy("rows_out").tolist() for answer in answers] == [[[number, 1]] for number in range(8)]
    assert v2.fake.batches == [1, 4, 4]
    assert await v2.metric("carpool_learned_batch_size") == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4194304: 5000000"),
        ("RESOURCE_EXHAUSTED", "Received message exceeds the maximum configured message size."),
        ("OUT_OF_RANGE", "Error, decoded message length too large: found 5000000 bytes, the limit is: 4194304 bytes"),
    ],
)
async def test_a_limit_on_messages_is_learned_over_grpc_in_other_libraries_words(
    v2: v2_bench.Bench, code: str, words: str
) -> None:
    v2.fake.most_rows = 4
    v2.fake.too_many = (words, 500, code)
    asked = [v2.infer("identity", ("rows", [[n, 1]])) for n in range(8)]
    answers = await behind_a_first(v2, v2.infer("identity", ("rows", [[7]])), *asked)
    assert [answer.as_numpy("rows_out").tolist() for answer in answers] == [[[number, 1]] for number in range(8)]
    assert v2.fake.batches == [1, 4, 4]
    assert await v2.metric("carpool_learned_batch_size") == 4


# --- in words that nobody knows -----------------------------------------------------------------------------------


def one_array(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
    """Refuses rows of several lengths, as servers do that make one array of them."""
    rows = seen.rows
    if len({len(row) for row in rows}) == 1:
        return None
    words = f"element 3 of 'instances': expecting tensor size {len(rows[0])}"
    return web.json_response({"error": words}, status=400)


@looptime
async def test_instances_of_lengths_that_do_not_mix_travel_apart_and_operators_see_it(
    sidecar_of: Callable[..., Awaitable[Bench]], caplog: pytest.LogCaptureFixture
) -> None:
    bench = await sidecar_of(max_batch_size=8, max_latency=500, max_in_flight=1)
    bench.predictor.behave = one_array
    rows = [[n] * (2 + n % 2) for n in range(8)]
    with caplog.at_level(logging.WARNING):
        for refused in (2, 0):
            bench.predictor.seen.clear()
            answers = await bench.post_all(*(json.dumps({"instances": [row]}) for row in rows))
            assert [json.loads(body)["predictions"] for _, body, _ in answers] == [[row] for row in rows]
            assert sum(len({len(row) for row in batch}) > 1 for batch in bench.predictor.batches) == refused
    assert [len(batch) for batch in bench.predictor.batches] == [4, 4]
    assert await bench.metric("carpool_kept_apart_keys") == 1
    [record] = [record for record in caplog.records if "several lengths" in record.message]
    assert record.facts["target"] == "/v1/models/m:predict"  # type: ignore[attr-defined]


@looptime
async def test_a_limit_in_unknown_words_is_learned_and_operators_see_it(
    sidecar_of: Callable[..., Awaitable[Bench]], caplog: pytest.LogCaptureFixture
) -> None:
    bench = await sidecar_of(max_batch_size=32, max_latency=500, max_in_flight=1)
    bench.predictor.behave = takes(4, 400, "Too many tokens in batch")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            bench.predictor.seen.clear()
            answers = await bench.post_all(*(f'{{"instances":[{row}]}}' for row in range(32)))
            assert [json.loads(body)["predictions"] for _, body, _ in answers] == [[row] for row in range(32)]
    assert [len(batch) for batch in bench.predictor.batches] == [4] * 8
    assert await bench.metric("carpool_learned_batch_size") == 4
    [record] = [record for record in caplog.records if "so many instances" in record.message]
    assert record.facts["at_most"] == 4  # type: ignore[attr-defined]
