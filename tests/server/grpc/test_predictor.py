"""Batches over gRPC: every way in which a call can end, told once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.upstream import grpc_predictor as predictor
from tests.fakes import fake_v2
from tests.server.grpc.peer import Peer

ECHO = "/any.Service/Echo"


async def echo(messages: AsyncIterator[bytes], context: Any) -> None:
    async for message in messages:
        await context.write(message)


@pytest.fixture
async def grpc_predictor(peer: Peer) -> AsyncIterator[predictor.GrpcPredictor]:
    peer.methods[ECHO] = echo
    made = predictor.GrpcPredictor(peer.address, 2.0, 1024 * 1024)
    yield made
    await made.close()


class Outcome:
    """Takes one reply."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.arrived = asyncio.Event()

    def __call__(self, reply: Any) -> None:
        self.replies.append(reply)
        self.arrived.set()


async def outcome_of(posting: predictor.GrpcPredictor, *body: bytes, headers=(), timeout: float = 5.0) -> Any:
    outcome = Outcome()
    posting.post(ECHO, headers, list(body), timeout, outcome)
    assert outcome.replies == []
    async with asyncio.timeout(10):
        await outcome.arrived.wait()
    assert len(outcome.replies) == 1
    return outcome.replies[0]


async def test_pieces_are_sent_as_one_message_and_the_answers_bytes_come_back(grpc_predictor) -> None:
    assert await outcome_of(grpc_predictor, b"ab", b"", b"cd") == interface.UpstreamResponse(b"abcd", {})


async def test_headers_are_sent_as_metadata_in_lower_case(grpc_predictor, peer: Peer) -> None:
    headers = (("X-Request-ID", "a, b"), ("Authorization", "me"), ("Content-Type", "text/plain"), ("tracestate", "ü"))
    await outcome_of(grpc_predictor, b"x", headers=headers)
    _, metadata, _ = peer.calls[0]
    assert metadata["x-request-id"] == "a, b"
    assert metadata["authorization"] == "me"
    assert "tracestate" not in metadata
    assert metadata.get("content-type") in (None, "application/grpc")


async def test_a_header_that_cannot_be_metadata_is_refused(grpc_predictor) -> None:
    with pytest.raises(errors.BadRequest, match="authorization"):
        grpc_predictor.post(ECHO, (("Authorization", "ü"),), [b""], 1.0, Outcome())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("CANCELLED", 499), ("UNKNOWN", 500), ("INVALID_ARGUMENT", 400), ("DEADLINE_EXCEEDED", 504), ("NOT_FOUND", 404),
        ("ALREADY_EXISTS", 409), ("PERMISSION_DENIED", 403), ("RESOURCE_EXHAUSTED", 429), ("FAILED_PRECONDITION", 400),
        ("ABORTED", 409), ("OUT_OF_RANGE", 400), ("UNIMPLEMENTED", 501), ("INTERNAL", 500), ("UNAVAILABLE", 503),
        ("DATA_LOSS", 500), ("UNAUTHENTICATED", 401),
    ],
)  # fmt: skip
async def test_the_predictors_status_is_told_with_its_words_and_metadata(grpc_predictor, peer, code, status) -> None:
    async def refuse(messages: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode[code], "no, ü", (("why", "so"), ("why-bin", b"\0")))

    peer.methods[ECHO] = refuse
    error = await outcome_of(grpc_predictor, b"x")
    assert type(error) is errors.UpstreamRpcStatus
    assert (error.code, error.details, error.status) == (grpc.StatusCode[code].value[0], "no, ü", status)
    assert json.loads(error.body) == {"error": "no, ü"}
    assert set(error.metadata) == {("why", "so"), ("why-bin", b"\0")}
    assert statuses.code(error) == error.code


async def test_our_own_deadline_is_a_predictor_timeout(grpc_predictor, peer: Peer) -> None:
    async def wait(messages: Any, context: Any) -> None:
        await asyncio.sleep(10)

    peer.methods[ECHO] = wait
    assert type(await outcome_of(grpc_predictor, b"x", timeout=0.1)) is errors.UpstreamTimeout


async def test_a_predictor_that_is_not_there_is_unreachable_and_found_when_it_comes(closed_port) -> None:
    posting = predictor.GrpcPredictor(f"127.0.0.1:{closed_port}", 2.0, 1024)
    peer = Peer()
    peer.port = closed_port
    peer.methods[ECHO] = echo
    assert type(await outcome_of(posting, b"x")) is errors.UpstreamUnreachable
    await peer.start()
    async with asyncio.timeout(5):
        while not isinstance(reply := await outcome_of(posting, b"x"), interface.UpstreamResponse):
            assert type(reply) is errors.UpstreamUnreachable
            await asyncio.sleep(0.05)
    await posting.close()
    await peer.stop()


async def test_a_connection_lost_in_the_middle_is_told_apart() -> None:
    async def close_soon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("000000040000000000"))  # SETTINGS
        await reader.read(100)
        await asyncio.sleep(0.1)
        writer.close()

    server = await asyncio.start_server(close_soon, "127.0.0.1", 0)
    posting = predictor.GrpcPredictor(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 2.0, 1024)
    assert type(await outcome_of(posting, b"x")) is errors.UpstreamClosed
    await posting.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("grace", [None, 0.1])
async def test_a_predictor_that_goes_away_with_calls_in_work_is_told_apart(grpc_predictor, peer: Peer, grace) -> None:
    async def go_away(messages: Any, context: Any) -> None:
        stopping.append(asyncio.create_task(peer.stop(grace)))
        await asyncio.sleep(10)

    stopping: list[asyncio.Task[None]] = []
    peer.methods[ECHO] = go_away
    assert type(await outcome_of(grpc_predictor, b"x")) is errors.UpstreamClosed
    await stopping[0]


async def test_an_answer_over_the_limit_is_broken_and_a_message_over_it_is_sent(grpc_predictor, peer: Peer) -> None:
    async def size(messages: AsyncIterator[bytes], context: Any) -> None:
        async for message in messages:
            await context.write(str(len(message)).encode())

    error = await outcome_of(grpc_predictor, bytes(1024 * 1024 + 1))
    assert type(error) is errors.UpstreamBroken, str(vars(error))
    assert "too large" in str(error)
    peer.methods[ECHO] = size
    assert await outcome_of(grpc_predictor, bytes(8_000_000)) == interface.UpstreamResponse(b"8000000", {})


async def test_a_cancelled_call_is_broken_off_without_a_reply(grpc_predictor, peer: Peer) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(messages: Any, context: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(10)
        finally:
            cancelled.set()

    peer.methods[ECHO] = wait
    outcome = Outcome()
    posted = grpc_predictor.post(ECHO, (), [b"x"], 5.0, outcome)
    await begun.wait()
    posted.cancel()
    async with asyncio.timeout(5):
        await cancelled.wait()
    posted.cancel()
    assert outcome.replies == []


async def test_calls_that_are_out_fail_when_the_predictor_is_closed(peer: Peer) -> None:
    posting = predictor.GrpcPredictor(peer.address, 2.0, 1024)
    outcome = Outcome()
    posting.post(ECHO, (), [b"x"], 5.0, outcome)
    await posting.close()
    assert [type(reply) for reply in outcome.replies] == [errors.UpstreamClosed]


async def test_a_call_that_fails_by_a_bug_is_answered_and_told(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    bugs: list[None] = []
    posting = predictor.GrpcPredictor(peer.address, 2.0, 1024, lambda: bugs.append(None))
    await posting.channel.close()  # calls on it raise what is no answer
    assert isinstance(await outcome_of(posting, b"x"), errors.UpstreamBroken)
    assert len(bugs) == 1
    assert "a reason that is a bug" in caplog.text
    await posting.close()


async def test_triton_tells_of_its_models(fake: fake_v2.FakeV2) -> None:
    asking = predictor.GrpcPredictor(fake.grpc, 2.0, 1024 * 1024)
    info = await asking.model_info(models.ModelName("add_sub"))
    assert [(spec.name, spec.datatype, spec.shape) for spec in info.inputs] == [
        ("a", "FP32", (-1, -1)),
        ("b", "FP32", (-1, -1)),
    ]
    assert (info.max_batch_size, info.is_stateful, info.is_decoupled) == (32, False, False)
    assert (await asking.model_info(models.ModelName("unbatched"))).max_batch_size == 0
    with pytest.raises(errors.UpstreamRpcStatus) as refused:
        await asking.model_info(models.ModelName("none"))
    assert refused.value.code == statuses.NOT_FOUND
    await asking.close()


async def test_a_predictor_without_a_configuration_tells_its_metadata(peer: Peer) -> None:
    async def metadata(messages: Any, context: Any) -> None:
        from tritonclient.grpc import service_pb2 as pb

        told = pb.ModelMetadataResponse(name="m")
        told.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
        told.outputs.add(name="", datatype="INT64", shape=[])
        await context.write(told.SerializeToString())

    peer.methods["/inference.GRPCInferenceService/ModelMetadata"] = metadata
    asking = predictor.GrpcPredictor(peer.address, 2.0, 1024 * 1024)
    told = await asking.model_info(models.ModelName("m"))
    assert told == models.ModelInfo((models.TensorSpec("x", "FP32", (-1, 4)),), (models.TensorSpec("", "INT64", ()),))
    await asking.close()
