"""Many callers at once: everybody gets the answer to its own question, and batches form where they can."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import uuid
from collections.abc import AsyncIterator

import aiohttp
import grpc
import numpy as np
import pytest
import tritonclient.http
from tritonclient.grpc import service_pb2_grpc

from e2e.triton import clients, grpc_requests, http_requests, servers
from e2e.triton import sidecar as sidecar_

CALLERS, QUESTIONS = 16, 8
ASKS = (clients.ask_identity, clients.ask_add_sub, clients.ask_strings, clients.ask_scaled)


@pytest.fixture
async def connected(target: clients.Target) -> AsyncIterator[list[clients.Client]]:
    """The two clients that many can share, both connected to the target."""
    async with clients.connected("http.aio", target, CALLERS) as http, clients.connected("grpc.aio", target) as rpc:
        yield [http, rpc]


@pytest.mark.parametrize("asks", ASKS)
async def test_each_of_many_gets_its_own_answer(connected: list[clients.Client], asks: clients.Asks) -> None:
    await clients.busy(asks, connected, CALLERS, QUESTIONS)


async def test_callers_of_different_models_do_not_meet(connected: list[clients.Client]) -> None:
    async with asyncio.TaskGroup() as group:
        for asks in ASKS:
            group.create_task(clients.busy(asks, connected, 4, QUESTIONS))


def test_each_of_many_threads_gets_its_own_answer(target: clients.Target) -> None:
    """The synchronous client, one to a thread as it has to be."""

    def ask(number: int) -> None:
        with tritonclient.http.InferenceServerClient(target.http) as client:
            for question in range(QUESTIONS):
                rows = np.array([[number, question]], np.float32)
                tensor = tritonclient.http.InferInput("rows", [1, 2], "FP32").set_data_from_numpy(rows)
                answer = client.infer("identity", [tensor], request_id=f"{number} {question}")
                np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)
                assert answer.get_response()["id"] == f"{number} {question}"

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(ask, range(CALLERS)))


class TestBatches:
    """Of the sidecar alone; Triton's own count of the model's runs bears witness."""

    @pytest.fixture(params=["http.aio", "grpc.aio"])
    async def client(self, request: pytest.FixtureRequest, front: sidecar_.Sidecar) -> AsyncIterator[clients.Client]:
        async with clients.connected(request.param, front, 32) as connected:
            yield connected

    async def test_requests_that_come_together_are_one_call(
        self, client: clients.Client, front: sidecar_.Sidecar, triton: servers.Server
    ) -> None:
        changes, before = sidecar_.Changes(front), await _runs(triton, "slow")
        await clients.busy(_ask_slow, [client], 32, 5)
        rows, runs = (after - earlier for after, earlier in zip(await _runs(triton, "slow"), before, strict=True))
        assert rows == 160
        assert changes.of("carpool_batch_size_sum") == 160
        assert changes.of("carpool_batches_total") == changes.of("carpool_batch_size_count") == runs
        assert changes.mean_batch > 8

    async def test_the_models_own_limit_holds_even_below_the_sidecars(
        self, client: clients.Client, front: sidecar_.Sidecar
    ) -> None:
        changes = sidecar_.Changes(front)
        sizes: list[int] = []

        async def ask(client: clients.Client, chance: random.Random) -> None:
            rows = np.float32([[chance.random()]])
            answer = await client.infer("small", {"rows": rows})
            np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)
            sizes.append(int(answer.as_numpy("together")[0, 0]))

        await clients.busy(ask, [client], 32, 5)
        assert max(sizes) == 4
        assert changes.of('carpool_batch_size_bucket{le="4.0"}') == changes.of("carpool_batch_size_count")

    async def test_a_request_larger_than_the_model_takes_is_split_and_rejoined(
        self, client: clients.Client, triton: servers.Server
    ) -> None:
        rows = np.arange(22, dtype=np.float32).reshape(11, 2)
        answer = await client.infer("small", {"rows": rows}, request_id="large")
        np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)
        assert answer.as_numpy("together").max() <= 4
        async with clients.connected("grpc.aio", triton) as direct:
            with pytest.raises(clients.Refused, match="batch-size must be <= 4"):
                await direct.infer("small", {"rows": rows})

    async def test_strings_are_split_and_rejoined_as_well(self, client: clients.Client) -> None:
        text = [[b"x" * number] for number in range(70)]
        answer = await client.infer("strings", {"text": np.array(text, np.object_)})
        assert answer.as_numpy("upper").tolist() == [[each.upper()] for (each,) in text]


async def test_json_and_binary_callers_share_batches(front: sidecar_.Sidecar, triton: servers.Server) -> None:
    async with clients.connected("http.aio", front, 32) as client:
        changes, before = sidecar_.Changes(front), await _runs(triton, "slow")

        async def ask(client: clients.Client, chance: random.Random) -> None:
            rows = np.float32([[chance.random(), 1]])
            tensor = client.input("rows", rows, binary_data=chance.random() < 0.5)
            outputs = [client.output("rows_out", binary_data=chance.random() < 0.5)]
            headers = {"Content-Type": chance.choice(["application/json", "application/octet-stream"])}
            answer = await client("infer", "slow", [tensor], outputs=outputs, headers=headers)
            np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)

        await clients.busy(ask, [client], 32, 5)
        rows, runs = (after - earlier for after, earlier in zip(await _runs(triton, "slow"), before, strict=True))
        assert rows == 160
        # 32 callers in one queue: were there one for each of the four forms, a run would have 8 rows at most.
        assert rows / runs > 10
        assert changes.mean_batch > 10


async def test_the_answer_tells_its_batch(front: sidecar_.Sidecar) -> None:
    request = http_requests.ask("", "identity", http_requests.rows())
    url = f"http://{front.http}/v2/models/identity/infer"
    async with aiohttp.ClientSession() as session, session.post(url, data=request.body) as answer:
        assert uuid.UUID(answer.headers["carpool-batch-id"])
    async with grpc.aio.insecure_channel(front.grpc) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(grpc_requests.RIGHT[0].message)
        await call
        assert uuid.UUID(dict(await call.trailing_metadata())["carpool-batch-id"])


async def _ask_slow(client: clients.Client, chance: random.Random) -> None:
    rows = np.float32([[chance.random()]])
    answer = await client.infer("slow", {"rows": rows}, request_id=str(chance.random()))
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)


async def _runs(triton: servers.Server, model: str) -> tuple[int, int]:
    """Rows and runs of a model so far, as Triton counts them."""
    async with clients.connected("http.aio", triton) as client:
        (statistics,) = (await client("get_inference_statistics", model))["model_stats"]
        return statistics["inference_count"], statistics["execution_count"]
