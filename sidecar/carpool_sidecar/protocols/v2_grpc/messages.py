"""v2's messages for those who have tensors rather than a gRPC caller: v1 requests on a predictor that speaks gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import tensor_contents

SERVICE = "/inference.GRPCInferenceService/"
MODEL_INFER = SERVICE + "ModelInfer"


def write_request(
    batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor]
) -> tuple[str, interface.Headers, interface.Pieces]:
    """Method path, metadata and message of a call of `ModelInfer` with this id and these inputs."""
    request = service_pb2.ModelInferRequest(model_name=name.name, model_version=name.version, id=batch_id)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    request.raw_input_contents.extend([bytes(tensor.data) for tensor in tensors])
    return MODEL_INFER, (), [request.SerializeToString()]


def read_answer(reply: interface.UpstreamResponse) -> list[models.Tensor]:
    """The outputs of a ModelInferResponse; raises `errors.UpstreamBroken` if they are not what they say they are."""
    try:
        response = service_pb2.ModelInferResponse.FromString(reply.body)
    except protobuf.DecodeError:
        raise errors.UpstreamBroken("the predictor's answer is not a ModelInferResponse") from None
    return tensors_of(response.outputs, list(response.raw_output_contents))


def tensors_of(outputs: Sequence[Any], raw: Sequence[bytes | memoryview]) -> list[models.Tensor]:
    """Outputs with their raw contents, or those in them; raises `errors.UpstreamBroken`."""
    if raw and len(raw) != len(outputs):
        raise errors.UpstreamBroken(f"the predictor answered {len(outputs)} outputs with {len(raw)} raw contents")
    return [_tensor(output, raw[index] if raw else None) for index, output in enumerate(outputs)]


def _tensor(output: Any, data: bytes | memoryview | None) -> models.Tensor:
    shape, datatype = tuple(output.shape), output.datatype
    if datatype not in tensor_contents.DATATYPES or min(shape, default=0) < 0:
        raise errors.UpstreamBroken(f"the predictor's output {output.name!r} is {datatype} of shape {list(shape)}")
    try:
        if data is None:
            data = tensor_contents.to_raw(output.contents.SerializeToString(), datatype, shape)
        else:
            tensor_contents.check_raw(data, datatype, shape)
    except tensor_contents.Misfit as error:
        raise errors.UpstreamBroken(f"the predictor's output {output.name!r}: {error}") from None
    return models.Tensor(output.name, datatype, shape, data)
