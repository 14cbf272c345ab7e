"""The predictor behind small requests beside large ones: it costs next to nothing, whatever they are made of.

It answers v1 as the stub of the peers does, and v2 with binary tensors as that of the v2 benchmark, so that it keeps no
body and holds nobody up. Instances for the model `answers` get a large list each; over gRPC there is one row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence

import grpc.aio
import uvloop
from tritonclient.grpc import service_pb2

from benchmarks import processes, stub_server
from benchmarks.peers import stub as rows
from benchmarks.v2 import stub as tensors
from benchmarks.v2 import traffic

LARGE_ANSWER = b"[" + b"0.1234567," * 400_000 + b"0.25]"
"""What an instance for the model `answers` gets: 4 MB."""

RPC_MODEL = "texts"
RPC_ANSWER = b"an answer"
_SERVICE = "inference.GRPCInferenceService"
_TENSOR = {"datatype": "FP32", "shape": [-1, -1]}


class Connection(stub_server.Connection):
    """One connection from the sidecar; a request without a body asks for a model, or is a probe."""

    def __init__(self) -> None:
        super().__init__()
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self._url, self._json_size = b"", None
        self._reader: tensors.Ends | rows.LastNumbers | None = None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == traffic.JSON_SIZE.lower().encode():
            self._json_size: int | None = int(value)

    def on_body(self, piece: bytes) -> None:
        if self._reader is None:
            self._reader = rows.LastNumbers() if self._json_size is None else tensors.Ends(self._json_size)
        self._reader.feed(piece)

    def on_message_complete(self) -> None:
        self._transport.write(self._answer().message())

    def _answer(self) -> tensors.Answer:
        if isinstance(self._reader, tensors.Ends):
            return self._reader.answer()
        if self._reader is None:
            model = {"name": "any", "versions": ["1"], "platform": "stub"}
            told = {"inputs": [{"name": traffic.INPUT, **_TENSOR}], "outputs": [{"name": traffic.OUTPUT, **_TENSOR}]}
            config = b'{"max_batch_size":%d}' % tensors.MOST_ROWS
            return tensors.Answer(config if self._url.endswith(b"/config") else json.dumps(model | told).encode())
        answer = self._reader.answer()
        if b"/answers:" in self._url:
            count = len(json.loads(answer)["predictions"])
            answer = b'{"predictions":[%b]}' % b",".join([LARGE_ANSWER] * count)
        return tensors.Answer(answer)


async def _serve_rpc(port: int) -> grpc.aio.Server:
    metadata = service_pb2.ModelMetadataResponse(name=RPC_MODEL)
    metadata.inputs.add(name="x", datatype="BYTES", shape=[-1, -1])
    metadata.outputs.add(name="y", datatype="BYTES", shape=[-1, 1])
    answer = service_pb2.ModelInferResponse(model_name=RPC_MODEL)
    answer.outputs.add(name="y", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(RPC_ANSWER)
    answers = {"ModelMetadata": metadata.SerializeToString(), "ModelInfer": answer.SerializeToString()}

    async def infer(_: bytes, context: object) -> bytes:
        return answers["ModelInfer"]

    async def tell(_: bytes, context: object) -> bytes:
        return answers["ModelMetadata"]

    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1),))
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
        "ModelMetadata": grpc.unary_unary_rpc_method_handler(tell),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    server.add_insecure_port(f"{processes.HOST}:{port}")
    await server.start()
    return server


async def _serve(port: int, rpc_port: int) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(Connection, processes.HOST, port)
    rpc = await _serve_rpc(rpc_port) if rpc_port else None
    await stopped.wait()
    server.close()
    if rpc is not None:
        await rpc.stop(None)


def command(python: str, port: int, rpc_port: int = 0) -> Sequence[str]:
    """What starts the stub on a port, and for gRPC on another."""
    return [python, "-m", "benchmarks.lag_stub", "--port", str(port), "--rpc-port", str(rpc_port)]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A predictor for large requests of all kinds, at once.")
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--rpc-port", type=int, default=0)
    chosen = arguments.parse_args()
    uvloop.run(_serve(chosen.port, chosen.rpc_port))
