"""Requests that must not be batched reach Triton unchanged, and are counted with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import aiohttp
import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, shared_memory

from e2e.triton import clients
from e2e.triton import sidecar as sidecar_


@contextlib.contextmanager
def counted(front: sidecar_.Sidecar, reason: str, requests: int) -> Iterator[None]:
    """Asserts that so many requests pass through for this reason meanwhile."""
    changes = sidecar_.Changes(front)
    yield
    assert changes.of(f'carpool_unbatched_total{{reason="{reason}"}}') == requests
    assert changes.of("carpool_batches_total") == 0


class TestSharedMemory:
    """Tensors that stay where client and server both see them: a message has no rows in it then."""

    @contextlib.asynccontextmanager
    async def region(self, client: clients.Client, size: int) -> AsyncIterator[tuple[str, object]]:
        name = f"carpool-{uuid.uuid4()}"
        handle = shared_memory.create_shared_memory_region(name, f"/{name}", size)
        try:
            await client("register_system_shared_memory", name, f"/{name}", size)
            yield name, handle
            await self.unregister(client, name)
        finally:
            shared_memory.destroy_shared_memory_region(handle)

    async def unregister(self, client: clients.Client, name: str) -> None:
        """Triton answers a request before it lets go of the regions that it named."""
        async with asyncio.timeout(10):
            while True:
                try:
                    await client("unregister_system_shared_memory", name)
                except InferenceServerException as error:
                    if "currently in use" not in str(error):
                        raise
                    await asyncio.sleep(0.01)
                else:
                    return

    async def test_inputs_and_outputs_in_shared_memory(self, client: clients.Client) -> None:
        rows = np.float32([[1, 2], [3, 4]])
        async with self.region(client, 64) as (name, handle):
            shared_memory.set_shared_memory_region(handle, [rows])
            tensor, output = client.empty_input("rows", [2, 2], "FP32"), client.output("rows_out")
            tensor.set_shared_memory(name, 16)
            output.set_shared_memory(name, 16, offset=32)
            await client("infer", "identity", [tensor], outputs=[output])
            np.testing.assert_array_equal(
                shared_memory.get_contents_as_numpy(handle, np.float32, [2, 2], offset=32), rows
            )

    @pytest.mark.parametrize("kind", clients.KINDS)
    async def test_they_are_counted(self, front: sidecar_.Sidecar, kind: str) -> None:
        async with clients.connected(kind, front) as client:
            with counted(front, "shared_memory", 1):
                await self.test_inputs_and_outputs_in_shared_memory(client)


class TestSequences:
    """Requests that belong together, in their order, with what went before kept by the server."""

    async def test_two_sequences_do_not_meet(self, client: clients.Client) -> None:
        first, second = (uuid.uuid4().int % 2**32 + 1 for _ in range(2))
        sums: dict[int, list[float]] = {first: [], second: []}
        for step in range(3):
            for sequence, value in ((first, 1.0), (second, 10.0)):
                answer = await client.infer(
                    "sequence", {"rows": np.float32([[value]])},
                    sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 2,
                )  # fmt: skip
                sums[sequence].append(float(answer.as_numpy("sum")[0, 0]))
        assert sums == {first: [1, 2, 3], second: [10, 20, 30]}

    @pytest.mark.parametrize("kind", clients.KINDS)
    async def test_they_are_counted(self, front: sidecar_.Sidecar, kind: str) -> None:
        async with clients.connected(kind, front) as client:
            with counted(front, "sequence", 6):
                await self.test_two_sequences_do_not_meet(client)

    @pytest.mark.parametrize("kind", clients.KINDS)
    async def test_a_sequence_on_a_model_without_sequences_is_one_all_the_same(
        self, front: sidecar_.Sidecar, kind: str
    ) -> None:
        async with clients.connected(kind, front) as client:
            with counted(front, "sequence", 1):
                answer = await client.infer("identity", {"rows": np.float32([[7]])}, sequence_id=7, sequence_start=True)
                assert answer.as_numpy("rows_out").tolist() == [[7]]


class TestDecoupled:
    """Models that answer as often as they like: by streams alone."""

    async def test_a_stream_gets_all_answers(self, target: clients.Target) -> None:
        async with clients.connected("grpc.aio", target) as client:
            assert await self._numbers(client, [3, 1]) == {"3": [1, 2, 3], "1": [1]}

    async def test_errors_on_a_stream_do_not_end_it(self, target: clients.Target) -> None:
        async def requests() -> AsyncIterator[dict[str, object]]:
            rows = client.input("rows", np.float32([[1]]))
            for model in ("nobody", "identity"):
                yield {"model_name": model, "inputs": [rows], "request_id": model}

        async with clients.connected("grpc.aio", target) as client:
            answers = [answer async for answer in client.raw.stream_infer(requests())]
        found = {result.get_response().id: str(error) for result, error in answers if result is not None}
        words = [str(error) for _, error in answers if error is not None]
        assert "identity" in found
        assert len(words) == 1
        assert "Request for unknown model: 'nobody' is not found" in words[0]

    @pytest.mark.parametrize(
        ("kind", "words"), [("http", "doesn't support models with decoupled"), ("grpc", "doesn't support models with")]
    )
    async def test_a_single_answer_is_refused_in_tritons_words(
        self, front: sidecar_.Sidecar, kind: str, words: str
    ) -> None:
        async with clients.connected(kind, front) as client:
            with counted(front, "decoupled", 1), pytest.raises(clients.Refused, match=words):
                await client.infer("decoupled", {"count": np.int32([[1]])})

    async def test_streams_are_counted(self, front: sidecar_.Sidecar) -> None:
        async with clients.connected("grpc.aio", front) as client:
            changes = sidecar_.Changes(front)
            await self._numbers(client, [2])
        assert changes.of('carpool_rpc_requests_total{code="OK",lane="passthrough"}') == 1

    async def _numbers(self, client: clients.Client, counts: list[int]) -> dict[str, list[int]]:
        """The numbers that come back on one stream, by request."""

        async def requests() -> AsyncIterator[dict[str, object]]:
            for count in counts:
                tensor = client.input("count", np.int32([[count]]))
                yield {"model_name": "decoupled", "inputs": [tensor], "request_id": str(count)}

        found: dict[str, list[int]] = {}
        async for result, error in client.raw.stream_infer(requests()):
            assert error is None
            found.setdefault(result.get_response().id, []).append(int(result.as_numpy("number")[0, 0]))
        return found


class TestNoRows:
    """Models whose first dimension is no batch, by their configuration or by what they answer."""

    async def test_a_model_without_a_batch_dimension(self, client: clients.Client) -> None:
        answer = await client.infer("unbatched", {"rows": np.float32([1, 2, 3])})
        assert answer.as_numpy("rows_out").tolist() == [1, 2, 3]

    @pytest.mark.parametrize("kind", clients.KINDS)
    async def test_it_is_counted(self, front: sidecar_.Sidecar, kind: str) -> None:
        async with clients.connected(kind, front) as client:
            with counted(front, "no_batch_dimension", 1):
                await self.test_a_model_without_a_batch_dimension(client)

    @pytest.mark.parametrize("kind", ["http.aio", "grpc.aio"])
    async def test_a_model_that_answers_one_row_for_all_is_found_out_before_anybody_is_wrong(
        self, target: clients.Target, kind: str
    ) -> None:
        async with clients.connected(kind, target, 16) as client:

            async def ask(number: int) -> None:
                rows = np.float32([[number, 1]] * (1 + number % 3))
                answer = await client.infer("total", {"rows": rows})
                assert answer.as_numpy("total").tolist() == [rows.sum(axis=0).tolist()]

            for _ in range(3):
                await asyncio.gather(*map(ask, range(16)))


async def test_other_services_of_the_same_port_pass_through(target: clients.Target) -> None:
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=10) == b"\x08\x01"  # SERVING


async def test_a_method_that_nobody_knows_is_refused_by_triton(target: clients.Target) -> None:
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        for _ in range(50):  # the channel behind the sidecar must not lose a status that comes early
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_triton_s_own_generate_extension_passes_through(target: clients.Target) -> None:
    url = f"http://{target.http}/v2/models/identity/generate"
    async with aiohttp.ClientSession() as client, client.post(url, json={"rows": 1}) as answer:
        assert await answer.json(content_type=None) == {"model_name": "identity", "model_version": "1", "rows_out": 1.0}
