"""MLServer as a second server of the v2 protocol: it tells less of its models, and knows no binary data over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from e2e.triton import clients, servers
from e2e.triton import sidecar as sidecar_

A, B = np.float32([[1, 2], [3, 4]]), np.float32([[10, 20], [30, 40]])


@pytest.fixture(scope="module")
def before(mlserver: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sidecar_.Sidecar]:
    """The sidecar in front of MLServer."""
    options = ("--policy", "window", "--max-latency", "20", "--retry-budget", "100")
    with sidecar_.running(tmp_path_factory.mktemp("sidecar"), mlserver, *options) as started:
        yield started


@pytest.fixture(params=["direct", "through the sidecar"])
def peer(request: pytest.FixtureRequest) -> clients.Target:
    fixture = "mlserver" if request.param == "direct" else "before"
    return request.getfixturevalue(fixture)  # type: ignore[no-any-return]


@pytest.fixture(params=["http.aio", "grpc.aio"])
async def client(request: pytest.FixtureRequest, peer: clients.Target) -> AsyncIterator[clients.Client]:
    async with clients.connected(request.param, peer, 16) as connected:
        yield connected


async def _infer(client: clients.Client, model: str, arrays: dict[str, np.ndarray], output: str, **options: Any) -> Any:
    """Over HTTP as JSON, and called that, which the client does not do by itself."""
    if not client.is_http:
        return await client.infer(model, arrays, **options)
    inputs = [client.input(name, array, binary_data=False) for name, array in arrays.items()]
    outputs = [client.output(output, binary_data=False)]
    headers = {"Content-Type": "application/json"}
    return await client("infer", model, inputs, outputs=outputs, headers=headers, **options)


async def _identity(client: clients.Client, rows: np.ndarray, **options: Any) -> Any:
    answer = await _infer(client, "identity", {"rows": rows}, "rows_out", **options)
    return answer.as_numpy("rows_out")


async def test_it_is_live_and_tells_its_models(client: clients.Client) -> None:
    assert await client("is_server_live")
    assert await client("is_model_ready", "identity")
    metadata = await client("get_model_metadata", "add")
    inputs = metadata["inputs"] if client.is_http else metadata.inputs
    assert [each["name"] if client.is_http else each.name for each in inputs] == ["a", "b"]


async def test_rows_come_back(client: clients.Client) -> None:
    np.testing.assert_array_equal(await _identity(client, A), A)


async def test_two_inputs(client: clients.Client) -> None:
    answer = await _infer(client, "add", {"a": A, "b": B}, "sum")
    np.testing.assert_array_equal(answer.as_numpy("sum"), A + B)


async def test_the_requests_id_comes_back(client: clients.Client) -> None:
    answer = await _infer(client, "identity", {"rows": A}, "rows_out", request_id="x-7")
    response = answer.get_response()
    assert (response["id"] if client.is_http else response.id) == "x-7"


async def test_each_of_many_gets_its_own_answer(client: clients.Client) -> None:
    async def ask(number: int) -> None:
        rows = np.float32([[number, 0.1]] * (1 + number % 3))
        for _ in range(5):
            np.testing.assert_array_equal(await _identity(client, rows, request_id=str(number)), rows)

    await asyncio.gather(*map(ask, range(16)))


async def test_only_the_caller_of_the_marked_row_fails(client: clients.Client) -> None:
    async def ask(number: int) -> bool:
        with contextlib.suppress(clients.Refused):
            rows = np.float32([[666 if number == 5 else number]])
            np.testing.assert_array_equal(await _identity(client, rows), rows)
            return True
        return False

    answered = await asyncio.gather(*map(ask, range(16)))
    assert [number for number, fine in enumerate(answered) if not fine] == [5]


async def test_an_unknown_model_is_an_error(client: clients.Client) -> None:
    with pytest.raises(clients.Refused, match=r"Model nobody .*not found"):
        await _infer(client, "nobody", {"rows": A}, "rows_out")


@pytest.mark.parametrize("kind", ["http.aio", "grpc.aio"])
async def test_batches_form(before: sidecar_.Sidecar, kind: str) -> None:
    async with clients.connected(kind, before, 16) as client:
        changes = sidecar_.Changes(before)
        await test_each_of_many_gets_its_own_answer(client)
    assert changes.of("carpool_batch_size_sum") == 5 * sum(1 + number % 3 for number in range(16))
    assert changes.mean_batch > 4
