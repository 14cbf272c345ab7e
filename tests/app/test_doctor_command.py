"""`carpool-sidecar doctor` against servers on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from carpool_sidecar.app import doctor_command
from tests import loopback
from tests.protocols.pairs import stand_ins

MODELS = {"object": "list", "data": [{"id": "mini", "owned_by": "vllm"}]}
V2_MODEL = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "outputs": []}


class Server:
    """Answers `answers[path]` to a GET, embeddings, v1 and v2; a call takes `seconds`, however many are in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, Any] = {}
        self.posted: list[str] = []
        self.seconds = 0.002
        self.sees_neighbours = False
        self.status = 200
        self.closes = False
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.page = ""
        self.elsewhere: dict[str, str] = {}
        self.codes = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.closes:
            request.transport.close()
        if request.method == "GET":
            self.asked += 1
            if request.path in self.elsewhere:
                raise web.HTTPFound(self.elsewhere[request.path])
            await self.may_answer.wait()
            if self.page:
                return web.Response(text=self.page, content_type="text/html")
            found = self.answers.get(request.path)
            answer = web.json_response(found) if found is not None else web.Response(status=404, text="no")
            if self.codes:
                answer.enable_compression(web.ContentCoding.gzip)
            return answer
        if request.path == "/v2/repository/index":
            return web.Response(status=404)
        self.posted.append(request.path)
        given = json.loads(await request.read())
        if request.path == "/predict":
            return web.json_response(stand_ins.tei(given))
        await asyncio.sleep(self.seconds)
        if self.status != 200:
            return web.json_response({"error": "\x1b[31m"}, status=self.status)
        if "input" in given:
            texts = given["input"] if isinstance(given["input"], list) else [given["input"]]
            longest = max(map(len, texts)) if self.sees_neighbours else 0
            return web.json_response(
                {"data": [{"index": n, "embedding": [len(text) + longest]} for n, text in enumerate(texts)]}
            )
        if "instances" in given:
            return web.json_response({"predictions": [1 for _ in given["instances"]]})
        rows = given["inputs"][0]["shape"][0]
        outputs = [{"name": "y", "datatype": "FP32", "shape": [rows], "data": [0.5] * rows}]
        return web.json_response({"model_name": "m", "outputs": outputs})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    (port,) = loopback.free_ports(1)
    made = Server(f"http://127.0.0.1:{port}")
    runner = web.ServerRunner(web.Server(made.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield made
    made.may_answer.set()
    await runner.cleanup()


async def doctor(server: Server, *argv: str) -> int:
    return await asyncio.to_thread(doctor_command.main, ["--url", server.url, "--seconds", "30", *argv])


async def test_embeddings_are_made_up_measured_and_become_settings(server: Server, capsys) -> None:
    server.answers = {"/v1/models": MODELS, "/version": {"version": "0.24.0"}}
    assert await doctor(server) == 0
    told = capsys.readouterr().out
    assert "vLLM 0.24.0, by its answer at /v1/models" in told
    assert "POST /v1/embeddings: rule openai-embeddings" in told
    assert "what batching buys at /v1/embeddings" in told
    assert "vLLM batches by itself" in told
    assert "carpool.dev/lists: openai-embeddings" in told
    assert "padding" not in told
    assert set(server.posted) == {"/v1/embeddings"}


async def test_a_model_that_sees_padding_is_told_of(server: Server, capsys) -> None:
    server.answers = {"/v1/models": MODELS}
    server.sees_neighbours = True
    assert await doctor(server) == 0
    assert "the model sees the padding" in capsys.readouterr().out


async def test_v2_requests_are_made_up_by_the_models_metadata(server: Server, capsys) -> None:
    server.answers = {
        "/v2": {"name": "mlserver", "version": "1.7.1"}, "/v2/models": {"models": ["m"]}, "/v2/models/m": V2_MODEL,
    }  # fmt: skip
    assert await doctor(server, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["server"], told["version"]) == ("MLServer", "1.7.1")
    assert told["measured"] == "/v2/models/m/infer"
    assert told["probe"]["sizes"][0]["instances"] == 1
    assert int(told["settings"]["max-batch-size"]) > 1


async def test_recorded_bodies_are_sent_where_none_can_be_made_up(server: Server, tmp_path: Path, capsys) -> None:
    server.answers = {"/v2": {"name": "kserve", "version": "0.21.0"}, "/v1/models": {"models": ["m"]}}
    assert await doctor(server) == 0
    assert "not measured: record the bodies" in capsys.readouterr().out
    assert server.posted == []
    body = tmp_path / "body.json"
    body.write_text('{"instances":[3]}')
    assert await doctor(server, "--body", str(body)) == 0
    told = capsys.readouterr()
    assert "what batching buys at /v1/models/m:predict" in told.out
    assert "makes one table of all instances" in told.out
    assert set(server.posted) == {"/v1/models/m:predict"}


async def test_bodies_that_never_share_a_batch_are_told_of(server: Server, tmp_path: Path, capsys) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text('{"instances":[1]}')
    other.write_text('{"instances":[{"a":1}]}')
    assert await doctor(server, "--path", "/v1/models/m:predict", "--body", str(one), str(other)) == 0
    assert "1 of 2 bodies never share a batch with the first" in capsys.readouterr().err


async def test_a_reranker_is_measured_by_pairs_and_told_to_take_them(server: Server, tmp_path: Path, capsys) -> None:
    server.answers = {"/info": {"model_type": {"reranker": {}}, "max_client_batch_size": 64, "version": "1.9.3"}}
    assert await doctor(server) == 0
    told = capsys.readouterr().out
    assert "POST /rerank: rule tei-rerank, as pairs to tei-predict" in told
    assert "what batching buys at /rerank" in told
    assert "'extends: tei-rerank'" in told
    assert set(server.posted) == {"/predict"}
    assert "--lists tei-rerank --rerank-to tei-predict" in told
    body = tmp_path / "body.json"
    body.write_text('{"query":"q","documents":["a","b"]}')
    mine = ["--path", "/v1/rerank", "--lists", "rerank", "--rerank-to", "tei-predict", "--body", str(body), "--json"]
    assert await doctor(server, *mine) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["lists"], settings["rerank-to"]) == ("rerank", "tei-predict")


@pytest.mark.parametrize("more", [[], ["--lists", "tei-embed"], ["--ask-only"], ["--ask-only", "--lists", "tei-embed"]])
@pytest.mark.parametrize("answers", [{"/v1/models": MODELS}, {}], ids=["embeddings", "nothing known"])
async def test_pairs_need_a_rule_with_a_query_as_they_do_in_settings(
    server: Server, capsys, answers: dict[str, Any], more: list[str]
) -> None:
    server.answers = answers
    with pytest.raises(SystemExit) as end:
        await doctor(server, "--rerank-to", "tei-predict", *more)
    assert end.value.code == 2
    assert "--rerank-to needs a rule of --lists with a query" in capsys.readouterr().err
    assert server.posted == []


async def test_a_reranker_that_is_only_asked_may_be_told_where_its_pairs_go(server: Server, capsys) -> None:
    server.answers = {"/info": {"model_type": {"reranker": {}}, "max_client_batch_size": 64, "version": "1.9.3"}}
    assert await doctor(server, "--ask-only", "--rerank-to", "v1:m") == 0
    assert "carpool.dev/rerank-to: v1:m" in capsys.readouterr().out


async def test_nothing_is_posted_when_only_questions_are_asked(server: Server, capsys) -> None:
    server.answers = {"/v1/models": MODELS}
    assert await doctor(server, "--ask-only") == 0
    assert "carpool.dev/lists: openai-embeddings" in capsys.readouterr().out
    assert server.posted == []


async def test_rules_of_ones_own_are_measured_and_printed(server: Server, tmp_path: Path, capsys) -> None:
    body, rule = tmp_path / "body.json", tmp_path / "rule.yaml"
    body.write_text('{"input":["a"]}')
    rule.write_text("mine:\n  path: /mine\n  list: input\n  answers: data\n")
    assert await doctor(server, "--path", "/mine", "--lists", str(rule), "--body", str(body)) == 0
    assert f"carpool.dev/lists: {rule}" in capsys.readouterr().out


async def test_where_nothing_answers_the_status_is_1_with_one_line(server: Server, capsys) -> None:
    (port,) = loopback.free_ports(1)
    server.url = f"http://127.0.0.1:{port}"
    assert await doctor(server) == 1
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_server_that_closes_every_connection_is_none_that_answers(server: Server, capsys) -> None:
    server.closes = True
    assert await doctor(server) == 1
    assert "closed the connection" in capsys.readouterr().err


async def test_a_server_that_says_nothing_is_given_up_after_a_few_questions(server: Server, capsys) -> None:
    server.may_answer.clear()
    assert await doctor(server, "--timeout", "0.3") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "did not answer in time" in told.err
    assert server.asked <= 3


async def test_a_server_that_codes_all_it_says_has_said_nothing_of_itself(server: Server, capsys) -> None:
    server.answers, server.codes = {"/v1/models": MODELS}, True
    assert await doctor(server, "--json") == 0
    assert json.loads(capsys.readouterr().out)["server"] == ""


async def test_an_answer_that_sends_elsewhere_is_no_answer(server: Server, capsys) -> None:
    server.answers = {"/elsewhere": MODELS}
    server.elsewhere = {"/v1/models": "/elsewhere"}
    assert await doctor(server, "--json") == 0
    assert json.loads(capsys.readouterr().out)["server"] == ""
    assert server.posted == []


async def test_requests_that_are_not_answered_end_with_status_1_and_nothing_to_set(server: Server, capsys) -> None:
    server.answers, server.status = {"/v1/models": MODELS}, 500
    assert await doctor(server) == 1
    told = capsys.readouterr().out
    assert "requests to /v1/embeddings are not answered" in told
    assert "carpool.dev/inject" not in told
    assert "\x1b" not in told


async def test_a_path_that_the_server_does_not_list_is_measured_and_becomes_settings(
    server: Server, tmp_path: Path, capsys
) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"instances":[3]}')
    assert await doctor(server, "--path", "/v1/models/m:predict", "--body", str(body)) == 0
    told = capsys.readouterr().out
    assert "POST /v1/models/m:predict: v1, without a rule" in told
    assert "carpool.dev/max-batch-size" in told


async def test_a_page_at_every_path_is_no_server_of_v2(server: Server, capsys) -> None:
    server.page = "<html></html>"
    assert await doctor(server) == 0
    assert "cannot be asked for" not in capsys.readouterr().err


async def test_a_description_of_any_size_is_read_whole(server: Server, capsys) -> None:
    info = {"title": "x", "version": "1.2", "description": "x" * 2_000_000}
    server.answers = {"/openapi.json": {"openapi": "3.1.0", "info": info, "paths": {}}}
    assert await doctor(server) == 0
    assert "an app with a description of its API 1.2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--url", "https://h"], "'https://h' is no http:// address"),
        (["--url", "http://h/v1/x"], "--path"),
        (["--url", "http://h?x"], "--path"),
        (["--url", "http://user:secret@h"], "--header"),
        (["--path", "http://other/x"], "must begin with one /"),
        (["--path", "//other/x"], "must begin with one /"),
        (["--path", "v1/models/m:predict"], "must begin with one /"),
        (["--header", "Host: evil"], "'Host' is not a header that a batch can carry"),
        (["--ask-only", "--lists", "nosuch"], "'nosuch' is no built-in rule"),
        (["--header", "x"], "must be NAME: VALUE"),
        (["--seconds", "0"], "must be a number from 0.1 to 600"),
        (["--body", "/nowhere"], "cannot be read"),
    ],
)
def test_bad_arguments_end_with_one_line_and_status_2(capsys, argv: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as end:
        doctor_command.main(argv)
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert words in told
    assert "secret" not in told
    assert told.count("\n") == 1


async def test_a_path_without_bodies_asks_for_them(server: Server, capsys) -> None:
    with pytest.raises(SystemExit):
        await doctor(server, "--path", "/v1/models/m:predict")
    assert "--body is needed: requests to /v1/models/m:predict cannot be made up" in capsys.readouterr().err
