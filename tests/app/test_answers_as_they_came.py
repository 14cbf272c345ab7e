"""Answers through a whole sidecar, on both lanes, that have to reach callers as the predictor gave them."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web

from tests.app.conftest import Bench
from tests.app.fake_predictor import Seen

LANES = pytest.mark.parametrize("lane", ["on", "off"])
V1 = "/v1/models/m:predict"


@LANES
@pytest.mark.looptime
@pytest.mark.parametrize("size", [1, 700_000])
async def test_v1_answers_with_nan_and_half_characters_are_shared_out(sidecar_of, lane, size):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, fast_lane=lane)
    filling = "x" * size

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        rows = [[float("nan"), filling], float("-inf"), "cut \ud83d"]
        return web.json_response({"predictions": rows[: len(json.loads(seen.body)["instances"])]})

    bench.predictor.behave = behave
    answers = await bench.post_all('{"instances":["a"]}', r'{"instances":["\ud83d"]}', '{"instances":["c"]}')
    assert [body.partition(b'"predictions":')[2] for _, body, _ in answers] == [
        b'[[NaN, "%b"]]}' % filling.encode(), b"[-Infinity]}", rb'["cut \ud83d"]}',
    ]  # fmt: skip
    assert json.loads(bench.predictor.seen[-1].body) == {"instances": ["a", "\ud83d", "c"]}


@LANES
@pytest.mark.looptime
async def test_so_are_answers_over_lists(sidecar_of, lane):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, lists="ollama-embed", fast_lane=lane)
    answer = rb'{"m":"\ud83d","embeddings":[NaN, "\ud83d" ,["NaN",-Infinity]],"x":NaN}'
    bench.predictor.behave = lambda seen, request: web.Response(body=answer, content_type="application/json")
    answers = await bench.post_all(*[json.dumps({"input": [text]}) for text in "abc"], path="/api/embed")
    assert [body for _, body, _ in answers] == [
        rb'{"m":"\ud83d","embeddings":[%b],"x":NaN}' % row for row in (b"NaN", rb'"\ud83d"', b'["NaN",-Infinity]')
    ]
    assert len(bench.predictor.seen) == 1


@LANES
@pytest.mark.looptime
async def test_half_characters_are_taken_from_a_large_request_as_well(sidecar_of, lane):
    bench = await sidecar_of(max_latency=0, fast_lane=lane)
    body = json.dumps({"instances": ["x" * 600_000, "\ud83d", "x" * 600_000]})
    start, rest = await _raw(bench, V1, body)
    assert start.startswith(b"HTTP/1.1 200 ")
    assert bench.predictor.seen[-1].body == body.encode()
    assert json.loads(rest)["predictions"]


@LANES
@pytest.mark.looptime
@pytest.mark.parametrize(("body", "words"), [(b"", "empty"), (b'\xef\xbb\xbf{"instances":[1]}', "byte order mark")])
async def test_words_say_what_a_body_lacks(sidecar_of, lane, body, words):
    bench = await sidecar_of(max_latency=0, fast_lane=lane)
    status, told, _ = await bench.post(body)
    assert status == 400
    assert words in json.loads(told)["error"]
    bench.predictor.behave = lambda seen, request: web.Response(body=body)
    status, told, _ = await bench.post('{"instances":[1]}')
    assert status == 502
    assert words in json.loads(told)["error"]


async def _raw(bench: Bench, path: str, body: str) -> tuple[bytes, bytes]:
    """Head and body of the answer on a connection that stays open, as the fast lane wants it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n{body}".encode())
    start = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", start)
    rest = await reader.readexactly(int(length[1])) if length else b""
    writer.close()
    return start, rest
