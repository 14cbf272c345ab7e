"""`carpool-sidecar probe` against a predictor on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from carpool_sidecar.app import probe_command
from tests import loopback
from tests.protocols.pairs import stand_ins


class Server:
    """Answers v1 and OpenAI's embeddings; refuses more than `most` instances."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.sizes: list[int] = []
        self.most = 1000
        self.headers: list[str] = []
        self.answer = self.handle

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        given = json.loads(await request.read())
        rows = given["instances"] if "instances" in given else given["input"]
        rows = rows if isinstance(rows, list) else [rows]
        self.sizes.append(len(rows))
        self.headers.append(request.headers.get("api-key", ""))
        if len(rows) > self.most:
            return web.json_response({"error": "out of memory"}, status=500)
        if "instances" in given:
            return web.json_response({"predictions": [[row + len(rows) * 1e-6] for row in rows]})
        return web.json_response({"data": [{"index": place, "embedding": [1.0]} for place in range(len(rows))]})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    (port,) = loopback.free_ports(1)
    made = Server(port)
    runner = web.ServerRunner(web.Server(lambda request: made.answer(request)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield made
    await runner.cleanup()


async def probe(*argv: str) -> int:
    return await asyncio.to_thread(probe_command.main, argv)


async def test_sizes_differences_and_the_limit_are_found(server: Server, tmp_path: Path, capsys) -> None:
    server.most = 11
    body = tmp_path / "body.json"
    body.write_text('{"instances":[3]}')
    assert await probe("--url", server.url + "/v1/models/m:predict", "--body", str(body), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["instances"] for each in told["sizes"]] == [1, 2, 4, 8]
    assert told["sizes"][3]["largest_difference"] == pytest.approx(7e-6)
    assert told["limit"] == 'It fails from 12 instances on: status 500, {"error": "out of memory"}.'
    assert max(server.sizes) == 16


async def test_rules_of_lists_and_headers_are_taken(server: Server, tmp_path: Path, capsys) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"input":"a"}')
    argv = ["--url", server.url + "/v1/embeddings", "--lists", "openai-embeddings", "--body", str(body)]
    assert await probe(*argv, "--largest", "4", "--header", "api-key: mine") == 0
    assert set(server.sizes) == {1, 2, 4}
    assert set(server.headers) == {"mine"}
    assert "ms an instance" in capsys.readouterr().out


async def test_rerank_requests_are_sent_as_pairs_of_all_their_queries(server: Server, tmp_path: Path, capsys) -> None:
    async def pairs(request: web.BaseRequest) -> web.StreamResponse:
        given = json.loads(await request.read())
        server.sizes.append(len(given["inputs"]))
        return web.json_response(stand_ins.tei(given))

    server.answer = pairs
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for number, file in enumerate(files):
        file.write_text(json.dumps({"query": f"question {number}", "texts": ["a", "b"]}))
    words = ["--url", server.url + "/rerank", "--lists", "tei-rerank", "--rerank-to", "tei-predict", "--json"]
    assert await probe(*words, "--body", *map(str, files)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["instances"] for each in told["sizes"]] == [2, 4, 8, 16, 32]
    assert {each["largest_difference"] for each in told["sizes"]} == {0}
    assert set(server.sizes) == {2, 4, 8, 16, 32}


@pytest.mark.parametrize(
    ("lists", "to", "words"),
    [
        ("tei-embed", "tei-predict", "--rerank-to needs a rule of --lists with a query"),
        ("tei-rerank", "v2:m", "calls of v2 depend on the model's metadata"),
        ("tei-rerank", "v2", "calls of v2 depend on the model's metadata"),
        ("tei-rerank", "tei", "must be one of tei-predict, vllm-score, v1, and of v1 with a model, as in v1:MODEL;"),
    ],
)
def test_pairs_that_cannot_be_made_here_are_refused(tmp_path: Path, capsys, lists: str, to: str, words: str) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"query":"q","texts":["a"]}')
    with pytest.raises(SystemExit) as end:
        probe_command.main(["--url", "http://h/rerank", "--lists", lists, "--rerank-to", to, "--body", str(body)])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


async def test_a_predictor_that_is_not_there_is_told_with_status_1(tmp_path: Path, capsys) -> None:
    (port,) = loopback.free_ports(1)
    body = tmp_path / "body.json"
    body.write_text('{"instances":[3]}')
    assert await probe("--url", f"http://127.0.0.1:{port}/v1/models/m:predict", "--body", str(body)) == 1
    assert "cannot be reached" in capsys.readouterr().out


async def test_an_answer_that_is_no_json_is_told_without_what_a_terminal_obeys(
    server: Server, tmp_path: Path, capsys
) -> None:
    async def page(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"\x1b]0;owned\x07<html>")

    server.answer = page
    body = tmp_path / "body.json"
    body.write_text('{"instances":[3]}')
    assert await probe("--url", server.url + "/v1/models/m:predict", "--body", str(body)) == 1
    told = capsys.readouterr().out
    assert "an answer that is no JSON" in told
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.HTTPFound, "A request alone was not answered: status 302."),
        (web.Response, "A request alone was not answered: an answer that is no JSON."),
    ],
    ids=["redirect", "empty"],
)
async def test_an_answer_without_words_is_told_without_a_comma_for_them(
    server: Server, tmp_path: Path, capsys, answer, words
) -> None:
    async def nothing(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302) if answer is web.HTTPFound else web.Response()

    server.answer = nothing
    body = tmp_path / "body.json"
    body.write_text('{"instances":[3]}')
    assert await probe("--url", server.url + "/v1/models/m:predict", "--body", str(body)) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/models/m:predict", "null"),
        ("/v1/models/m:predict", '{"error":"no such model"}'),
        ("/v2/models/m/infer", "5"),
        ("/v1/embeddings", "null"),
        ("/v1/embeddings", '"x"'),
    ],
)
async def test_an_answer_without_rows_to_a_request_alone_is_none(
    server: Server, tmp_path: Path, capsys, path: str, answer: str
) -> None:
    async def odd(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=answer, content_type="application/json")

    server.answer = odd
    body = tmp_path / "body.json"
    v2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}
    body.write_text(json.dumps({"instances": [3]} | {"input": ["a"]} | (v2 if "v2" in path else {})))
    argv = ["--url", server.url + path, "--lists", "openai-embeddings", "--body", str(body)]
    assert await probe(*argv) == 1
    assert "A request alone was not answered" in capsys.readouterr().out


async def test_a_bare_value_that_is_answered_by_a_bare_value_is_measured(
    server: Server, tmp_path: Path, capsys
) -> None:
    async def one(request: web.BaseRequest) -> web.StreamResponse:
        given = json.loads(await request.read())["texts"]
        return web.json_response([0.5] * len(given) if isinstance(given, list) else 0.5)

    server.answer = one
    body = tmp_path / "body.json"
    body.write_text('{"texts":"a"}')
    rule = "{mine: {path: /predict, list: texts, answers: $, scalar: unwrapped}}"
    assert await probe("--url", server.url + "/predict", "--lists", rule, "--body", str(body), "--largest", "2") == 0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_a_timeout_that_is_none_is_refused(capsys, text: str) -> None:
    with pytest.raises(SystemExit):
        probe_command.main(["--url", "http://h/v1/models/m:predict", "--body", __file__, f"--timeout={text}"])
    assert "must be a number from 0.001 to 3,600" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "body", "words"),
    [
        ("https://h/v1/models/m:predict", '{"instances":[3]}', "is no http:// address"),
        ("http://me:secret@h/v1/models/m:predict", '{"instances":[3]}', "give a --header"),
        ("http://h/elsewhere", '{"instances":[3]}', "neither a path of v1 or v2"),
        ("http://h/v1/models/m:predict", '{"instances":[]}', "has no instances"),
        ("http://h/v1/models/m:predict", None, "cannot be read"),
    ],
)
def test_bad_arguments_end_with_one_line_and_status_2(tmp_path: Path, capsys, url, body, words) -> None:
    file = tmp_path / "body.json"
    if body is not None:
        file.write_text(body)
    with pytest.raises(SystemExit) as end:
        probe_command.main(["--url", url, "--body", str(file)])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "most"),
    [("max_batch_size: 6", 4), ("max_bytes: 60", 4), ("max_characters: 40", 8), ("index: index", 16)],
)
async def test_no_batch_is_larger_than_the_limits_of_its_rule(
    server: Server, tmp_path: Path, capsys, limit: str, most: int
) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"input":["abcde"]}')
    rule = f"{{own: {{path: /e, list: input, answers: data, {limit}}}}}"
    words = ["--url", server.url + "/e", "--lists", rule, "--body", str(body), "--largest", "16", "--json"]
    assert await probe(*words) == 0
    told = capsys.readouterr()
    assert max(server.sizes) == most
    assert [each["instances"] for each in json.loads(told.out)["sizes"]][-1] == most


async def test_one_size_alone_is_no_reason_for_or_against_batches(server: Server, tmp_path: Path, capsys) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"input":["a","b"]}')
    rule = "{own: {path: /e, list: input, answers: data, max_batch_size: 3}}"
    assert await probe("--url", server.url + "/e", "--lists", rule, "--body", str(body)) == 0
    told = capsys.readouterr().out
    assert "Only one size could be measured, so nothing follows for batches." in told
    assert "A call takes" not in told
    assert "buys" not in told


@pytest.mark.parametrize("limit", ["max_batch_size: 2", "max_bytes: 8"])
async def test_a_body_that_its_rule_lets_into_no_call_is_refused_and_never_sent(
    server: Server, tmp_path: Path, capsys, limit: str
) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"input":["abc","def","ghi"]}')
    rule = f"{{own: {{path: /e, list: input, answers: data, {limit}}}}}"
    with pytest.raises(SystemExit):
        await probe("--url", server.url + "/e", "--lists", rule, "--body", str(body))
    assert "a body has 3 instances, more than its rule lets into one call" in capsys.readouterr().err
    assert not server.sizes
