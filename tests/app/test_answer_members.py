"""Callers of one batch get the members of its answer that --answer-members names, however they asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from tests.app import fake_predictor

pytestmark = pytest.mark.looptime
GIVEN = "model_name,call"


class Telling:
    """A behaviour: answers with the number of the call and of its rows, and with something that is for nobody.

    A batch with the row 666 in it is refused.
    """

    def __init__(self) -> None:
        self.rows: dict[int, list[Any]] = {}

    def __call__(self, seen: fake_predictor.Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        rows = [json.loads(row) for row in seen.rows]
        if 666 in rows:
            return web.Response(status=400, body=b'{"error":"poison"}', content_type="application/json")
        self.rows[len(self.rows)] = rows
        told = {"call": len(self.rows) - 1, "secret": rows, "predictions": rows, "model_name": "m"}
        return web.json_response(told)


def told(answer: tuple[int, bytes, Any]) -> dict[str, Any]:
    assert answer[0] == 200
    found: dict[str, Any] = json.loads(answer[1])
    assert found.pop("batchId")
    assert found.pop("message") == ""
    return found


async def test_every_caller_of_a_batch_gets_what_its_answer_says_of_all(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, answer_members=GIVEN)
    bench.predictor.behave = Telling()
    for call in range(2):
        answers = await bench.post_all(*(f'{{"instances":[{number}]}}' for number in range(3)))
        assert [told(each) for each in answers] == [
            {"model_name": "m", "call": call, "predictions": [number]} for number in range(3)
        ]


async def test_callers_that_are_tried_apart_get_what_their_own_call_says(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=500, answer_members=GIVEN)
    telling = bench.predictor.behave = Telling()
    bodies = ['{"instances":[0]}', '{"instances":[666]}', '{"instances":[2]}', '{"instances":[3]}']
    answers = await bench.post_all(*bodies)
    assert answers[1][0] == 400
    assert len(telling.rows) > 1
    for number in (0, 2, 3):
        found = told(answers[number])
        assert number in telling.rows[found["call"]]
        assert found == {"model_name": "m", "call": found["call"], "predictions": [number]}


async def test_a_request_that_was_split_gets_the_members_of_one_of_its_calls(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500, answer_members=GIVEN)
    telling = bench.predictor.behave = Telling()
    found = told(await bench.post('{"instances":[0,1,2,3]}'))
    assert found == {"model_name": "m", "call": found["call"], "predictions": [0, 1, 2, 3]}
    assert found["call"] in telling.rows


async def test_an_answer_in_kserves_words_has_them_too(sidecar_of):
    bench = await sidecar_of(max_latency=50, answer_members=GIVEN, kserve_errors=True)
    bench.predictor.behave = Telling()
    answer = await bench.post('{"instances":[0]}')
    assert told(answer) == {"model_name": "m", "call": 0, "predictions": [0]}
    assert answer[2]["Content-Type"].startswith("text/plain")


async def test_v1_requests_at_the_path_of_a_list_have_them(sidecar_of):
    rule = 'mine:\n  path: "**/m:predict"\n  list: texts\n  answers: $\n'
    bench = await sidecar_of(max_latency=50, answer_members=GIVEN, lists=rule)
    bench.predictor.behave = Telling()
    assert told(await bench.post('{"instances":[0]}')) == {"model_name": "m", "call": 0, "predictions": [0]}
