"""Tensors go out and come back in binary, whoever the predictor is."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface as wire
from carpool_sidecar.protocols import models, steps
from carpool_sidecar.protocols.v2_http import tensors
from tests.protocols.v2_http import v2_server

NAME = models.ModelName("m%20m", "3")


@given(st.lists(st.sampled_from(["FP32", "INT64", "BOOL", "BYTES", "UINT8"]), min_size=1, max_size=4), st.booleans())
def test_tensors_come_back_from_a_server_as_they_went_out(datatypes, is_json):
    given = []
    for number, datatype in enumerate(datatypes):
        sent = (
            v2_server.of_json("BYTES", ["a", "é", ""])
            if datatype == "BYTES"
            else v2_server.of_json(datatype, [1, 0, 1])
        )
        data = v2_server.pack(v2_server.Tensor("", datatype, [3], sent))
        given.append(models.Tensor(f"x{number}", datatype, (3, 1), data))
    target, headers, pieces = tensors.write_request("the-batch", NAME, given)
    assert target == "/v2/models/m%20m/versions/3/infer"
    body = b"".join(pieces)
    if is_json:
        body = body.replace(b'"binary_data_output":true', b'"binary_data_output":null')
    reply = v2_server.serve(body, dict(headers), model=lambda inputs: inputs)
    assert steps.at_once(tensors.read_answer(reply)) == given


@pytest.mark.parametrize(
    ("output", "rest"),
    [
        ('"datatype":"FP32","shape":[2],"data":[1]', b""),
        ('"datatype":"FP32","shape":[2],"data":5', b""),
        ('"datatype":"FP32","shape":[-2],"data":[1,2]', b""),
        ('"datatype":"NEW","shape":[2],"data":[1,2]', b""),
        ('"datatype":"INT8","shape":[2],"data":[1,200]', b""),
        ('"datatype":"FP16","shape":[1],"data":[1]', b""),
        ('"datatype":"FP32","shape":[2]', b""),
        ('"datatype":"FP32","shape":[2],"parameters":{"binary_data_size":4}', b"1234"),
        ('"datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}', b"123"),
        ('"datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}', b"12345"),
        ('"datatype":"FP32","shape":[1],"parameters":{"binary_data_size":"4"}', b"1234"),
        ('"datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":4}', b"1234"),
    ],
)
def test_answer_whose_data_do_not_fill_their_shapes_is_broken(output, rest):
    text = f'{{"outputs":[{{"name":"y",{output}}}]}}'.encode()
    with pytest.raises(errors.UpstreamBroken):
        steps.at_once(
            tensors.read_answer(
                wire.UpstreamResponse(text + rest, {b"inference-header-content-length": b"%d" % len(text)})
            )
        )


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"outputs":5}', b'{"outputs":[{}]}', b"\xff" * 9, b"[" * 9999])
def test_what_is_no_answer_is_broken(body):
    with pytest.raises(errors.UpstreamBroken):
        steps.at_once(tensors.read_answer(wire.UpstreamResponse(body, {})))


def test_fp16_is_passed_on_as_it_is():
    head = b'{"outputs":[{"name":"y","datatype":"FP16","shape":[2],"parameters":{"binary_data_size":4}}]}'
    reply = wire.UpstreamResponse(
        head + struct.pack("<2e", 1, 2), {b"inference-header-content-length": b"%d" % len(head)}
    )
    assert steps.at_once(tensors.read_answer(reply)) == [models.Tensor("y", "FP16", (2,), struct.pack("<2e", 1, 2))]
