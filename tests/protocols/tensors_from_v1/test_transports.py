"""The same instances over each protocol that a predictor may speak."""

from __future__ import annotations

import json

import pytest

from carpool_sidecar.protocols import interface as codecs
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.tensors_from_v1 import codec, front
from carpool_sidecar.protocols.v2_http import tensors
from tests.protocols.tensors_from_v1.model import NAME, Part, Request

INFO = models.ModelInfo(
    (models.TensorSpec("a", "FP32", (-1, 2)), models.TensorSpec("s", "BYTES", (-1,))), (), max_batch_size=8
)
INSTANCES = [{"a": [0.1, -2.0], "s": "x"}, {"a": [3.0, 4.5], "s": "é"}]


def call(transport: codec.Transport) -> codecs.UpstreamRequest:
    made = front.Codec(NAME, INFO, transport)
    one, other = (made.parse(json.dumps({"instances": [each]}).encode(), 8) for each in INSTANCES)
    return made.merge("the-batch", "/v1/models/m:predict", [Part(Request(one), 0, 1), Part(Request(other), 0, 1)])


def predictions(answer: codecs.BatchPredictions) -> object:
    assert answer.list_name == b"predictions"
    return json.loads(b"[%b]" % b",".join(answer.rows[:]))


def test_over_http() -> None:
    outgoing = call(tensors)
    head, *data = outgoing.body
    asked = json.loads(head)
    assert asked["id"] == "the-batch"
    assert outgoing.target == "/v2/models/m/versions/1/infer"
    assert [(each["name"], each["shape"]) for each in asked["inputs"]] == [("a", [2, 2]), ("s", [2])]
    told = json.dumps({"model_name": "m", "outputs": asked["inputs"]}).encode()
    headers = {b"inference-header-content-length": b"%d" % len(told)}
    answer = outgoing.read(codecs.UpstreamResponse(b"".join((told, *data)), headers))
    assert predictions(answer) == INSTANCES


def test_over_grpc() -> None:
    service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
    from carpool_sidecar.protocols.v2_grpc import tensors

    outgoing = call(tensors)
    asked = service_pb2.ModelInferRequest.FromString(b"".join(outgoing.body))
    assert asked.id == "the-batch"
    assert [(each.name, list(each.shape)) for each in asked.inputs] == [("a", [2, 2]), ("s", [2])]
    told = service_pb2.ModelInferResponse(raw_output_contents=asked.raw_input_contents)
    for each in asked.inputs:
        told.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    assert predictions(outgoing.read(codecs.UpstreamResponse(told.SerializeToString(), {}))) == INSTANCES
