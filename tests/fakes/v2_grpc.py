"""The fake v2 server's gRPC side: `inference.GRPCInferenceService`, with typed and raw contents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.fakes import v2_binary, v2_calls, v2_http, v2_models

_TYPED = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def add_to(server: grpc.aio.Server, fake: v2_calls.Calls) -> None:
    """Let a server answer for the fake."""
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(fake), server)


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, fake: v2_calls.Calls) -> None:
        self._fake = fake

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ModelInfer", request, context)
        return await _worded(self._answer(request), context)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            self._keep("ModelStreamInfer", request, context)
            try:
                answer = await self._answer(request)
            except v2_models.Refused as refused:
                failed = pb.ModelInferResponse(id=request.id)
                yield pb.ModelStreamInferResponse(error_message=str(refused), infer_response=failed)
                continue
            answer.parameters["triton_final_response"].bool_param = True
            yield pb.ModelStreamInferResponse(infer_response=answer)

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ServerLive", request, context)
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ServerReady", request, context)
        return pb.ServerReadyResponse(ready=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ModelReady", request, context)
        return pb.ModelReadyResponse(ready=request.name in v2_models.MODELS)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ServerMetadata", request, context)
        return pb.ServerMetadataResponse(name="triton", version="2.51.0", extensions=["classification"])

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ModelMetadata", request, context)
        return await _worded(_metadata(request.name, request.version), context)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("ModelConfig", request, context)
        return await _worded(_configuration(request.name, request.version), context)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._keep("RepositoryIndex", request, context)
        models = [
            pb.RepositoryIndexResponse.ModelIndex(name=name, version="1", state="READY") for name in v2_models.MODELS
        ]
        return pb.RepositoryIndexResponse(models=models)

    def _keep(self, method: str, request: Any, context: Any) -> None:
        path = f"/inference.GRPCInferenceService/{method}"
        metadata = dict(context.invocation_metadata() or ())
        self._fake.received.append(v2_calls.Received(path, metadata, request.SerializeToString()))

    async def _answer(self, request: Any) -> Any:
        question = _question(request)
        outputs = await self._fake.infer(question)
        answer = pb.ModelInferResponse(model_name=question.model, model_version="1", id=question.id)
        for tensor in outputs:
            answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
            answer.raw_output_contents.append(v2_binary.write(tensor))
        return answer


async def _worded(answer: Any, context: Any) -> Any:
    try:
        return await answer
    except v2_models.Refused as refused:
        await context.abort(grpc.StatusCode[refused.code], str(refused))


def _question(request: Any) -> v2_models.Question:
    model = v2_models.find(request.model_name, request.model_version)
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
    }
    who = f"[request id: {request.id or '<id_unknown>'}] "
    inputs = [
        _input(given, number, request.raw_input_contents, model.name, who)
        for number, given in enumerate(request.inputs)
    ]
    outputs = [output.name for output in request.outputs]
    return v2_models.Question(model.name, "1", request.id, inputs, outputs, parameters)


def _input(given: Any, number: int, raw: Sequence[bytes], model: str, who: str) -> v2_models.Tensor:
    fields = [field.name for field, _ in given.contents.ListFields()]
    if raw and fields:
        words = f"contents field must not be specified when using raw_input_contents for '{given.name}'"
        raise v2_models.Refused(f"{words} for model '{model}'")
    if number >= len(raw) and not fields:
        raise v2_models.Refused(f"unable to find data for input tensor '{given.name}' for model '{model}' in request.")
    if given.datatype not in v2_models.DTYPES:
        words = f"inference input '{given.name}' data-type is '<invalid>'"
        raise v2_models.Refused(f"{who}{words}, but model '{model}' expects another")
    data = raw[number] if raw else _typed(given, fields, model)
    shape = list(given.shape)
    if any(size < 0 for size in shape):
        raise v2_models.Refused(f"{who}input byte size mismatch for input '{given.name}' for model '{model}'.")
    return v2_models.Tensor(
        given.name, given.datatype, v2_binary.read(given.datatype, shape, data, given.name, model, who)
    )


def _typed(given: Any, fields: Sequence[str], model: str) -> bytes:
    """Typed contents in binary; integers of 8 and 16 bits wrap."""
    if fields != [_TYPED.get(given.datatype)]:
        words = f"unexpected explicit tensor data for input tensor '{given.name}' for model '{model}'"
        raise v2_models.Refused(f"{words}, expected datatype '{given.datatype}'")
    values = list(getattr(given.contents, fields[0]))
    if given.datatype == "BYTES":
        return v2_binary.write(v2_models.Tensor(given.name, "BYTES", np.array([*values, None], object)[:-1]))
    return np.array(values).astype(v2_models.DTYPES[given.datatype]).tobytes()


async def _metadata(name: str, version: str) -> Any:
    model = v2_models.find(name, version)
    answer = pb.ModelMetadataResponse(name=model.name, versions=["1"], platform="python")
    for specs, found in ((model.inputs, answer.inputs), (model.outputs, answer.outputs)):
        for spec in specs:
            found.add(name=spec.name, datatype=spec.datatype, shape=model.shape(spec))
    return answer


async def _configuration(name: str, version: str) -> Any:
    found = {"config": v2_http.configuration(v2_models.find(name, version))}
    return json_format.ParseDict(found, pb.ModelConfigResponse())
