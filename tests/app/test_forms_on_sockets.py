"""What a caller gets does not depend on who is beside it, before predictors that make one table of all rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from tests.app.fake_predictor import Seen

pytestmark = pytest.mark.looptime


def table(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    """KServe's helper for data frames: the columns are those of the first row, then those that others add."""
    rows = json.loads(seen.body)["instances"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len(names) != 3:
        return web.json_response({"error": "the model has 3 columns"}, status=400)
    weights = (100, 10, 1)
    predictions = [sum(w * row.get(name, 0.0) for w, name in zip(weights, names, strict=True)) for row in rows]
    return web.json_response({"predictions": predictions})


def array(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    """numpy's array of all rows, told as what its values become."""
    rows = json.loads(seen.body)["instances"]
    kinds = {type(row) for row in rows}
    become: Any = str if str in kinds else float if float in kinds else int if int in kinds else bool
    return web.json_response({"predictions": [become(row) for row in rows]})


def told(answer: tuple[int, bytes, Any]) -> tuple[int, Any]:
    body = json.loads(answer[1])
    return answer[0], body.get("predictions", body.get("error"))


TABLES = [
    ['{"a":1,"b":2,"c":3}', '{"c":3,"b":2,"a":1}'],
    ['{"c":3,"b":2,"a":1}', '{"a":1,"b":2,"c":3}'],
    ['{"a":1,"b":2,"c":3}', '{"a":1,"b":3}'],
]
ARRAYS = [["9007199254740993", "0.3"], ["3", '"x3"'], ["true", "3"]]


@pytest.mark.parametrize(
    ("behave", "rows"),
    [*((table, rows) for rows in TABLES), *((array, rows) for rows in ARRAYS)],
    ids=lambda each: each.__name__ if callable(each) else " beside ".join(each),
)
async def test_rows_of_other_form_are_answered_as_they_are_alone(sidecar_of, behave, rows):
    bench = await sidecar_of(max_batch_size=8, max_latency=50)
    bench.predictor.behave = behave
    bodies = [f'{{"instances":[{row}]}}' for row in (*rows, *(row.replace("3", "4") for row in rows))]
    alone = [told(await bench.post(body)) for body in bodies]
    assert [told(answer) for answer in await bench.post_all(*bodies)] == alone
    if all(status == 200 for status, _ in alone):  # whoever was refused travels alone
        assert any(len(seen.rows) == 2 for seen in bench.predictor.seen)


async def test_whole_numbers_and_fractions_share_a_call(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500)
    bench.predictor.behave = array
    answers = await bench.post_all('{"instances":[1.0]}', '{"instances":[1]}')
    assert [told(answer) for answer in answers] == [(200, [1.0]), (200, [1.0])]
    assert len(bench.predictor.seen) == 1


async def test_rows_of_any_form_share_a_call_where_that_is_said(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=500, mix_forms=True)
    answers = await bench.post_all(*(f'{{"instances":[{row}]}}' for row in ('{"a":1}', '{"b":"x"}', "7", "[true]")))
    assert [told(answer)[0] for answer in answers] == [200] * 4
    assert len(bench.predictor.seen) == 1


async def test_rows_of_other_form_share_no_call_over_lists(sidecar_of):
    rule = "{tables: {path: /rows, list: instances, answers: predictions}}"
    bench = await sidecar_of(max_batch_size=8, max_latency=50, lists=rule)
    bench.predictor.behave = table
    bodies = [f'{{"instances":[{row}]}}' for row in TABLES[0]]
    answers = [json.loads(body) for _, body, _ in await bench.post_all(*bodies, path="/rows")]
    assert answers == [{"predictions": [123]}, {"predictions": [321]}]
