"""A message taken apart by its outermost fields says what protobuf reads in it."""

from __future__ import annotations

import hypothesis
import pytest
from google.protobuf import message as protobuf
from hypothesis import strategies
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import messages, tensors

SHORT = strategies.text(max_size=5)
REQUESTS = strategies.builds(
    pb.ModelInferRequest,
    model_name=SHORT,
    model_version=SHORT,
    id=SHORT,
    inputs=strategies.lists(
        strategies.builds(
            pb.ModelInferRequest.InferInputTensor, name=SHORT, shape=strategies.lists(strategies.integers(-2, 300))
        ),
        max_size=3,
    ),
    raw_input_contents=strategies.lists(
        strategies.binary(max_size=300) | strategies.integers(16_000, 20_000).map(bytes), max_size=3
    ),
)


def together(found: messages.Fields, raw_tag: int = messages.RAW_INPUT) -> bytes:
    pieces = [found.rest, tensors.start(messages.ID, len(found.id)), found.id]
    for data in found.raw:
        pieces += [tensors.start(raw_tag, len(data)), data]
    return b"".join(pieces)


@hypothesis.given(REQUESTS)
def test_the_parts_of_a_message_make_the_same_message(request) -> None:
    found = messages.scan(request.SerializeToString())
    assert pb.ModelInferRequest.FromString(together(found)) == request
    assert found.name.decode() == request.model_name
    assert found.version.decode() == request.model_version
    assert found.id.decode() == request.id
    assert [bytes(data) for data in found.raw] == list(request.raw_input_contents)


@hypothesis.given(strategies.lists(REQUESTS, min_size=2, max_size=3))
def test_messages_joined_end_to_end_are_merged_as_protobuf_merges_them(requests) -> None:
    body = b"".join(each.SerializeToString() for each in requests)
    whole = pb.ModelInferRequest.FromString(body)
    found = messages.scan(body)
    assert pb.ModelInferRequest.FromString(together(found)) == whole
    assert (found.name.decode(), found.version.decode()) == (whole.model_name, whole.model_version)


@hypothesis.given(strategies.binary(max_size=30))
@hypothesis.example(b"*\x02*\x00")
@hypothesis.example(b"*\x05*\x03\x0a\x01\x01")
@hypothesis.example(b"*\x04*\x021_")
@hypothesis.example(b"\x1a\x01\xe1\x1a\x00")
def test_bytes_are_taken_apart_only_if_protobuf_reads_the_same_in_them(body) -> None:
    try:
        found = messages.scan(body)
    except (errors.BadRequest, errors.Unbatchable):
        return
    try:
        request = pb.ModelInferRequest.FromString(body)
    except protobuf.DecodeError:
        with pytest.raises(protobuf.DecodeError):
            pb.ModelInferRequest.FromString(together(found)), *map(pb.InferTensorContents.FromString, found.contents)
        return
    for tensor, contents in zip(request.inputs, found.contents, strict=not found.raw):
        assert pb.InferTensorContents.FromString(contents) == tensor.contents
        tensor.ClearField("contents")
    assert pb.ModelInferRequest.FromString(together(found)) == request


@pytest.mark.parametrize(
    "body",
    [b"\x0a", b"\x0a\x05ab", b"\x0a\xff\xff\xff\xff\xff\xff\x01", b"\x42\x01a", b"\x08\x01", b"\x00", b"\x0a\x80"],
)
def test_what_is_no_such_message_is_unreadable(body) -> None:
    with pytest.raises((errors.BadRequest, errors.Unbatchable)):
        messages.scan(body)
