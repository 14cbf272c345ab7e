"""A predictor as a function: it answers each input's rows with themselves, in the form it was asked in or raw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from carpool.scheduling import messages
from carpool_sidecar.protocols import interface as wire
from carpool_sidecar.protocols import steps
from carpool_sidecar.protocols.v2_grpc import codec, tensors

TARGET = "/inference.GRPCInferenceService/ModelInfer"


def company(request: Any) -> str:
    """What all requests in a call have in common: equal for a caller that is alone."""
    inputs = [(each.name, each.datatype, list(each.shape)[1:]) for each in request.inputs]
    parameters = {name: str(value) for name, value in request.parameters.items()}
    return repr((inputs, sorted(parameters.items()), [each.name for each in request.outputs]))


def answer(message: bytes, is_always_raw: bool = False) -> bytes:
    """A ModelInferResponse: outputs that were asked for, by default all, named as the inputs."""
    request = pb.ModelInferRequest.FromString(message)
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    response.parameters["company"].string_param = company(request)
    raw = list(request.raw_input_contents)
    wanted = [output.name for output in request.outputs] or [tensor.name for tensor in request.inputs]
    for index, tensor in enumerate(request.inputs):
        if tensor.name in wanted:
            _add(response, tensor, raw[index] if raw else None, is_always_raw)
    return response.SerializeToString()


def _add(response: Any, tensor: Any, raw: bytes | None, is_always_raw: bool) -> None:
    output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if raw is None and is_always_raw:
        raw = steps.at_once(tensors.to_raw(tensor.contents.SerializeToString(), tensor.datatype, tensor.shape))
    if raw is not None:
        response.raw_output_contents.append(raw)
    else:
        output.contents.CopyFrom(tensor.contents)


def part(payload: codec.Payload, start: int = 0, stop: int | None = None) -> messages.Part:
    """Rows of a payload, by default all."""
    request = messages.Request(payload.key, payload.row_count, payload=payload)
    return messages.Part(request, start, payload.row_count if stop is None else stop)


def exchange(talk: codec.Codec, parts: Sequence[messages.Part], predict: Any = answer) -> list[messages.Piece]:
    """Sends one batch, and cuts the answer as the core does."""
    outgoing = talk.merge("the-batch", TARGET, parts)
    told = outgoing.read(wire.UpstreamResponse(predict(b"".join(outgoing.body)), {}))
    assert len(told.rows) == sum(each.stop - each.start for each in parts)
    pieces, at = [], 0
    for each in parts:
        rows = each.stop - each.start
        pieces.append(messages.Piece(each.start, "batch", told.rows[at : at + rows]))
        at += rows
    return pieces


def rendered(payload: codec.Payload, pieces: Sequence[messages.Piece]) -> Any:
    assert payload.response_format is not None
    return pb.ModelInferResponse.FromString(b"".join(payload.response_format.render(pieces).body))
