"""The fake v2 server is itself right: tritonclient's clients get from it what numpy says, and errors as errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.fakes import fake_v2, v2_json

A = np.array([[1, 2], [3, 4]], np.float32)
B = np.array([[10, 20], [30, 40]], np.float32)
Sends = Callable[..., Any]


@pytest.fixture
async def fake() -> AsyncIterator[fake_v2.FakeV2]:
    async with fake_v2.running() as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
async def send(fake: fake_v2.FakeV2, request: pytest.FixtureRequest) -> AsyncIterator[Sends]:
    """Sends tensors with tritonclient and gives its answer."""
    library = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    client = library.aio.InferenceServerClient(getattr(fake, request.param))

    async def sends(model: str, tensors: dict[str, tuple[str, np.ndarray]], **options: Any) -> Any:
        inputs = [
            library.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)
            for name, (datatype, array) in tensors.items()
        ]
        return await client.infer(model, inputs, **options)

    yield sends
    await client.close()


async def post(fake: fake_v2.FakeV2, model: str, body: object, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://{fake.http}/v2/models/{model}/infer"
    async with aiohttp.ClientSession() as client, client.post(url, data=data, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def test_tensors_go_through_the_model(send: Sends, fake: fake_v2.FakeV2) -> None:
    answer = await send("add_sub", {"a": ("FP32", A), "b": ("FP32", B)})
    np.testing.assert_array_equal(answer.as_numpy("sum"), A + B)
    np.testing.assert_array_equal(answer.as_numpy("difference"), A - B)
    assert fake.batches == [2]


async def test_strings_may_be_any_bytes(send: Sends) -> None:
    text = np.array([[b"spam"], [b"\xff\x00e"], [b""]], np.object_)
    answer = await send("strings", {"text": ("BYTES", text)})
    assert answer.as_numpy("upper").tolist() == [[b"SPAM"], [b"\xff\x00E"], [b""]]
    assert answer.as_numpy("length").tolist() == [[4], [3], [0]]


@pytest.mark.parametrize(
    ("model", "tensors", "words"),
    [
        ("nobody", {"rows": ("FP32", A)}, "Request for unknown model: 'nobody' is not found"),
        ("identity", {"other": ("FP32", A)}, "unexpected inference input 'other'"),
        ("identity", {"rows": ("INT32", A.astype(np.int32))}, "data-type is 'INT32'"),
        ("identity", {"rows": ("FP32", A[0])}, "unexpected shape"),
        ("identity", {"rows": ("FP32", np.zeros((33, 1), np.float32))}, "batch-size must be <= 32"),
        ("add_sub", {"a": ("FP32", A)}, "expected 2 inputs but got 1"),
        ("marked", {"rows": ("FP32", A + 665)}, "a row is marked"),
    ],
)
async def test_what_is_wrong_is_refused_in_words(
    send: Sends, fake: fake_v2.FakeV2, model: str, tensors: dict[str, tuple[str, np.ndarray]], words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words):
        await send(model, tensors)
    assert fake.batches == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (100000.0, "100000.0"), (1e20, "100000000000000000000.0"),
        (1e21, "1e21"), (1.5e300, "1.5e300"), (0.1, "0.1"), (-2.5, "-2.5"), (1e-6, "0.000001"), (1e-7, "1e-7"),
        (5e-324, "5e-324"), (float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_triton_writes_them(value: float, text: str) -> None:
    assert v2_json.number(value) == text


async def test_json_in_json_out_with_its_id(fake: fake_v2.FakeV2) -> None:
    rows = {"name": "rows", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 0.1]]}
    output = {"name": "rows_out", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 0.10000000149011612]}
    answer = {"id": "é", "model_name": "identity", "model_version": "1", "outputs": [output]}
    assert await post(fake, "identity", {"id": "é", "inputs": [rows]}) == (200, answer)


@pytest.mark.parametrize("data", [[1], [1, None], [1, "2"], [True, 2], {"0": 1}, None])
async def test_what_triton_cannot_parse_is_a_500(fake: fake_v2.FakeV2, data: object) -> None:
    rows = {"name": "rows", "shape": [1, 2], "datatype": "FP32", "data": data}
    status, answer = await post(fake, "identity", {"inputs": [rows]})
    assert (status, list(answer)) == (500, ["error"])


async def test_it_keeps_what_it_was_asked(fake: fake_v2.FakeV2) -> None:
    await post(fake, "identity", b"{", spam="eggs")
    (received,) = fake.received
    assert (received.path, received.headers["spam"], received.body) == ("/v2/models/identity/infer", "eggs", b"{")


async def test_inferences_wait_for_the_gate(send: Sends, fake: fake_v2.FakeV2) -> None:
    fake.gate.clear()
    asked = asyncio.ensure_future(send("identity", {"rows": ("FP32", A)}))
    await fake.at_work(1)
    assert not asked.done()
    fake.gate.set()
    assert (await asked).as_numpy("rows_out").shape == A.shape


async def test_it_can_go_away_and_come_back(fake: fake_v2.FakeV2) -> None:
    ports = fake.http_port, fake.grpc_port
    await fake.stop()
    with pytest.raises(aiohttp.ClientError):
        await post(fake, "identity", {})
    await fake.start()
    assert (fake.http_port, fake.grpc_port) == ports
    async with tritonclient.grpc.aio.InferenceServerClient(fake.grpc) as client:
        assert await client.is_server_live()
    assert (await post(fake, "identity", {}))[0] == 500
