"""The fake v2 server, which `make test` uses in place of Triton, answers as Triton does: what is right byte for byte,
what is wrong with the same status. An error's words, and whether it is called JSON or plain text, may differ.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from e2e.triton import grpc_requests, http_requests, servers
from tests.fakes import fake_v2

_HEADERS = ("content-type", http_requests.JSON_SIZE.lower())


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
async def fake() -> AsyncIterator[fake_v2.FakeV2]:
    async with fake_v2.running() as running:
        yield running


async def post(host: str, asked: http_requests.InferRequest) -> Answer:
    url = f"http://{host}/v2/models/{asked.model}/infer"
    headers = {"Content-Type": "application/json", **asked.headers}
    async with aiohttp.ClientSession() as client, client.post(url, data=asked.body, headers=headers) as answer:
        told = {name.lower(): value for name, value in answer.headers.items() if name.lower() in _HEADERS}
        return Answer(answer.status, told, await answer.read())


@pytest.mark.parametrize("asked", http_requests.RIGHT, ids=str)
async def test_right_questions_get_the_same_answers(
    triton: servers.Server, fake: fake_v2.FakeV2, asked: http_requests.InferRequest
) -> None:
    real = await post(triton.http, asked)
    assert real.status == 200
    assert await post(fake.http, asked) == real


@pytest.mark.parametrize("asked", http_requests.ROUNDED, ids=str)
async def test_numbers_of_many_digits_are_the_same_numbers(
    triton: servers.Server, fake: fake_v2.FakeV2, asked: http_requests.InferRequest
) -> None:
    real, ours = [json.loads((await post(host, asked)).body)["outputs"][0] for host in (triton.http, fake.http)]
    np.testing.assert_array_equal(np.float32(ours.pop("data")), np.float32(real.pop("data")))
    assert ours == real


@pytest.mark.parametrize("asked", http_requests.WRONG, ids=str)
async def test_wrong_questions_get_the_same_status(
    triton: servers.Server, fake: fake_v2.FakeV2, asked: http_requests.InferRequest
) -> None:
    real, ours = await post(triton.http, asked), await post(fake.http, asked)
    assert real.status >= 400
    assert ours.status == real.status
    assert [list(json.loads(each.body)) for each in (real, ours)] == [["error"], ["error"]]


@pytest.mark.parametrize(
    "path",
    ["/v2/models/add_sub", "/v2/models/unbatched", "/v2/models/nobody", "/v2/models/identity/versions/1",
     "/v2/models/identity/versions/9", "/v2/models/nobody/ready", "/v2/health/live", "/nobody"],
)  # fmt: skip
async def test_metadata_and_health_are_the_same(triton: servers.Server, fake: fake_v2.FakeV2, path: str) -> None:
    async with aiohttp.ClientSession() as client:
        answers = []
        for host in (triton.http, fake.http):
            async with client.get(f"http://{host}{path}") as answer:
                answers.append((answer.status, await answer.read()))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("model", ["identity", "strings", "unbatched", "small"])
async def test_what_the_fake_tells_of_a_configuration_is_true(
    triton: servers.Server, fake: fake_v2.FakeV2, model: str
) -> None:
    async with aiohttp.ClientSession() as client:
        found = []
        for host in (triton.http, fake.http):
            async with client.get(f"http://{host}/v2/models/{model}/config") as answer:
                found.append(await answer.json())
    real, ours = found
    assert _is_part(ours, real)


@pytest.mark.parametrize("asked", [*grpc_requests.RIGHT, *grpc_requests.WRONG], ids=str)
async def test_grpc_gets_the_same_answers_and_codes(
    triton: servers.Server, fake: fake_v2.FakeV2, asked: grpc_requests.InferRequest
) -> None:
    assert await _infer(fake.grpc, asked.message) == await _infer(triton.grpc, asked.message)


@pytest.mark.parametrize("asked", grpc_requests.RIGHT, ids=str)
async def test_what_is_right_over_grpc_is_right(triton: servers.Server, asked: grpc_requests.InferRequest) -> None:
    assert isinstance(await _infer(triton.grpc, asked.message), pb.ModelInferResponse)


@pytest.mark.parametrize("asked", grpc_requests.WRONG, ids=str)
async def test_what_is_wrong_over_grpc_is_wrong(triton: servers.Server, asked: grpc_requests.InferRequest) -> None:
    assert isinstance(await _infer(triton.grpc, asked.message), grpc.StatusCode)


async def _infer(host: str, asked: Any) -> Any:
    """The answer, or the code of the error."""
    async with grpc.aio.insecure_channel(host) as channel:
        try:
            return await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked, timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code()


def _is_part(some: Any, whole: Any) -> bool:
    """Whether all that is in one JSON value is in another."""
    if isinstance(some, dict):
        return all(name in whole and _is_part(value, whole[name]) for name, value in some.items())
    if isinstance(some, list):
        return len(some) == len(whole) and all(map(_is_part, some, whole))
    return bool(some == whole)
