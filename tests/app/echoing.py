"""A predictor for all protocols that answers with what it was sent, at next to no cost, however large that is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import msgspec
from aiohttp import web
from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2 as pb

from tests.app import fake_predictor
from tests.app.fake_predictor import Seen
from tests.server.grpc.peer import Peer

SERVICE = "/inference.GRPCInferenceService/"
WITHOUT_BATCHES = "unbatched"
UNKNOWN = "nobody"
EMBEDDER = "embedder"


class _Answer(web.Response):
    """One that keeps nothing once it is sent, or cannot be.

    aiohttp keeps the answer until the connection's next request, and an exception keeps the frames it went through.
    """

    def __init__(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body=body, status=status, headers=headers, content_type="application/json")

    async def write_eof(self, data: bytes = b"") -> None:
        with contextlib.suppress(ConnectionError):
            await super().write_eof(data)
        self._body = None


def echo(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    """Answer over HTTP: v1, v2, OpenAI's embeddings, and whatever else is passed on."""
    if seen.target.startswith("/v2/models/"):
        return _asked(seen) if request.method == "GET" else _inferred(seen)
    if seen.target == "/v1/embeddings":
        rows = _rows(seen.body, "input")
        data = b",".join(b'{"index":%d,"embedding":%b}' % (at, row) for at, row in enumerate(rows))
        return _Answer(b'{"object":"list","model":"m","data":[%b]}' % data)
    if seen.target.endswith(":predict"):
        return _Answer(b'{"predictions":[%b]}' % b",".join(_rows(seen.body, "instances")))
    return _Answer(seen.body)


def refuse(seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    """Answer questions, and refuse all else."""
    return echo(seen, request) if request.method == "GET" else _Answer(b'{"error":"no"}', 400)


def hang_up(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
    """Answer questions, and close the connection at all else."""
    if request.method == "GET":
        return echo(seen, request)
    if request.transport is not None:
        request.transport.close()
    return _Answer(b"")


def _rows(body: bytes, name: str) -> list[bytes]:
    """Those of the list of that name; none if there is none."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return [bytes(row) for row in msgspec.json.decode(members[name], type=list[msgspec.Raw])]
    except (msgspec.DecodeError, KeyError):
        return []


def _asked(seen: Seen) -> web.Response:
    _, _, _, name, *what = seen.target.split("/")
    if name == UNKNOWN:
        return _Answer(b'{"error":"there is no such model"}', 404)
    if what == ["config"]:
        return _Answer(json.dumps({"name": name, "max_batch_size": _most(name)}).encode())
    about = {kind: [{"name": "text", "datatype": kind, "shape": [-1, 1]}] for kind in ("BYTES", "FP32")}
    told = {"name": name, "platform": "p", "inputs": about["BYTES"], "outputs": about[_answered_with(name)]}
    return _Answer(json.dumps(told).encode())


def _answered_with(model: str) -> str:
    """The datatype of its output."""
    return "FP32" if model == EMBEDDER else "BYTES"


def _most(model: str) -> int:
    return 0 if model == WITHOUT_BATCHES else 4


class _Asked(msgspec.Struct):
    """A request, with the members of its tensors as they were written."""

    inputs: list[dict[str, msgspec.Raw]]


def _inferred(seen: Seen) -> web.Response:
    size = int(seen.headers.get("Inference-Header-Content-Length", len(seen.body)))
    try:
        asked = msgspec.json.decode(seen.body[:size], type=_Asked)
    except msgspec.DecodeError:
        return _Answer(b'{"error":"no JSON"}', 400)
    outputs: list[Any] = asked.inputs
    tail = seen.body[size:]
    if f"/{EMBEDDER}/" in seen.target:
        shape = msgspec.json.decode(outputs[0]["shape"])
        outputs, tail = [{"name": "text", "datatype": "FP32", "shape": shape, "data": [0.5] * shape[0]}], b""
    body = msgspec.json.encode({"model_name": "m", "outputs": outputs})
    return _Answer(body + tail, headers={"Inference-Header-Content-Length": str(len(body))} if tail else None)


def _parsed(message: bytes) -> Any:
    with contextlib.suppress(protobuf.DecodeError):
        return pb.ModelInferRequest.FromString(message)


class Predictor:
    """Both sides. `behave` may answer or raise instead, as a `FakePredictor`'s; while `gate` is clear, answers wait."""

    def __init__(self, http: fake_predictor.FakePredictor, rpc: Peer) -> None:
        self.http = http
        self.rpc = rpc
        self.http.behave = echo
        self.refuses = False
        """Whether calls of `ModelInfer` are refused."""
        self._inferences = 0
        for method in ("ModelInfer", "ModelMetadata", "ModelConfig", "ServerLive"):
            rpc.methods[SERVICE + method] = getattr(self, f"_{method}")

    def forget(self) -> None:
        """Keep nothing of what came."""
        self.http.seen.clear()
        self.rpc.calls.clear()
        self._inferences = 0

    async def at_work(self) -> None:
        """Return once something was sent since `forget`."""
        while not (self.http.seen or self._inferences):  # noqa: ASYNC110 - two servers
            await asyncio.sleep(0.001)

    async def _ModelInfer(self, messages: AsyncIterator[bytes], context: Any) -> None:  # noqa: N802
        asked = _parsed(await self._work_on(messages))
        if asked is None or self.refuses:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)  # `abort` raises what keeps the message
            return
        answer = pb.ModelInferResponse(model_name=asked.model_name, id=asked.id)
        shape, raw = asked.inputs[0].shape, b"".join(asked.raw_input_contents[:1])
        is_embedded = asked.model_name == EMBEDDER
        datatype = "FP32" if is_embedded else asked.inputs[0].datatype
        answer.outputs.add(name="text", datatype=datatype, shape=shape)
        answer.raw_output_contents.append(bytes(4 * shape[0]) if is_embedded else raw)
        await context.write(answer.SerializeToString())

    async def _ModelMetadata(self, messages: AsyncIterator[bytes], context: Any) -> None:  # noqa: N802
        answer = pb.ModelMetadataResponse(name=pb.ModelMetadataRequest.FromString(await _only(messages)).name)
        answer.inputs.add(name="text", datatype="BYTES", shape=[-1, 1])
        answer.outputs.add(name="text", datatype=_answered_with(answer.name), shape=[-1, 1])
        await context.write(answer.SerializeToString())

    async def _ModelConfig(self, messages: AsyncIterator[bytes], context: Any) -> None:  # noqa: N802
        answer = pb.ModelConfigResponse()
        answer.config.name = pb.ModelConfigRequest.FromString(await _only(messages)).name
        answer.config.max_batch_size = _most(answer.config.name)
        await context.write(answer.SerializeToString())

    async def _ServerLive(self, messages: AsyncIterator[bytes], context: Any) -> None:  # noqa: N802
        await self._work_on(messages)
        await context.write(b"")

    async def _work_on(self, messages: AsyncIterator[bytes]) -> bytes:
        message = await _only(messages)
        self._inferences += 1
        await self.http.gate.wait()
        return message


async def _only(messages: AsyncIterator[bytes]) -> bytes:
    """The one message; none of a client that left. To the end: grpcio keeps the last one until there was no other."""
    return b"".join([each async for each in messages])


@contextlib.asynccontextmanager
async def running(http: fake_predictor.FakePredictor) -> AsyncIterator[Predictor]:
    """Its gRPC side listens; the HTTP side is left to whoever starts a sidecar in front of it."""
    rpc = Peer()
    await rpc.start()
    try:
        yield Predictor(http, rpc)
    finally:
        http.gate.set()
        await rpc.stop()
