"""What is not a predict request in JSON goes to the predictor as it is."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.assembly.conftest import PREDICT

pytestmark = pytest.mark.looptime

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"), ("GET", PREDICT), ("PUT", PREDICT), ("POST", "/v1/models/m:explain"),
        ("POST", PREDICT + "/"), ("POST", "/v2/models/m/load"), ("DELETE", "/x?y=1"), ("PATCH", "/"),
    ],
)  # fmt: skip
async def test_other_methods_and_paths_are_not_batched(bench, method, path):
    async with bench.client.request(method, bench.url + path, data=b"anything") as response:
        assert response.status == 200
        assert response.headers["X-From"] == "predictor"
    seen = bench.predictor.seen[0]
    assert (seen.method, seen.target, seen.body) == (method, path, b"anything")
    assert seen.headers["X-Forwarded-For"] == "127.0.0.1"


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/cloudevents+json"},
        {"Content-Type": "application/json", "ce-id": "1", "ce-specversion": "1.0"},
    ],
)
async def test_predict_requests_that_are_not_plain_json_pass_through(bench, headers):
    bench.predictor.behave = _answer_ok
    status, _, _ = await bench.post(b"\x00\xff", headers=headers)
    assert status == 200
    assert bench.predictor.seen[0].body == b"\x00\xff"


def _answer_ok(seen, request):
    from aiohttp import web

    return web.Response(text="ok")


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "application/vnd.x+json", "text/plain",
                   "application/x-www-form-urlencoded", None],
)  # fmt: skip
async def test_json_is_batched_whatever_simple_clients_call_it(bench, media_type):
    headers = {"Content-Type": media_type} if media_type else {}
    options = {"skip_auto_headers": ["Content-Type"], "headers": headers}
    status, body, _ = await bench.post(b'{"instances":[1]}', **options)
    assert status == 200
    assert b"batchId" in body
    assert bench.predictor.seen[0].headers["Content-Type"] == (media_type or "application/json")


async def test_a_columnar_body_is_counted_until_the_predictor_has_answered(sidecar_of):
    body = b'{"inputs":{"a":[1,2],"b":[3,4]}}' + b" " * 3000
    bench = await sidecar_of(max_queue_bytes=4096, max_body_bytes=4096)
    bench.predictor.behave = _answer_ok
    bench.predictor.gate.clear()
    passing = asyncio.ensure_future(bench.post(body))
    await bench.predictor.received(1)
    assert await bench.metric("carpool_held_bytes") == len(body)
    assert (await bench.post(body))[0] == 429
    bench.predictor.gate.set()
    assert (await passing)[0] == 200
    assert (await bench.post(body))[0] == 200
    assert await bench.metric("carpool_held_bytes") == 0


async def test_a_header_that_could_not_be_forwarded_as_it_is_is_400(bench):
    for name in ("X-Any", "Authorization", "X-Forwarded-For"):
        answer = await bench.raw("GET", "/v1/models", {name: "a\udcff"})
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert f"the value of the header {name} is not valid UTF-8".encode() in answer
    answer = await bench.raw("GET", "/", "Connection: upgrade\r\nUpgrade: a\udcff\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert bench.predictor.seen == []
    assert (await bench.raw("GET", "/v1/models", {"X-Any": "größe"})).startswith(b"HTTP/1.1 200 ")
    assert bench.predictor.seen[0].headers["X-Any"] == "größe"


@pytest.mark.parametrize("coding", [None, "gzip"])
async def test_columnar_inputs_go_through_unbatched(bench, coding):
    bench.predictor.behave = _answer_ok
    plain = b'{"inputs":{"a":[1,2],"b":[3,4]}}'
    body, headers = (gzip.compress(plain), {**JSON, "Content-Encoding": coding}) if coding else (plain, JSON)
    status, answer, _ = await bench.post(body, headers=headers)
    assert (status, answer) == (200, b"ok")
    seen = bench.predictor.seen[0]
    assert "Content-Encoding" not in seen.headers
    assert seen.body == plain
