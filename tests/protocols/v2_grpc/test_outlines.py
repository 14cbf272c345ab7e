"""Requests that are recognised by what an earlier one said are understood as if they had been read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar.protocols import steps
from carpool_sidecar.protocols.v2_grpc import messages, outlines
from tests.protocols.v2_grpc.test_grpc_codec import request

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
DATATYPES = {"FP32": 4, "INT64": 8, "UINT8": 1, "BOOL": 1}


def read(body: bytes) -> messages.Message:
    reader = messages.Reader(messages.REQUEST)
    found = messages.scan(body)
    return steps.at_once(reader.read(found, reader.template(found)))


def made(name: str, tensors: list[tuple[str, int, list[int]]], fill: bytes, identity: str = "") -> bytes:
    """A request with these tensors: datatype, rows and the rest of the shape."""
    message = pb.ModelInferRequest(model_name=name, id=identity)
    for number, (datatype, rows, rest) in enumerate(tensors):
        shape = [rows, *rest]
        message.inputs.add(name=f"t{number}", datatype=datatype, shape=shape)
        size = DATATYPES[datatype]
        for each in shape:
            size *= each
        message.raw_input_contents.append((fill * size)[:size])
    return bytes(message.SerializeToString())


@st.composite
def alike(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two requests that say the same of their tensors, which are others."""
    rows = draw(st.integers(1, 3))
    tensors = [(draw(st.sampled_from(sorted(DATATYPES))), rows, draw(SHAPES)) for _ in range(draw(st.integers(1, 3)))]
    first, second = (made("m", tensors, draw(st.binary(min_size=1, max_size=9))) for _ in range(2))
    return first, second


@given(alike())
def test_what_fits_an_outline_is_the_message_that_reading_it_finds(two):
    first, second = two
    outline = outlines.outline(first, read(first))
    assert outline is not None
    found, told = outline.read(second), read(second)
    assert found is not None
    assert (found.raw, found.id, found.is_listed, dict(found.ends)) == (told.raw, b"", False, {})
    assert (found.template.rows, found.template.sizes) == (told.template.rows, told.template.sizes)
    assert found.template.signature.key == told.template.signature.key


@given(alike(), st.data())
def test_a_byte_that_is_another_outside_the_tensors_is_never_overlooked(two, data):
    first, _ = two
    outline = outlines.outline(first, read(first))
    assert outline is not None
    at = data.draw(st.integers(0, len(first) - 1))
    other = bytes([*first[:at], first[at] ^ 0x01, *first[at + 1 :]])
    found = outline.read(other)
    if found is not None:
        assert found.raw == read(other).raw
        assert found.raw != read(first).raw


def test_only_messages_in_which_tensors_of_one_size_come_last_have_an_outline():
    without = [
        made("m", [("FP32", 1, [4])], b"x", identity="mine"),
        bytes(request(model_name="m", datatype="BYTES").SerializeToString()),
        made("m", [("UINT8", 1, [20_000])], b"x"),
        made("m" * 3000, [("FP32", 1, [4])], b"x"),
        made("m", [("FP32", 1, [4])], b"x") + pb.ModelInferRequest(model_version="1").SerializeToString(),
    ]
    listed = pb.ModelInferRequest(model_name="m")
    listed.inputs.add(name="t", datatype="INT64", shape=[1, 2]).contents.int64_contents.extend([1, 2])
    for body in (*without, listed.SerializeToString()):
        assert outlines.outline(body, read(body)) is None


def test_so_many_outlines_are_kept_whatever_callers_send():
    kept: outlines.Outlines[int] = outlines.Outlines()
    for number in range(2000):
        body = made(f"model-{number}", [("FP32", 1, [4])], b"x")
        outline = outlines.outline(body, read(body))
        assert outline is not None
        kept.put(body, outline, number)
        assert kept.find(body) == (read(body)._replace(template=outline.read(body).template), number)
        assert len(kept) <= 256


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_a_message_is_found_whatever_its_tensors_hold_and_beside_others_of_its_size(one, other):
    kept: outlines.Outlines[str] = outlines.Outlines()
    for name in ("a", "b", "c"):
        body = made(name, [("FP32", 1, [4])], one)
        kept.put(body, outlines.outline(body, read(body)), name)
    assert len(kept) == 3
    for name in ("a", "b", "c"):
        found = kept.find(made(name, [("FP32", 1, [4])], other))
        assert found is not None
        assert (found[0].raw, found[1]) == ([other], name)
    assert kept.find(made("d", [("FP32", 1, [4])], other)) is None
