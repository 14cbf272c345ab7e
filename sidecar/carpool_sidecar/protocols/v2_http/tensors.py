"""Calls to a v2 predictor for tensors that were made of requests of other protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from carpool_sidecar.protocols import interface, models, steps
from carpool_sidecar.protocols.v2_http import answers, framing, json_bodies, json_lists

_SPLITTER: Final = json_bodies.BodySplitter("outputs", answers.learn)


def write_request(
    batch_id: str, name: models.ModelName, tensors: Sequence[models.Tensor], outputs: Sequence[str] = ()
) -> tuple[str, interface.Headers, interface.Pieces]:
    """Target, headers and body of the request of this id for a model's inputs.

    It asks for these outputs in binary, for all if none is named.
    """
    inputs: list[dict[str, Any]] = [
        {
            "name": tensor.name,
            "shape": tensor.shape,
            "datatype": tensor.datatype,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in tensors
    ]
    asked: dict[str, Any] = {"id": batch_id, "inputs": inputs, "parameters": {"binary_data_output": True}}
    if outputs:
        asked["outputs"] = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
    head = msgspec.json.encode(asked)
    return f"{name.path}/infer", framing.headers(len(head)), [head, *(tensor.data for tensor in tensors)]


def read_answer(reply: interface.UpstreamResponse) -> steps.Steps[list[models.Tensor]]:
    """The outputs of an inference response, in its order; those in JSON are converted to binary.

    Raises `errors.UpstreamBroken` for what is no such response, and for data that do not fill their shape.
    """
    template, filled, _, _ = yield from answers.outputs_of(_SPLITTER, reply)
    found = []
    for output, data in zip(template.tensors, filled, strict=True):
        if output.size is None:
            data = yield from json_lists.to_binary(output.name, output.datatype, data)
        found.append(models.Tensor(output.name, output.datatype, output.shape, data))
    return found
