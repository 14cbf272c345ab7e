"""A v2 model server in one function, written against the protocol with numpy: what a caller gets is what this says.

For each input `x` the model answers `x` itself and `x_next`: numbers plus one, booleans negated, strings doubled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from carpool_sidecar.protocols import interface

HEADER = "Inference-Header-Content-Length"
DTYPES = {
    "BOOL": np.dtype("?"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no such type; its bytes are passed on
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
}


class Tensor(NamedTuple):
    """`values` are flat: a numpy array, or a list of bytes."""

    name: str
    datatype: str
    shape: list[int]
    values: Any

    @property
    def same(self) -> tuple[object, ...]:
        """Equal for tensors that are equal to the last bit."""
        values = tuple(self.values) if self.datatype == "BYTES" else self.values.tobytes()
        return (self.name, self.datatype, self.shape, values)


class Refused(Exception):
    """The server would answer 400."""


def flat(data: Any) -> list[Any]:
    return [leaf for each in data for leaf in flat(each)] if isinstance(data, list) else [data]


def nest(values: list[Any], shape: Sequence[int]) -> Any:
    if len(shape) <= 1:
        return values
    step = len(values) // shape[0] if shape[0] else 0
    return [nest(values[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]


def pack(tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in tensor.values)
    return tensor.values.tobytes()


def unpack(datatype: str, data: bytes) -> Any:
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype])
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        assert at + 4 + size <= len(data)
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def to_json(tensor: Tensor) -> list[Any]:
    if tensor.datatype in ("FP16", "BF16"):
        raise Refused("no JSON for 16 bits")
    if tensor.datatype == "BYTES":
        return [each.decode() for each in tensor.values]
    return tensor.values.tolist()


def of_json(datatype: str, values: list[Any]) -> Any:
    if datatype == "BYTES":
        return [each.encode() for each in values]
    return np.array(values, DTYPES[datatype])


def read(message: dict[str, Any], member: str, rest: bytes) -> list[Tensor]:
    found, at = [], 0
    for each in message[member]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = of_json(each["datatype"], flat(each["data"]))
        else:
            assert "data" not in each
            values, at = unpack(each["datatype"], rest[at : at + size]), at + size
        assert len(values) == np.prod(each["shape"], dtype=int), each
        found.append(Tensor(each["name"], each["datatype"], each["shape"], values))
    assert at == len(rest)
    return found


def take_apart(body: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    size = headers.get(HEADER)
    expected = "application/json" if size is None else "application/octet-stream"
    assert headers["Content-Type"] == expected
    stop = len(body) if size is None else int(size)
    return json.loads(body[:stop]), body[stop:]


def step(tensor: Tensor) -> Tensor:
    name = f"{tensor.name}_next"
    if tensor.datatype == "BYTES":
        return tensor._replace(name=name, values=[each + each for each in tensor.values])
    if tensor.datatype == "BOOL":
        return tensor._replace(name=name, values=~tensor.values)
    return tensor._replace(name=name, values=tensor.values + tensor.values.dtype.type(1))


def company(request: dict[str, Any]) -> str:
    """What all requests in a call have in common: equal for a caller that is alone."""
    inputs = [(each["name"], each["datatype"], each["shape"][1:]) for each in request["inputs"]]
    parameters = {name: value for name, value in request.get("parameters", {}).items() if name != "binary_data_output"}
    return repr((inputs, parameters, [each["name"] for each in request.get("outputs", [])]))


def serve(
    body: bytes,
    headers: dict[str, str],
    is_nested: bool = False,
    model: Callable[[list[Tensor]], list[Tensor]] = lambda inputs: [*inputs, *map(step, inputs)],
) -> interface.UpstreamResponse:
    request, rest = take_apart(body, headers)
    outputs = {each.name: each for each in model(read(request, "inputs", rest))}
    default = request.get("parameters", {}).get("binary_data_output") or False
    listed = [
        (each["name"], each.get("parameters", {}).get("binary_data", False)) for each in request.get("outputs", [])
    ]
    told: list[dict[str, Any]] = []
    binary = b""
    for name, is_binary in listed or [(name, default) for name in outputs]:
        tensor = outputs[name]
        told.append({"name": name, "datatype": tensor.datatype, "shape": tensor.shape})
        if is_binary:
            told[-1]["parameters"] = {"binary_data_size": len(pack(tensor))}
            binary += pack(tensor)
        else:
            data = to_json(tensor)
            told[-1]["data"] = nest(data, tensor.shape) if is_nested else data
    answer: dict[str, Any] = {"id": request["id"]} if "id" in request else {}
    answer |= {"model_name": "m", "model_version": "1", "parameters": {"company": company(request)}, "outputs": told}
    text = json.dumps(answer, separators=(",", ":")).encode()
    lower = {b"content-type": b"application/json"}
    if any("parameters" in each for each in told):
        lower = {b"content-type": b"application/octet-stream", HEADER.lower().encode(): b"%d" % len(text)}
    return interface.UpstreamResponse(text + binary, lower)


class Received(NamedTuple):
    """What a caller is told, as far as it can tell answers apart."""

    others: dict[str, Any]
    tensors: list[Tensor]
    are_binary: list[bool]


def receive(content: interface.RenderedResponse) -> Received:
    message, rest = take_apart(b"".join(content.body), dict(content.headers))
    tensors = read(message, "outputs", rest)
    are_binary = ["data" not in each for each in message["outputs"]]
    return Received({name: value for name, value in message.items() if name != "outputs"}, tensors, are_binary)
