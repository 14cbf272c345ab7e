"""What callers get over the v1 protocol, from real worker processes."""

from __future__ import annotations

import gzip
import io
import json
import logging

import pytest

from .conftest import Start

pytestmark = pytest.mark.uvloop

OWN = "own=sample_models:Doubling"


async def test_models_are_listed_and_described(start: Start) -> None:
    predictor = await start("echo", OWN)
    async with predictor.client.get("/v1/models") as response:
        assert await response.json() == {"models": ["echo", "own"]}
    async with predictor.client.get("/v1/models/own") as response:
        assert (response.status, await response.json()) == (200, {"name": "own", "ready": True})


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/healthz"])
async def test_a_ready_predictor_answers_every_probe(start: Start, path: str) -> None:
    predictor = await start("echo")
    assert await predictor.status(path) == 200
    async with predictor.client.head(path) as response:
        assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize("member", [b"instances", b"inputs"])
async def test_own_model_by_import_path_predicts_decoded_instances(start: Start, member: bytes) -> None:
    predictor = await start(OWN)
    status, body = await predictor.predict("own", b'{"' + member + b'":[1,"ab",[2]]}')
    assert (status, json.loads(body)) == (200, {"predictions": [2, "abab", [2, 2]]})


async def test_an_instance_may_name_what_is_a_member_of_the_body(start: Start) -> None:
    predictor = await start("echo")
    rows = b'{"instances":1},"instances",{"instances":[2]}'
    assert await predictor.predict("echo", b'{"instances":[' + rows + b"]}") == (
        200,
        b'{"predictions":[' + rows + b"]}",
    )


async def test_echo_changes_no_byte(start: Start) -> None:
    rows = rb'9007199254740993,1.0,1e400,"\u003c",-0.0,{"a" : [ 1 ]},"\ud83d\ude00"'
    predictor = await start("echo")
    assert await predictor.predict("echo", b'{"instances":[' + rows + b"]}") == (
        200,
        b'{"predictions":[' + rows + b"]}",
    )


async def test_echo_can_answer_lengths(start: Start) -> None:
    predictor = await start("echo", echo_answer="length")
    assert await predictor.predict("echo", '{"instances":["ä", 12]}'.encode()) == (200, b'{"predictions":[4,2]}')


async def test_echo_refuses_poison_only(start: Start) -> None:
    predictor = await start("echo", echo_poison='"bad"')
    assert await predictor.predict("echo", b'{"instances":["good","bad"]}') == (
        400,
        b'{"error":"instance 1 is poison"}',
    )
    assert await predictor.predict("echo", b'{"instances":["good"]}') == (200, b'{"predictions":["good"]}')


async def test_large_bodies_come_back_whole(start: Start) -> None:
    predictor = await start("echo")
    rows = b",".join(b'"%s"' % (b"%d" % place * 200_000) for place in range(10))
    status, body = await predictor.predict("echo", io.BytesIO(b'{"instances":[' + rows + b"]}"))
    assert status == 200
    assert body == b'{"predictions":[' + rows + b"]}"


async def test_compressed_and_expecting_callers_are_served(start: Start) -> None:
    predictor = await start("echo")
    packed = gzip.compress(b'{"instances":[1]}')
    answer = (200, b'{"predictions":[1]}')
    assert await predictor.predict("echo", packed, headers={"Content-Encoding": "gzip"}, compress=None) == answer
    assert await predictor.predict("echo", b'{"instances":[1]}', expect100=True) == answer


async def test_arrays_become_lists(start: Start) -> None:
    predictor = await start("m=sample_models:Returning")
    assert await predictor.predict("m", b'{"instances":["array"]}') == (200, b'{"predictions":[[0.5,1.5]]}')


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b"[1]", "must be a JSON object"),
        (b'{"instances":[1,]}', "trailing comma"),
        (b'{"instances":[]}', "no instances"),
        (b'{"instances":7}', "must be a list"),
        (b'{"rows":[1]}', "no instances"),
        (b'{"inputs":{"a":[1]}}', "'inputs' must be a list"),
        (b'{"instances":[1],"instances":[2]}', "duplicate member 'instances'"),
        (b'{"instances":[1],"parameters":1,"parameters":1}', "duplicate member 'parameters'"),
        (b'{"instances":null}', "'instances' must be a list"),
        (b'{"instances":["\xff"]}', "not valid UTF-8"),
        (b"[" * 100_000, "JSON object"),
        (b'{"instances":[1e400]}', "out of range"),
    ],
)
async def test_malformed_bodies_get_400_with_the_reason(start: Start, body: bytes, reason: str) -> None:
    predictor = await start(OWN)
    status, answer = await predictor.predict("own", body)
    assert status == 400
    assert reason in json.loads(answer)["error"]


async def test_broken_compression_gets_400(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    predictor = await start("echo")
    status, body = await predictor.predict("echo", b"no gzip", headers={"Content-Encoding": "gzip"}, compress=None)
    assert status == 400
    assert b"the body cannot be read" in body
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/other", "/v1/models/other:predict", "/v2/models", "/v1/models/", "/v1/models/:predict", "/x",
        "/echo", "/elsewhere/echo", "/elsewhere/echo:predict", "/v1/models/more/echo", "/v2/models/echo",
    ],
)  # fmt: skip
async def test_unknown_models_and_paths_get_404(start: Start, path: str) -> None:
    predictor = await start("echo", wait=False)
    async with predictor.client.get(path) as response:
        assert response.status == 404
        assert set(await response.json()) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/models/echo:predict", "POST"),
        ("POST", "/v1/models/echo", "GET, HEAD"),
        ("DELETE", "/readyz", "GET, HEAD"),
    ],
)
async def test_wrong_methods_get_405_with_the_right_ones(start: Start, method: str, path: str, allowed: str) -> None:
    predictor = await start("echo", wait=False)
    async with predictor.client.request(method, path) as response:
        assert (response.status, response.headers["Allow"]) == (405, allowed)
        assert set(await response.json()) == {"error"}


async def test_model_exceptions_get_500_with_their_message_and_no_traceback(start: Start) -> None:
    predictor = await start("m=sample_models:Raising")
    assert await predictor.predict("m", b'{"instances":[1]}') == (500, b'{"error":"the weights caught fire"}')


async def test_invalid_instances_get_400(start: Start) -> None:
    predictor = await start("m=sample_models:Raising")
    answer = (400, b'{"error":"instance 0 is not a picture"}')
    assert await predictor.predict("m", b'{"instances":["invalid"]}') == answer


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("too few", "the model returned 1 predictions for 2 instances"),
        ("a string", "the model must return a list of predictions, not str"),
        ("nothing", "the model must return a list of predictions, not NoneType"),
    ],
)
async def test_a_wrong_count_of_predictions_gets_500(start: Start, kind: str, message: str) -> None:
    predictor = await start("m=sample_models:Returning")
    status, body = await predictor.predict("m", json.dumps({"instances": [kind, "more"]}).encode())
    assert (status, json.loads(body)) == (500, {"error": message})


async def test_predictions_without_a_json_form_get_500(start: Start) -> None:
    predictor = await start("m=sample_models:Returning")
    status, body = await predictor.predict("m", b'{"instances":["object"]}')
    assert (status, json.loads(body)) == (500, {"error": "a prediction of type object has no JSON form"})
