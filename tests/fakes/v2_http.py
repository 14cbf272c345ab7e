"""The fake v2 server's HTTP side: JSON and the binary tensor extension, health, metadata, configuration, errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.fakes import v2_binary, v2_calls, v2_json, v2_models

JSON_SIZE = "Inference-Header-Content-Length"
_MODEL = "/v2/models/{model}"
_FIELDS = ("data", "binary_data_size", "shared_memory_region")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(fake: v2_calls.Calls) -> web.Application:
    """The routes, each at every version of a model."""

    @web.middleware
    async def keep_and_word(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        fake.received.append(v2_calls.Received(request.path_qs, headers, await request.read()))
        try:
            return await handler(request)
        except v2_models.Refused as refused:
            return _json({"error": str(refused)}, refused.status)
        except web.HTTPException as missing:
            return _json({"error": missing.reason}, missing.status)

    async def infer(request: web.Request) -> web.Response:
        return await _infer(fake, request)

    app = web.Application(middlewares=[keep_and_word], client_max_size=1 << 30)
    app.router.add_get("/v2", _server)
    app.router.add_get("/v2/health/live", _fine)
    app.router.add_get("/v2/health/ready", _fine)
    app.router.add_post("/v2/repository/index", _index)
    for path in (_MODEL, _MODEL + "/versions/{version}"):
        app.router.add_post(f"{path}/infer", infer)
        app.router.add_get(path, _metadata)
        app.router.add_get(f"{path}/config", _configuration)
        app.router.add_get(f"{path}/ready", _ready)
    return app


def configuration(model: v2_models.Model) -> dict[str, Any]:
    """Triton's model configuration, as far as anybody here reads it."""
    return {
        "name": model.name,
        "backend": "python",
        "max_batch_size": model.max_batch_size,
        "input": [_config_of(spec) for spec in model.inputs],
        "output": [_config_of(spec) for spec in model.outputs],
    }


def _config_of(spec: v2_models.Spec) -> dict[str, Any]:
    datatype = {"BYTES": "STRING"}.get(spec.datatype, spec.datatype)
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(spec.dims)}


async def _infer(fake: v2_calls.Calls, request: web.Request) -> web.Response:
    model = v2_models.find(request.match_info["model"], request.match_info.get("version", ""))
    body = await request.read()
    size = _json_size(request.headers.get(JSON_SIZE), len(body))
    document = v2_json.load(body[:size])
    question = _question(document, body[size:], model)
    answer = await fake.infer(question)
    return _answer(model, question, answer, _binary_outputs(document, answer))


def _json_size(header: str | None, length: int) -> int:
    if header is None:
        return length
    if not 0 < int(header) <= length:
        words = f"inference header size should be in range (0, {length}), got: {header}"
        raise v2_models.Refused(words)
    return int(header)


def _question(document: Any, tail: bytes, model: v2_models.Model) -> v2_models.Question:
    given_inputs = v2_json.member(document, "inputs", list, "array")
    identity = v2_json.member(document, "id", str, "string") if "id" in document else ""
    parameters = v2_json.member(document, "parameters", dict, "object") if "parameters" in document else {}
    for name, value in parameters.items():
        if not isinstance(value, str | int | float):
            words = f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
            raise v2_models.Refused(words)
    who = f"[request id: {identity or '<id_unknown>'}] "
    inputs = []
    for given in given_inputs:
        tensor, tail = _input(given, tail, model, who)
        inputs.append(tensor)
    if tail:
        raise v2_models.Refused(f"unexpected additional input data for model '{model.name}'")
    outputs = [v2_json.member(each, "name", str, "string") for each in _outputs(document)]
    return v2_models.Question(model.name, "1", identity, inputs, outputs, parameters)


def _input(given: Any, tail: bytes, model: v2_models.Model, who: str) -> tuple[v2_models.Tensor, bytes]:
    """The tensor, and what is left of the binary data."""
    name = v2_json.member(given, "name", str, "string")
    datatype = v2_json.member(given, "datatype", str, "string")
    shape = v2_json.member(given, "shape", list, "array")
    if datatype not in v2_models.DTYPES:
        raise v2_models.Refused(f"invalid datatype for input {name}")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise v2_json.broken("Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer")
    size = _binary_size(given)
    if size is None:
        return v2_models.Tensor(name, datatype, v2_json.read(datatype, shape, given["data"], name)), tail
    if size > len(tail):
        words = f"unexpected size for input '{name}', expecting {size - len(tail)} additional bytes"
        raise v2_models.Refused(f"{words} for model '{model.name}'")
    array = v2_binary.read(datatype, shape, tail[:size], name, model.name, who)
    return v2_models.Tensor(name, datatype, array), tail[size:]


def _binary_size(given: dict[str, Any]) -> int | None:
    """Bytes of an input's data, None if they are in the JSON."""
    parameters = given.get("parameters", {})
    found = [field for field in _FIELDS if field in (given if field == "data" else parameters)]
    if len(found) != 1:
        fields = "'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'"
        given_ = f"set {' '.join(map(repr, found))}" if found else "no field is set"
        raise v2_models.Refused(f"Input must set only one of the following fields: {fields}. But {given_}")
    if found == ["data"]:
        return None
    if found == ["shared_memory_region"]:
        region = parameters["shared_memory_region"]
        raise v2_models.Refused(f"Unable to find shared memory region: '{region}'", 404, "NOT_FOUND")
    size = parameters["binary_data_size"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        words = "attempt to access JSON non-unsigned-integer as unsigned-integer"
        raise v2_json.broken(f"Unable to parse 'binary_data_size': {words}")
    return size


def _outputs(document: Any) -> list[Any]:
    return v2_json.member(document, "outputs", list, "array") if "outputs" in document else []


def _binary_outputs(document: Any, answer: list[v2_models.Tensor]) -> set[str]:
    """The names of those that are wanted in binary; what is said for all counts only if none is named."""
    outputs = _outputs(document)
    if outputs:
        return {each["name"] for each in outputs if each.get("parameters", {}).get("binary_data")}
    wants_all = document.get("parameters", {}).get("binary_data_output", False)
    return {tensor.name for tensor in answer} if wants_all else set()


def _answer(
    model: v2_models.Model, question: v2_models.Question, answer: list[v2_models.Tensor], in_binary: set[str]
) -> web.Response:
    texts, tail = [], b""
    for tensor in answer:
        head = f'{{"name":"{tensor.name}","datatype":"{tensor.datatype}","shape":{_compact(list(tensor.array.shape))},'
        if tensor.name in in_binary:
            data = v2_binary.write(tensor)
            texts.append(head.encode() + b'"parameters":{"binary_data_size":%d}}' % len(data))
            tail += data
        else:
            texts.append(head.encode() + b'"data":' + v2_json.write(tensor) + b"}")
    identity = question.id.encode(errors="surrogateescape")
    start = b'{"id":' + v2_json.string(identity) + b"," if identity else b"{"
    names = f'"model_name":"{model.name}","model_version":"1","outputs":['.encode()
    text = start + names + b",".join(texts) + b"]}"
    if not in_binary:
        return web.Response(body=text, headers={"Content-Type": "application/json"})
    headers = {"Content-Type": "application/octet-stream", JSON_SIZE: str(len(text))}
    return web.Response(body=text + tail, headers=headers)


async def _server(_: web.Request) -> web.Response:
    return _json({"name": "triton", "version": "2.51.0", "extensions": ["classification", "binary_tensor_data"]})


async def _fine(_: web.Request) -> web.Response:
    return web.Response()


async def _index(_: web.Request) -> web.Response:
    return _json([{"name": name, "version": "1", "state": "READY"} for name in v2_models.MODELS])


async def _metadata(request: web.Request) -> web.Response:
    model = v2_models.find(request.match_info["model"], request.match_info.get("version", ""))
    tensors = {
        kind: [{"name": spec.name, "datatype": spec.datatype, "shape": model.shape(spec)} for spec in specs]
        for kind, specs in (("inputs", model.inputs), ("outputs", model.outputs))
    }
    return _json({"name": model.name, "versions": ["1"], "platform": "python", **tensors})


async def _configuration(request: web.Request) -> web.Response:
    return _json(configuration(v2_models.find(request.match_info["model"], request.match_info.get("version", ""))))


async def _ready(request: web.Request) -> web.Response:
    if request.match_info["model"] not in v2_models.MODELS:
        raise v2_models.Refused("Model version not ready")
    return web.Response()


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=_compact(value).encode(), status=status, headers={"Content-Type": "application/json"})


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
