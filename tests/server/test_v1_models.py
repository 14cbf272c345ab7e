"""Questions of v1 clients about models, answered by what a v2 predictor says."""

from __future__ import annotations

import json

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.server import v1_models


class Questions:
    """A predictor with a model that is ready, and one that is not."""

    def __init__(self) -> None:
        self.asked: list[models.ModelName] = []
        self.error: errors.CarpoolError | None = None

    async def model_ready(self, name: models.ModelName) -> bool:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        return name.name == "ready"

    async def models(self) -> list[str]:
        return ["ready", "b c"]


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/v1/models", 200, {"models": ["ready", "b c"]}),
        ("/v1/models/ready", 200, {"name": "ready", "ready": True}),
        ("/v1/models/ready/versions/2?x=1", 200, {"name": "ready", "ready": True}),
        ("http://host/v1/models/b%20c", 503, {"name": "b c", "ready": False}),
    ],
)
async def test_readiness_is_told_in_v1s_words(target: str, status: int, body: object) -> None:
    answer = await v1_models.V1Models(Questions()).answer("GET", target)
    assert answer is not None
    assert (answer.status, json.loads(answer.body)) == (status, body)


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/v1/models/m"), ("GET", "/v2/models"), ("GET", "/v1/models/m:predict"), ("GET", "/v1/modelsx")],
)
async def test_nothing_else_is_answered(method: str, target: str) -> None:
    assert await v1_models.V1Models(Questions()).answer(method, target) is None


@pytest.mark.parametrize(("is_http", "name"), [(True, ("b%20c", "1%2F2")), (False, ("b c", "1/2"))])
async def test_the_predictor_is_asked_by_names_as_its_protocol_has_them(is_http: bool, name: tuple[str, str]) -> None:
    questions = Questions()
    await v1_models.V1Models(questions, is_http).answer("GET", "/v1/models/b%20c/versions/1%2F2")
    assert questions.asked == [models.ModelName(*name)]


async def test_a_predictor_that_cannot_be_asked_is_told_as_such() -> None:
    questions = Questions()
    questions.error = errors.UpstreamUnreachable()
    answer = await v1_models.V1Models(questions).answer("GET", "/v1/models/m")
    assert answer is not None
    assert (answer.status, json.loads(answer.body)) == (502, {"error": "the predictor cannot be reached"})
