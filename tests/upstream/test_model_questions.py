"""Questions about models to a predictor on a loopback socket: which are asked, and what failures become."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.upstream import model_questions

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
