"""The predictor behind the sidecar under attack; as a gRPC server it is also the plain grpcio to compare with.

v1 over HTTP and v2 over both: each row is answered with itself. Beside that two methods of no known service, which the
sidecar passes through: one answers with as many bytes as it is asked for, one never answers. What is large is not
looked at for long, since what the predictor itself takes for an attack is no matter of the sidecar's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import uvloop
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from benchmarks import stub_server
from tests import loopback

MODEL = "echo"
INPUT, OUTPUT = "rows", "rows_out"
TEXTS = "texts"
"""A model that knows its shapes and refuses everything unread: for messages that are dear to read."""

HANG = "hang"
"""A model whose calls are never answered over gRPC, and what over HTTP a body says that is not answered."""

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
BLOB, HOLD = "/attack.Attack/Blob", "/attack.Attack/Hold"

_HANG_BODY = b'["hang"]'
_V2_SHAPE = b'"shape":'
_V2_ANSWER = b'{"model_name":"echo","model_version":"1","outputs":[{"name":"rows_out","datatype":"FP32",'
_TENSOR = {"name": INPUT, "datatype": "FP32", "data_type": "TYPE_FP32", "shape": [-1, -1], "dims": [-1]}
_V2_MODEL = json.dumps(
    {
        "name": MODEL,
        "versions": ["1"],
        "platform": "python",
        "max_batch_size": 1024,
        "inputs": [_TENSOR],
        "input": [_TENSOR],
        "outputs": [{**_TENSOR, "name": OUTPUT}],
        "output": [{**_TENSOR, "name": OUTPUT}],
    }
).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
_MOST_ROWS = 1024
_TO_TEXTS = bytes(pb.ModelInferRequest(model_name=TEXTS).SerializeToString())
_MOST_BLOB = 1 << 22

Unary = Callable[[bytes, Any], Awaitable[bytes]]


async def infer(message: bytes, context: Any) -> bytes:
    """Echo."""
    if message.startswith(_TO_TEXTS):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this model refuses all requests")
    request = pb.ModelInferRequest.FromString(message)
    if request.model_name == HANG:
        return await _hold(message, context)
    answer = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for given in request.inputs:
        output = answer.outputs.add(name=f"{given.name}_out", datatype=given.datatype, shape=given.shape)
        if not request.raw_input_contents:
            output.contents.CopyFrom(given.contents)
    answer.raw_output_contents.extend(request.raw_input_contents)
    return bytes(answer.SerializeToString())


def _tensors(name: str) -> tuple[str, str, str, list[int]]:
    """Input, output, datatype and the dimensions behind the rows."""
    return (TEXTS, f"{TEXTS}_out", "BYTES", [-1]) if name == TEXTS else (INPUT, OUTPUT, "FP32", [-1])


async def _metadata(message: bytes, _: Any) -> bytes:
    name = pb.ModelMetadataRequest.FromString(message).name
    given, told, datatype, dims = _tensors(name)
    answer = pb.ModelMetadataResponse(name=name, versions=["1"], platform="python")
    answer.inputs.add(name=given, datatype=datatype, shape=[-1, *dims])
    answer.outputs.add(name=told, datatype=datatype, shape=[-1, *dims])
    return bytes(answer.SerializeToString())


async def _configuration(message: bytes, _: Any) -> bytes:
    name = pb.ModelConfigRequest.FromString(message).name
    given, told, datatype, dims = _tensors(name)
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    config = {
        "name": name,
        "max_batch_size": _MOST_ROWS,
        "input": [{"name": given, "data_type": kind, "dims": dims}],
        "output": [{"name": told, "data_type": kind, "dims": dims}],
    }
    return bytes(json_format.ParseDict({"config": config}, pb.ModelConfigResponse()).SerializeToString())


async def _blob(message: bytes, _: Any) -> bytes:
    return bytes(min(_MOST_BLOB, int.from_bytes(message[:4])))


async def _hold(_: bytes, context: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


_METHODS: dict[str, Unary] = {
    INFER: infer,
    SERVICE + "ModelMetadata": _metadata,
    SERVICE + "ModelConfig": _configuration,
    BLOB: _blob,
    HOLD: _hold,
}


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Messages stay bytes."""

    def service(self, details: Any) -> Any:
        method = _METHODS.get(details.method)
        return None if method is None else grpc.unary_unary_rpc_method_handler(method)


class _Predictions(stub_server.Connection):
    """Any POST is a prediction, any GET tells of a model of the v2 protocol."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._path = b""

    def on_url(self, path: bytes) -> None:
        self._path = path

    def on_body(self, piece: bytes) -> None:
        self._parts.append(piece)

    def on_message_complete(self) -> None:
        asked = b"".join(self._parts)
        self._parts.clear()
        if _HANG_BODY in asked:
            return
        body = _V2_MODEL
        if self._path.endswith(b"/infer"):
            body = _V2_ANSWER + asked[asked.index(_V2_SHAPE) :] if _V2_SHAPE in asked else b"{}"
        elif asked:
            body = asked.replace(b'"instances"', b'"predictions"', 1)
        self._transport.write(b"%b%d\r\n\r\n%b" % (_HEAD, len(body), body))


async def _serve(http_port: int, grpc_port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((_Methods(),))
    server.add_insecure_port(f"{loopback.HOST}:{grpc_port}")
    await server.start()
    listener = await loop.create_server(_Predictions, loopback.HOST, http_port)
    await stopped.wait()
    listener.close()
    await server.stop(None)


def command(python: str, http_port: int, grpc_port: int) -> list[str]:
    """What starts it."""
    ports = ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    return [python, "-m", "benchmarks.attack.backend", *ports]


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="A predictor that answers each row with itself.")
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(_serve(options.http_port, options.grpc_port))


if __name__ == "__main__":
    main()
