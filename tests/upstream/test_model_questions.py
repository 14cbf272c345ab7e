"""Questions about models to a predictor on a loopback socket: which are asked, and what failures become."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.upstream import model_questions
from tests.upstream.wire import Peer, Wire, http

NAME = models.ModelName("m%2Fx", "3")
METADATA = {"inputs": [{"name": "a", "datatype": "FP32", "shape": [-1]}], "outputs": []}


class Predictor:
    """Answers `answers[path]`: a status, JSON, bytes, or both; `asked` has the requests as `METHOD path`."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.json_only = False
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(f"{request.method} {request.raw_path}")
        await self.hangs.wait()
        answer = self.answers.get(request.raw_path, 404)
        if self.json_only and request.body_exists and request.content_type != "application/json":
            answer = 422
        if isinstance(answer, int):
            return web.Response(status=answer, body=b'{"error":"no"}', content_type="application/json")
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return web.json_response(answer)


@pytest.fixture
async def predictor() -> Predictor:
    return Predictor()


@pytest.fixture
async def questions(predictor: Predictor, aiohttp_raw_server: Any) -> AsyncIterator[model_questions.HttpQuestions]:
    server = await aiohttp_raw_server(predictor.handle)
    made = model_questions.HttpQuestions(f"http://127.0.0.1:{server.port}")
    yield made
    await made.close()
    predictor.hangs.set()


Questions = model_questions.HttpQuestions


async def test_triton_tells_of_a_model_by_metadata_and_configuration(
    predictor: Predictor, questions: Questions
) -> None:
    predictor.answers = {NAME.path: METADATA, f"{NAME.path}/config": {"max_batch_size": 4}}
    info = await questions.model_info(NAME)
    assert info == models.ModelInfo((models.TensorSpec("a", "FP32", (-1,)),), (), 4)
    assert predictor.asked == ["GET /v2/models/m%2Fx/versions/3", "GET /v2/models/m%2Fx/versions/3/config"]


@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_a_server_without_configurations_tells_of_no_largest_batch(
    predictor: Predictor, questions: Questions, status: int
) -> None:
    predictor.answers = {NAME.path: METADATA, f"{NAME.path}/config": status}
    assert (await questions.model_info(NAME)).max_batch_size is None


@pytest.mark.parametrize("status", [301, 403, 429, 500, 503])
async def test_a_configuration_that_cannot_be_had_now_is_a_failure(
    predictor: Predictor, questions: Questions, status: int
) -> None:
    predictor.answers = {NAME.path: METADATA, f"{NAME.path}/config": status}
    with pytest.raises(errors.UpstreamStatus) as caught:
        await questions.model_info(NAME)
    assert caught.value.status == status


async def test_a_model_that_the_predictor_does_not_have_is_its_own_answer(questions: Questions) -> None:
    with pytest.raises(errors.UpstreamStatus) as caught:
        await questions.model_info(NAME)
    assert (caught.value.status, caught.value.body) == (404, b'{"error":"no"}')
    assert caught.value.headers == (("Content-Type", "application/json"),)


@pytest.mark.parametrize("body", [b"", b"not json", b"[" * 100_000, b'{"x":"' + bytes(5 * 1024 * 1024)])
async def test_an_answer_that_is_none_is_broken(predictor: Predictor, questions: Questions, body: bytes) -> None:
    predictor.answers = {NAME.path: body}
    with pytest.raises(errors.UpstreamBroken):
        await questions.model_info(NAME)


async def test_a_predictor_that_is_not_there_is_unreachable(closed_port: int) -> None:
    questions = model_questions.HttpQuestions(f"http://127.0.0.1:{closed_port}")
    with pytest.raises(errors.UpstreamUnreachable):
        await questions.model_info(NAME)
    await questions.close()


@pytest.mark.looptime
async def test_a_predictor_that_hangs_is_not_waited_for(
    predictor: Predictor, questions: Questions, looptime: float
) -> None:
    predictor.hangs.clear()
    with pytest.raises(errors.UpstreamTimeout):
        await questions.model_info(NAME)
    assert looptime == pytest.approx(model_questions.TIMEOUT, abs=0.1)


@pytest.mark.parametrize("name", ["a b", "a?b", "a#b", "a\r\nb", "\x00"])
async def test_a_name_that_no_url_can_have_is_never_asked_for(
    predictor: Predictor, questions: Questions, name: str
) -> None:
    with pytest.raises(errors.BadRequest):
        await questions.model_info(models.ModelName(name))
    assert predictor.asked == []


@pytest.mark.parametrize(("status", "ready"), [(200, True), (400, False), (404, False), (503, False)])
async def test_readiness_of_a_model_is_its_status(
    predictor: Predictor, questions: Questions, status: int, ready: bool
) -> None:
    predictor.answers = {f"{NAME.path}/ready": status}
    assert await questions.model_ready(NAME) is ready


async def test_readiness_that_the_predictor_cannot_tell_is_a_failure(
    predictor: Predictor, questions: Questions
) -> None:
    predictor.answers = {f"{NAME.path}/ready": 500}
    with pytest.raises(errors.UpstreamStatus):
        await questions.model_ready(NAME)


async def test_models_are_those_of_the_repository_index(predictor: Predictor, questions: Questions) -> None:
    predictor.answers = {"/v2/repository/index": [{"name": "a", "version": "1", "state": "READY"}]}
    assert await questions.models() == ["a"]
    assert predictor.asked == ["POST /v2/repository/index"]


async def test_servers_that_only_read_a_declared_json_body_tell_of_their_models(
    predictor: Predictor, questions: Questions
) -> None:
    """MLServer answers a body of another type with 422."""
    predictor.json_only = True
    predictor.answers = {"/v2/repository/index": [{"name": "a", "state": "READY"}]}
    assert await questions.models() == ["a"]


async def test_models_are_those_that_kserve_lists_where_there_is_no_index(
    predictor: Predictor, questions: Questions
) -> None:
    predictor.answers = {"/v2/models": json.loads('{"models":["a","b"]}')}
    assert await questions.models() == ["a", "b"]


async def test_models_are_unknown_while_the_predictor_fails(predictor: Predictor, questions: Questions) -> None:
    predictor.answers = {"/v2/repository/index": 500}
    with pytest.raises(errors.UpstreamStatus):
        await questions.models()


# --- by a predictor that ends connections, or answers oddly --------------------------------------------------------

METADATA_ANSWER = http(json.dumps(METADATA).encode())
CONFIG_ANSWER = http(b'{"max_batch_size":4}')
NOT_FOUND = b"404 Not Found"


@pytest.fixture
async def asking(wire: Wire) -> AsyncIterator[Questions]:
    made = Questions(f"http://127.0.0.1:{wire.port}")
    yield made
    await made.close()


@pytest.mark.both_loops
@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_question_whose_kept_connection_was_just_ended_is_asked_once_more(
    wire: Wire, asking: Questions, end: str
) -> None:
    def end_the_second(peer: Peer) -> None:
        if peer in wire.requests:
            getattr(peer.transport, end)()

    wire.on_head = end_the_second
    wire.answers = [METADATA_ANSWER, None, CONFIG_ANSWER]
    assert (await asking.model_info(NAME)).max_batch_size == 4
    assert len(wire.peers) == 2


@pytest.mark.parametrize(("question", "tries"), [("model_ready", 2), ("models", 1)])
async def test_a_question_is_asked_no_more_than_twice_and_a_post_once(
    wire: Wire, asking: Questions, question: str, tries: int
) -> None:
    wire.on_head = lambda peer: peer.transport.close()
    with pytest.raises(errors.UpstreamClosed):
        await (asking.models() if question == "models" else asking.model_ready(NAME))
    assert len(wire.peers) == tries


@pytest.mark.looptime
async def test_asking_once_more_does_not_prolong_a_question(wire: Wire, asking: Questions, looptime: float) -> None:
    wire.answers = [None, None]
    asked = asyncio.ensure_future(asking.model_ready(NAME))
    await wire.received(1)
    await asyncio.sleep(model_questions.TIMEOUT - 1)
    wire.peers[0].transport.close()
    with pytest.raises(errors.UpstreamTimeout):
        await asked
    assert looptime == pytest.approx(model_questions.TIMEOUT, abs=0.1)


async def test_heads_that_end_in_a_bare_line_feed_are_read(wire: Wire, asking: Questions) -> None:
    wire.answers = [METADATA_ANSWER.replace(b"\r\n", b"\n"), CONFIG_ANSWER.replace(b"\r\n", b"\n")]
    assert (await asking.model_info(NAME)).max_batch_size == 4


async def test_of_a_refusal_the_status_counts_however_its_body_is_coded(wire: Wire, asking: Questions) -> None:
    refusal = http(gzip.compress(b"no"), NOT_FOUND, b"Content-Encoding: gzip\r\n")
    wire.answers = [METADATA_ANSWER, refusal]
    assert (await asking.model_info(NAME)).max_batch_size is None


async def test_an_answer_that_was_coded_unasked_is_broken(wire: Wire, asking: Questions) -> None:
    wire.answers = [http(gzip.compress(b"{}"), headers=b"Content-Encoding: gzip\r\n")]
    with pytest.raises(errors.UpstreamBroken):
        await asking.model_info(NAME)


async def test_a_bug_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    bugs: list[None] = []
    asking = Questions(f"http://{'x' * 64}:1", on_bug=lambda: bugs.append(None))  # no name that can be looked up
    with pytest.raises(errors.UpstreamBroken):
        await asking.model_ready(NAME)
    await asking.close()
    assert bugs == [None]
