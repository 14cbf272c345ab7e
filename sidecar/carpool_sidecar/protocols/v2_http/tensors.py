"""Calls to a v2 predictor for tensors that were made of requests of other protocols; the headers of all v2 calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps, v2
from carpool_sidecar.protocols.v2_http import json_lists

HEADER: Final = "Inference-Header-Content-Length"
HEADER_KEY: Final = b"inference-header-content-length"
JSON: interface.Headers = (("Content-Type", "application/json"),)


class _Output(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, msgspec.Raw] | None = None
    data: msgspec.Raw = msgspec.Raw()


class _Answer(msgspec.Struct):
    outputs: list[_Output]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def headers(json_size: int | None) -> interface.Headers:
    """Those of a body of JSON, or of one with binary data after so many bytes of JSON."""
    if json_size is None:
        return JSON
    return (("Content-Type", "application/octet-stream"), (HEADER, str(json_size)))


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
    return f"{name.path}/infer", headers(len(head)), [head, *(tensor.data for tensor in tensors)]


def read_answer(reply: interface.UpstreamResponse) -> list[models.Tensor]:
    """The outputs of an inference response, in its order; those in JSON are converted to binary.

    Raises `errors.UpstreamBroken` for what is no such response, and for data that do not fill their shape.
    """
    return steps.at_once(read_answer_in_steps(reply))


def read_answer_in_steps(reply: interface.UpstreamResponse) -> steps.Steps[list[models.Tensor]]:
    """The same for a large answer."""
    size = json_size(reply.headers, len(reply.body))
    end = len(reply.body) if size is None else size
    found: list[models.Tensor] = []
    try:
        for output in _ANSWER.decode(memoryview(reply.body)[:end]).outputs:
            data, end = yield from _data(output, reply.body, end)
            found.append(models.Tensor(output.name, output.datatype, tuple(output.shape), data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, errors.Unbatchable) as error:
        raise errors.UpstreamBroken(f"the predictor's answer is not a valid inference response: {error}") from None
    if end != len(reply.body):
        raise errors.UpstreamBroken(f"the predictor's answer has {len(reply.body) - end} bytes that are of no output")
    return found


def json_size(headers: Mapping[bytes, bytes], body_size: int) -> int | None:
    """The bytes of JSON in the predictor's answer, by its header; None if all is JSON.

    Raises `errors.UpstreamBroken` for a header that cannot be.
    """
    value = headers.get(HEADER_KEY)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18 or int(value) > body_size:
        raise errors.UpstreamBroken(
            f"the predictor's answer has {body_size} bytes, but {HEADER} says {value.decode('latin-1')!r:.40}"
        )
    return int(value)


def _data(output: _Output, body: bytes, at: int) -> steps.Steps[tuple[v2.Data, int]]:
    """An output's data in binary, and where in the body the next ones' begin."""
    elements = math.prod(output.shape)
    if output.datatype not in v2.DATATYPES or min(output.shape, default=0) < 0:
        raise _broken(output, "is of no known datatype or shape")
    raw = (output.parameters or {}).get("binary_data_size")
    if raw is None:
        text = bytes(output.data)
        packed = yield from json_lists.to_binary_in_steps(output.datatype, text)
        if packed is not None and len(packed) == elements * (v2.DATATYPES[output.datatype].size or 0):
            return packed, at
        if not text.startswith(b"[") or json_lists.count(text) != elements:
            raise _broken(output, "has data that do not fill it")
        return json_lists.to_binary(output.name, output.datatype, text), at
    size = bytes(raw)
    end = at + int(size) if size.isdigit() and len(size) <= 18 else -1
    data = memoryview(body)[at:end]
    if not at <= end <= len(body) or not v2.fills(data, output.datatype, elements, 1)[0]:
        raise _broken(output, f"has {size.decode()} bytes of data, which do not fill it")
    return data, end


def _broken(output: _Output, what: str) -> errors.UpstreamBroken:
    told = f"output {output.name!r} of shape {output.shape} and datatype {output.datatype!r}"
    return errors.UpstreamBroken(f"the predictor's {told} {what}")
