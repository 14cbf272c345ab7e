"""Answers through a whole sidecar that have to reach callers as the predictor gave them."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web

from tests.app.conftest import Bench
from tests.app.fake_predictor import Seen

EMBED = "/v1/embeddings"
V1 = "/v1/models/m:predict"
TEXT = '{"input":"a","model":"m"}'


@pytest.mark.looptime
@pytest.mark.parametrize("size", [1, 700_000])
async def test_v1_answers_with_nan_and_half_characters_are_shared_out(sidecar_of, size):
    bench = await sidecar_of(max_batch_size=3, max_latency=500)
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


@pytest.mark.looptime
async def test_so_are_answers_over_lists(sidecar_of):
    bench = await sidecar_of(max_batch_size=3, max_latency=500, lists="ollama-embed")
    answer = rb'{"m":"\ud83d","embeddings":[NaN, "\ud83d" ,["NaN",-Infinity]],"x":NaN}'
    bench.predictor.behave = lambda seen, request: web.Response(body=answer, content_type="application/json")
    answers = await bench.post_all(*[json.dumps({"input": [text]}) for text in "abc"], path="/api/embed")
    assert [body for _, body, _ in answers] == [
        rb'{"m":"\ud83d","embeddings":[%b],"x":NaN}' % row for row in (b"NaN", rb'"\ud83d"', b'["NaN",-Infinity]')
    ]
    assert len(bench.predictor.seen) == 1


@pytest.mark.looptime
async def test_half_characters_are_taken_from_a_large_request_as_well(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    body = json.dumps({"instances": ["x" * 600_000, "\ud83d", "x" * 600_000]})
    start, rest = await _raw(bench, V1, body)
    assert start.startswith(b"HTTP/1.1 200 ")
    assert bench.predictor.seen[-1].body == body.encode()
    assert json.loads(rest)["predictions"]


@pytest.mark.looptime
@pytest.mark.parametrize(("body", "words"), [(b"", "empty"), (b'\xef\xbb\xbf{"instances":[1]}', "byte order mark")])
async def test_words_say_what_a_body_lacks(sidecar_of, body, words):
    bench = await sidecar_of(max_latency=0)
    status, told, _ = await bench.post(body)
    assert status == 400
    assert words in json.loads(told)["error"]
    bench.predictor.behave = lambda seen, request: web.Response(body=body)
    status, told, _ = await bench.post('{"instances":[1]}')
    assert status == 502
    assert words in json.loads(told)["error"]


@pytest.mark.looptime
@pytest.mark.parametrize("status", [200, 201, 202, 204, 206])
async def test_a_lone_answer_over_lists_is_passed_on_with_status_and_all_headers(sidecar_of, status):
    bench = await sidecar_of(max_latency=0, lists="openai-embeddings")
    body = b"" if status == 204 else b'{"data":[{"index":0,"embedding":[1]}]}'
    length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
    fields = b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Model: caf\xe9\r\nSet-Cookie: c=3\r\nretry-after-ms: 7\r\n"
    head = b"HTTP/1.1 %d Fine\r\nContent-Type: application/json\r\n%b%b\r\n" % (status, fields, length)

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(head + body)
        return web.StreamResponse()

    bench.predictor.behave = behave
    start, rest = await _raw(bench, EMBED, TEXT)
    assert start.startswith(b"HTTP/1.1 %d " % status)
    lines = start.split(b"\r\n")
    assert lines[1:7] == [
        b"Content-Type: application/json", b"Set-Cookie: a=1", b"Set-Cookie: b=2", b"X-Model: caf\xe9",
        b"Set-Cookie: c=3", b"Retry-After-Ms: 7",
    ]  # fmt: skip
    assert (rest, b"Content-Length" in start) == (body, status != 204)


@pytest.mark.looptime
async def test_nor_does_it_have_fields_of_the_predictors_connection_or_another_id_of_a_batch(sidecar_of):
    bench = await sidecar_of(max_latency=0, lists="openai-embeddings")
    body = b'{"data":[{"index":0,"embedding":[1]}]}'
    named = b"Connection: X-One, keep-alive\r\nX-One: 1\r\nX-Two: 2\r\nConnection: x-three\r\nX-Three: 3\r\n"
    always = b"TE: x\r\nProxy-Authorization: x\r\nKeep-Alive: 1\r\nCarpool-Batch-Id: theirs\r\nX-Four: 4\r\n"
    head = b"HTTP/1.1 200 OK\r\n%b%bContent-Length: %d\r\n\r\n" % (named, always, len(body))

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(head + body)
        return web.StreamResponse()

    bench.predictor.behave = behave
    start, rest = await _raw(bench, EMBED, TEXT)
    names = [line.partition(b":")[0] for line in start.split(b"\r\n")[1:] if line]
    assert names == [b"Content-Type", b"X-Two", b"X-Four", b"carpool-batch-id", b"Date", b"Content-Length"]
    assert b"theirs" not in start
    assert rest == body


async def _raw(bench: Bench, path: str, body: str) -> tuple[bytes, bytes]:
    """Head and body of the answer on a connection that stays open, as a plain request gets it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n{body}".encode())
    start = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", start)
    rest = await reader.readexactly(int(length[1])) if length else b""
    writer.close()
    return start, rest


@pytest.mark.looptime
async def test_a_refusal_says_when_to_come_again_to_the_millisecond(sidecar_of):
    bench = await sidecar_of(max_latency=0, lists="openai-embeddings")
    again = {"retry-after-ms": "250"}
    bench.predictor.behave = lambda seen, request: web.Response(status=429, body=b"{}", headers=again)
    status, _, headers = await bench.post(TEXT, path=EMBED)
    assert (status, headers["retry-after-ms"]) == (429, "250")


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (EMBED, TEXT),
        (V1, '{"instances":[1]}'),
        ("/v2/models/m/infer", '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'),
        ("/other", "{}"),
    ],
)
@pytest.mark.parametrize("status", [307, 301])
async def test_a_redirect_that_was_made_of_host_names_the_callers(sidecar_of, path, body, status):
    bench = await sidecar_of(max_latency=0, lists="openai-embeddings")

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(status=404)
        return web.Response(status=status, headers={"Location": f"http://{request.headers['Host']}{path}/?a=b"})

    bench.predictor.behave = behave
    for host in ("models.example.com", "other:8080"):
        _, _, headers = await bench.post(body, path=path, headers={"Host": host}, allow_redirects=False)
        assert headers["Location"] == f"http://{host}{path}/?a=b"


@pytest.mark.looptime
@pytest.mark.parametrize("where", ["/v1/x", "https://127.0.0.1/x", "http://127.0.0.1.example.com/x", "http://else/x"])
async def test_any_other_redirect_is_told_as_it_is(sidecar_of, where):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = lambda seen, request: web.Response(status=308, headers={"Location": where})
    _, _, headers = await bench.post('{"instances":[1]}', headers={"Host": "a"}, allow_redirects=False)
    assert headers["Location"] == where


@pytest.mark.looptime
async def test_callers_of_one_batch_are_each_redirected_to_the_host_they_asked_for(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500)
    bench.predictor.behave = lambda seen, request: web.Response(
        status=307, headers={"Location": f"http://{request.headers['Host']}/there"}
    )
    posts = [
        bench.post('{"instances":[1]}', headers={"Host": host}, allow_redirects=False) for host in ("one", "two:1")
    ]
    answers = await asyncio.gather(*posts)
    assert [headers["Location"] for _, _, headers in answers] == ["http://one/there", "http://two:1/there"]


@pytest.mark.looptime
async def test_callers_share_a_call_only_if_they_accept_the_same_where_the_server_obeys_it(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=500, lists="hf-toolkit")

    def behave(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
        given = json.loads(seen.body)["inputs"]
        texts = [given] if isinstance(given, str) else given
        if request.headers["Accept"] == "text/csv":
            return web.Response(text="length\n" + "".join(f"{len(text)}\n" for text in texts), content_type="text/csv")
        return web.json_response([{"length": len(text)} for text in texts])

    bench.predictor.behave = behave
    asked = [("a", "text/csv"), ("bb", "application/json"), ("ccc", "text/csv"), ("dddd", "application/json")]
    answers = await asyncio.gather(
        *[
            bench.post(json.dumps({"inputs": text}), path="/predict", headers={"Accept": accept})
            for text, accept in asked
        ]
    )
    assert [body for _, body, _ in answers] == [
        b"length\n1\n", b'[{"length": 2}]', b"length\n3\n", b'[{"length": 4}]',
    ]  # fmt: skip
