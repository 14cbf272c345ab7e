"""The gRPC port as grpcio's own clients see it, with a fake predictor behind it."""

from __future__ import annotations

import asyncio
import dataclasses

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from tritonclient.grpc import service_pb2 as pb

from tests.server.grpc.site import INFER, Site, until

pytestmark = pytest.mark.both_loops


def asking(rows, model: str = "identity", typed: bool = False, **words) -> bytes:
    array = np.array(rows, "f4")
    request = pb.ModelInferRequest(model_name=model, **words)
    tensor = request.inputs.add(name="rows", datatype="FP32", shape=array.shape)
    if typed:
        tensor.contents.fp32_contents.extend(array.ravel().tolist())
    else:
        request.raw_input_contents.append(array.tobytes())
    return request.SerializeToString()


def answered(message: bytes) -> tuple[str, list]:
    response = pb.ModelInferResponse.FromString(message)
    shape = list(response.outputs[0].shape)
    return response.id, np.frombuffer(response.raw_output_contents[0], "f4").reshape(shape).tolist()


async def test_callers_share_a_batch_and_each_gets_its_own_rows_and_id(site: Site) -> None:
    calls = [site.infer(asking([[i, i + 0.5]], id=f"caller-{i}", typed=i % 2 == 0)) for i in range(8)]
    answers = await asyncio.gather(*calls)
    assert [answered(each) for each in answers] == [(f"caller-{i}", [[i, i + 0.5]]) for i in range(8)]
    assert sum(site.fake.batches) == 8
    assert len(site.fake.batches) <= 2
    assert site.counted("batched", "OK") == 8
    assert site.bodies.memory.held == 0
    assert site.life.active == 0


async def test_the_batch_is_named_in_the_trailing_metadata(site: Site) -> None:
    call = site.channel.unary_unary(INFER)(asking([[1.0]]))
    await call
    assert dict(await call.trailing_metadata())["carpool-batch-id"] == "batch-1"


async def test_a_model_without_a_batch_dimension_is_passed_through_and_counted(site: Site) -> None:
    message = await site.infer(asking([1.0, 2.0], model="unbatched", id="me"))
    assert answered(message) == ("me", [1.0, 2.0])
    assert 'carpool_unbatched_total{reason="no_batch_dimension"} 1.0' in site.counters.render().decode()
    assert site.counted("passthrough", "OK") == 1


async def test_a_request_larger_than_the_models_batch_is_split_and_rejoined(site: Site) -> None:
    rows = [[float(i)] for i in range(10)]
    message = await site.infer(asking(rows, model="small", id="large"))
    assert answered(message) == ("large", rows)
    assert max(site.fake.batches) <= 4


async def test_only_the_culprit_sees_the_predictors_refusal(site: Site) -> None:
    calls = [site.infer(asking([[float(value)]], model="marked")) for value in (1, 400, 2)]
    first, culprit, last = await asyncio.gather(*calls, return_exceptions=True)
    assert answered(first) == ("", [[1.0]])
    assert answered(last) == ("", [[2.0]])
    assert isinstance(culprit, grpc.aio.AioRpcError)
    assert culprit.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert culprit.details() == "a row is refused"


async def test_outputs_without_the_batchs_rows_are_answered_one_by_one_and_batched_no_more(site: Site) -> None:
    calls = [site.infer(asking([[float(i)]], model="total")) for i in range(3)]
    assert [answered(each)[1] for each in await asyncio.gather(*calls)] == [[[0.0]], [[1.0]], [[2.0]]]
    assert answered(await site.infer(asking([[7.0]], model="total"))) == ("", [[7.0]])
    assert 'carpool_unbatched_total{reason="outputs"} 1.0' in site.counters.render().decode()


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "not a valid ModelInferRequest"),
        (asking([[1.0]])[:-4] + b"", grpc.StatusCode.INVALID_ARGUMENT, "not a valid ModelInferRequest"),
    ],
)
async def test_a_bad_message_is_refused_with_what_is_wrong(site: Site, message, code, words) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.infer(message)
    assert refused.value.code() is code
    assert words in refused.value.details()
    assert site.fake.questions == []


async def test_other_methods_of_the_service_are_passed_through(site: Site) -> None:
    ready = site.channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
    assert pb.ServerReadyResponse.FromString(await ready(b"")).ready
    metadata = site.channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await metadata(pb.ModelMetadataRequest(name="none").SerializeToString())
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert site.counted("passthrough", "NOT_FOUND") == 1


async def test_a_stream_of_inferences_is_passed_through_message_by_message(site: Site) -> None:
    call = site.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
    for i in range(3):
        await call.write(asking([[float(i)]], id=str(i)))
        answer = pb.ModelStreamInferResponse.FromString(await call.read())
        assert answer.infer_response.id == str(i)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("batches", [[3], [1, 1, 1]], ids=["that fits", "over the predictor's limit"])
async def test_large_tensors_are_batched_and_sent_in_smaller_batches_if_that_is_too_large(site, batches) -> None:
    elements = 300_000 if len(batches) == 1 else 700_000  # its limit is 4 MiB
    await site.infer(asking([[0.0]]))
    site.fake.questions.clear()
    bounds = dataclasses.replace(site.limits, max_batch_size=3, max_latency=30)  # it leaves when all three are there
    site.driver.change_limits(bounds)
    rows = np.random.default_rng(1).random((3, elements), "f4")
    messages = await asyncio.gather(*[site.infer(asking(row[None], id=str(i))) for i, row in enumerate(rows)])
    for i, message in enumerate(messages):
        response = pb.ModelInferResponse.FromString(message)
        assert response.id == str(i)
        assert response.raw_output_contents[0] == rows[i].tobytes()
    assert site.fake.batches == batches


async def test_a_message_over_the_limit_is_refused_with_the_limit(site: Site) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="larger than the limit of 4194304 bytes") as refused:
        await site.infer(asking(np.zeros((1, 1_100_000), "f4")))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answered(await site.infer(asking([[1.0]]))) == ("", [[1.0]])


async def test_a_callers_deadline_and_its_leaving_do_not_disturb_its_batch_mates(site: Site) -> None:
    await site.infer(asking([[0.0]]))
    site.fake.gate.clear()
    hasty = asyncio.ensure_future(site.infer(asking([[1.0]]), timeout=0.2))
    leaving = site.channel.unary_unary(INFER)(asking([[2.0]]))
    patient = asyncio.ensure_future(site.infer(asking([[3.0]])))
    await until(lambda: site.fake.busy == 1)
    leaving.cancel()
    with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
        await hasty
    site.fake.gate.set()
    assert answered(await patient) == ("", [[3.0]])
    assert site.fake.batches[-1] == 3
    await until(lambda: site.life.active == 0)


async def test_key_headers_keep_callers_apart_and_reach_the_predictor(site: Site) -> None:
    await site.infer(asking([[0.0]]))
    callers = [
        site.infer(asking([[1.0]]), metadata=(("authorization", who), ("x-request-id", f"id-{who}")))
        for who in ("a", "a", "b")
    ]
    await asyncio.gather(*callers)
    sent = [call.headers for call in site.fake.received if call.path == INFER][1:]
    assert sorted((head["authorization"], head["x-request-id"]) for head in sent) == [("a", "id-a"), ("b", "id-b")]
    assert sorted(site.fake.batches[1:]) == [1, 2]


async def test_tritonclients_own_clients_are_served(site: Site) -> None:
    def infer_and_ask() -> tuple[list, bool, int]:
        with sync_client.InferenceServerClient(site.address) as client:
            value = sync_client.InferInput("text", [2, 1], "BYTES")
            value.set_data_from_numpy(np.array([["a"], ["b"]], object))
            wanted = [sync_client.InferRequestedOutput("upper")]
            result = client.infer("strings", [value], request_id="me", outputs=wanted, client_timeout=5)
            config = client.get_model_config("strings").config.max_batch_size
            return result.as_numpy("upper").tolist(), client.is_server_live(), config

    told, is_live, most = await asyncio.to_thread(infer_and_ask)
    assert [[each.decode() for each in row] for row in told] == [["A"], ["B"]]
    assert (is_live, most) == (True, 32)
    async with aio_client.InferenceServerClient(site.address) as client:
        value = aio_client.InferInput("rows", [1, 2], "FP32")
        value.set_data_from_numpy(np.array([[1, 2]], "f4"))
        results = await asyncio.gather(*[client.infer("identity", [value], request_id=str(i)) for i in range(5)])
        assert [result.get_response().id for result in results] == list("01234")
        compressed = await client.infer("identity", [value], compression_algorithm="gzip")
        assert compressed.as_numpy("rows_out").tolist() == [[1, 2]]
