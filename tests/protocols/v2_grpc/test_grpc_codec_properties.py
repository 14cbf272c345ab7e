"""What a caller gets out of any batch is what it would have got alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies
from tritonclient.grpc import service_pb2 as pb

from carpool.scheduling import messages
from carpool_sidecar.protocols import models, v2
from carpool_sidecar.protocols.v2_grpc import codec, tensors
from tests.protocols.v2_grpc import echo_model
from tests.protocols.v2_grpc.test_grpc_tensors import as_list, raw_tensors

TRITON = models.ModelInfo(max_batch_size=1000)
OTHERS = models.ModelInfo()


class Column(NamedTuple):
    name: str
    datatype: str
    shape: tuple[int, ...]


@strategies.composite
def columns(draw: Any) -> list[Column]:
    names = draw(strategies.lists(strategies.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    datatypes = strategies.sampled_from(sorted(v2.DATATYPES))
    shapes = strategies.lists(strategies.integers(0, 3), max_size=2).map(tuple)
    return [Column(name, draw(datatypes), draw(shapes)) for name in names]


@strategies.composite
def requests(draw: Any, inputs: Sequence[Column], outputs: Sequence[str]) -> Any:
    rows = draw(strategies.integers(1, 4))
    request = pb.ModelInferRequest(model_name="m", id=draw(strategies.sampled_from(("", "1", "ü" * 70, "x" * 300))))
    request.parameters["p"].int64_param = 7
    is_listed = tensors.has_lists([column.datatype for column in inputs]) and draw(strategies.booleans())
    for column in inputs:
        shape = (rows, *column.shape)
        tensor = request.inputs.add(name=column.name, datatype=column.datatype, shape=shape)
        count = functools.reduce(int.__mul__, shape)
        raw = draw(raw_tensors(column.datatype, count))
        if is_listed:
            tensor.contents.CopyFrom(as_list(raw, column.datatype))
        else:
            request.raw_input_contents.append(raw)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def cut(payloads: Sequence[codec.Payload], cuts: Sequence[int]) -> list[list[messages.Part]]:
    """All rows in order, in batches that end at these places."""
    batches: list[list[messages.Part]] = []
    places, at = sorted({0, *cuts, sum(each.row_count for each in payloads)}), 0
    bounds = list(itertools.pairwise(places))
    batches = [[] for _ in bounds]
    for payload in payloads:
        for batch, (start, stop) in zip(batches, bounds, strict=True):
            first, last = max(start - at, 0), min(stop - at, payload.row_count)
            if first < last:
                batch.append(echo_model.part(payload, first, last))
        at += payload.row_count
    return batches


@hypothesis.given(strategies.data(), columns(), strategies.booleans())
def test_each_member_gets_what_it_would_have_got_alone(data, inputs, is_triton) -> None:
    predict = functools.partial(echo_model.answer, is_always_raw=is_triton)
    outputs = data.draw(strategies.lists(strategies.sampled_from([column.name for column in inputs]), unique=True))
    members = data.draw(strategies.lists(requests(inputs, outputs), min_size=1, max_size=4))
    talk = codec.Codec(TRITON if is_triton else OTHERS, lambda: None)
    payloads = [talk.parse(each.SerializeToString(), 1000) for each in members]
    assert len({payload.key for payload in payloads}) == 1
    cuts = data.draw(strategies.lists(strategies.integers(0, sum(each.row_count for each in payloads)), max_size=4))

    pieces: dict[int, list[messages.Piece]] = {id(payload): [] for payload in payloads}
    for parts in cut(payloads, cuts):
        for part, piece in zip(parts, echo_model.exchange(talk, parts, predict), strict=True):
            pieces[id(part.request.payload)].append(piece)

    for member, payload in zip(members, payloads, strict=True):
        alone = pb.ModelInferResponse.FromString(predict(member.SerializeToString()))
        told = echo_model.rendered(payload, pieces[id(payload)])
        assert told.SerializeToString(deterministic=True) == alone.SerializeToString(deterministic=True)


@hypothesis.given(strategies.data(), columns())
def test_the_sizes_of_rows_are_those_of_their_tensors(data, inputs) -> None:
    request = data.draw(requests(inputs, ()))
    payload = codec.Codec(OTHERS, lambda: None).parse(request.SerializeToString(), 1000)
    rows = payload.row_count
    assert sum(payload.row_sizes(0, rows)) == sum(map(len, payload.message.raw))
    single = [echo_model.part(payload, row, row + 1) for row in range(rows)]
    for row, part in enumerate(single):
        cuts = [payload.message.cut(index, part.start, part.stop) for index in range(len(inputs))]
        assert payload.row_sizes(row, row + 1) == [sum(map(len, cuts))]
    assert len(payload.row_lengths(0, rows)) == rows
