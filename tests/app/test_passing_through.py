"""What is not a predict request in JSON goes to the predictor as it is."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.app.conftest import PREDICT

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
    ("headers", "reason"),
    [
        ({"Content-Type": "application/octet-stream"}, "media_type"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, "media_type"),
        ({"Content-Type": "application/cloudevents+json"}, "media_type"),
        ({"Content-Type": "text/event-stream"}, "media_type"),
        ({"Content-Type": "text/html"}, "media_type"),
        ({"Content-Type": "text/csv"}, "media_type"),
        ({"Content-Type": "application/json", "ce-id": "1", "ce-specversion": "1.0"}, "cloud_event"),
    ],
)
async def test_predict_requests_that_are_not_plain_json_pass_through_and_are_counted(bench, headers, reason):
    bench.predictor.behave = _answer_ok
    status, _, _ = await bench.post(b"\x00\xff", headers=headers)
    assert status == 200
    seen = bench.predictor.seen[0]
    assert (seen.body, seen.headers["Content-Type"]) == (b"\x00\xff", headers["Content-Type"])
    assert await bench.metric(f'carpool_unbatched_total{{reason="{reason}"}}') == 1


@pytest.mark.parametrize("body", [b"[1]", b'{"instances":[]}', b'{"instances":[NaN]}', b"", b'{"instances":[1]'])
async def test_what_its_type_did_not_announce_as_json_is_never_refused_for_being_none(bench, body):
    bench.predictor.behave = _answer_ok
    assert (await bench.post(body, headers={"Content-Type": "text/html"}))[0] == 200
    assert bench.predictor.seen[0].body == body
    assert (await bench.post(body, headers={"Content-Type": "text/plain"}))[0] == 400


async def test_what_its_type_did_not_announce_as_json_and_cannot_be_read_passes_through_unread(sidecar_of):
    bench = await sidecar_of(max_body_bytes=1024, max_queue_bytes=2048)
    bench.predictor.behave = _answer_ok
    large = b'{"instances":["%b"]}' % (b"x" * 4000)
    assert (await bench.post(large, headers={"Content-Type": "text/csv"}))[0] == 200
    strange = {"Content-Type": "text/csv", "Content-Encoding": "x-own"}
    assert (await bench.post(b"strange", headers=strange))[0] == 200
    first, second = bench.predictor.seen
    assert (first.body, second.body, second.headers["Content-Encoding"]) == (large, b"strange", "x-own")
    assert await bench.metric('carpool_unbatched_total{reason="media_type"}') == 2
    assert (await bench.post(large))[0] == 413


@pytest.mark.parametrize(
    ("method", "path", "times"),
    [
        ("POST", "/v1/chat/completions", 1),
        ("POST", "/v1/embeddings", 1),
        ("POST", "/generate_stream?a=b", 1),
        ("GET", "/v1/chat/completions", 0),
        ("GET", "/health", 0),
    ],
)
async def test_what_is_sent_to_paths_at_which_nothing_is_batched_is_counted(bench, method, path, times):
    """So that a sidecar shows for how much of what it is given it can do nothing."""
    bench.predictor.behave = _answer_ok
    for _ in range(2):
        async with bench.client.request(method, bench.url + path, data=b"{}" if times else None) as response:
            assert response.status == 200
    assert await bench.metric('carpool_unbatched_total{reason="other_path"}') == 2 * times


async def test_a_predict_request_is_not_counted_as_one_to_another_path(bench):
    await bench.post('{"instances":[1]}')
    assert await bench.metric('carpool_unbatched_total{reason="other_path"}') == 0


async def test_elsewhere_a_type_is_nobodys_business(bench):
    bench.predictor.behave = _answer_ok
    await bench.post(b"x", path="/v1/models/m:explain", headers={"Content-Type": "image/png"})
    assert await bench.metric('carpool_unbatched_total{reason="media_type"}') == 0


@pytest.mark.parametrize(
    "media_type", ["text/html", "text/html; charset=utf-8", "application/vnd.x", "text/csv", "*/*"]
)
async def test_a_predict_request_of_any_type_is_batched_as_json_with_the_others(sidecar_of, media_type):
    bench = await sidecar_of(max_batch_size=2, max_latency=500)
    odd, usual = await asyncio.gather(
        bench.post(b'{"instances":[1]}', headers={"Content-Type": media_type}), bench.post(b'{"instances":[2]}')
    )
    assert (odd[0], usual[0]) == (200, 200)
    assert b'"predictions":[1]' in odd[1]
    (seen,) = bench.predictor.seen
    assert seen.headers["Content-Type"] == "application/json"
    assert sorted(seen.rows) == [b"1", b"2"]


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


async def test_header_values_that_are_not_utf8_go_through_as_the_bytes_that_came(bench):
    for name in ("X-Any", "Authorization", "X-Forwarded-For"):
        assert (await bench.raw("GET", "/v1/models", {name: "a\udcff"})).startswith(b"HTTP/1.1 200 ")
        assert bench.predictor.seen[-1].headers[name].startswith("a\udcff")
    await bench.raw("GET", "/", "Connection: upgrade\r\nUpgrade: a\udcff\r\n")
    assert bench.predictor.seen[-1].headers["Upgrade"] == "a\udcff"
    assert (await bench.raw("GET", "/v1/models", {"X-Any": "größe"})).startswith(b"HTTP/1.1 200 ")
    assert bench.predictor.seen[-1].headers["X-Any"] == "größe"


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
