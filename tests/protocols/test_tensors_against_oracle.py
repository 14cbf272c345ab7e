"""Of v2 in JSON, in binary and over gRPC: who shares a call, and that each caller gets what it would have got alone."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_grpc import tensors as grpc_tensors
from carpool_sidecar.protocols.v2_http import codec as http_codec
from tests.protocols.v2_grpc import echo_model
from tests.protocols.v2_grpc.test_grpc_tensors import as_list
from tests.protocols.v2_http import v2_server

TARGET = "/v2/models/m/infer"
HALVES = ("FP16", "BF16")  # of these JSON has none


class Origin(NamedTuple):
    """What has to agree in a call: inputs, with their datatypes and all dimensions but the first, and what is asked."""

    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    parameters: tuple[tuple[str, int], ...]
    outputs: tuple[str, ...] | None


class Asked(NamedTuple):
    """One request: `data` are its inputs, and `given` their elements as in JSON: with more digits than an FP32 has."""

    origin: Origin
    ident: str
    rows: int
    data: Sequence[v2_server.Tensor]
    given: Sequence[list[Any]]


class Caller(NamedTuple):
    asked: Asked
    body: bytes
    json_size: int | None = None


# --- requests ---------------------------------------------------------------------------------------------------


def values(datatype: str, is_text: bool) -> st.SearchStrategy[Any]:
    if datatype == "BYTES":
        return st.text(max_size=5).map(str.encode) if is_text else st.binary(max_size=5)
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "FP32":
        return st.floats(-1e38, 1e38) | st.floats(width=32)
    if datatype in ("FP16", "FP64"):
        return st.floats(width=16 if datatype == "FP16" else 64)
    limits = np.iinfo(v2_server.DTYPES[datatype])
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def origins(draw: st.DrawFn) -> Origin:
    names = draw(st.lists(st.sampled_from(["x", "y", 'q"\\', "é", "data"]), min_size=1, max_size=3, unique=True))
    tails = st.lists(st.integers(0, 3), max_size=2).map(tuple)
    inputs = tuple((name, draw(st.sampled_from([*v2_server.DTYPES, "BYTES"])), draw(tails)) for name in names)
    listed = draw(st.none() | st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple))
    return Origin(inputs, draw(st.sampled_from([(), (), (("p", 7),)])), listed)


@st.composite
def neighbours(draw: st.DrawFn, origin: Origin) -> Origin:
    """One that differs in one thing."""
    (name, datatype, tail), *others = origin.inputs
    other = "INT32" if datatype != "INT32" else "UINT32"
    return draw(
        st.sampled_from(
            [
                origin._replace(inputs=((name, other, tail), *others)),
                origin._replace(inputs=((name, datatype, (*tail, 1)), *others)),
                origin._replace(inputs=(("z", datatype, tail), *others), outputs=None),
                origin._replace(inputs=tuple(reversed(origin.inputs))),
                origin._replace(parameters=(("p", 8),)),
                origin._replace(outputs=(name,)),
            ]
        )
    )


@st.composite
def requests(draw: st.DrawFn, origin: Origin, is_text: bool) -> Asked:
    rows = draw(st.integers(1, 4))
    data, given_ = [], []
    for name, datatype, tail in origin.inputs:
        count = rows * math.prod(tail)
        found = draw(st.lists(values(datatype, is_text), min_size=count, max_size=count))
        array: Any = found if datatype == "BYTES" else np.array(found, v2_server.DTYPES[datatype])
        data.append(v2_server.Tensor(name, datatype, [rows, *tail], array))
        given_.append([each.decode(errors="replace") for each in found] if datatype == "BYTES" else found)
    return Asked(origin, draw(st.sampled_from(["", "1", "a,b", 'é"\\', "}]", "x" * 300])), rows, data, given_)


# --- both protocols ---------------------------------------------------------------------------------------------


class Http:
    """JSON, with binary data or without, as each caller likes."""

    def __init__(self, is_nested: bool) -> None:
        self.codec: Any = http_codec.Codec(models.ModelInfo(), uneven)
        self._is_nested = is_nested  # how the server writes lists

    @staticmethod
    @st.composite
    def written(draw: st.DrawFn, asked: Asked) -> Caller:
        inputs: list[dict[str, Any]] = []
        binary = b""
        has_half = any(each.datatype in HALVES for each in asked.data)
        for each, listed in zip(asked.data, asked.given, strict=True):
            told: dict[str, Any] = {"name": each.name, "shape": each.shape, "datatype": each.datatype}
            if each.datatype in HALVES or draw(st.booleans()):
                packed = v2_server.pack(each)
                told["parameters"] = {"binary_data_size": len(packed)}
                binary += packed
            else:
                told["data"] = v2_server.nest(listed, each.shape) if draw(st.booleans()) else listed
            inputs.append(dict(reversed(told.items())) if draw(st.booleans()) else told)  # members come in any order
        request: dict[str, Any] = {"inputs": inputs}
        parameters: dict[str, Any] = dict(asked.origin.parameters)
        if has_half or draw(st.booleans()):
            parameters["binary_data_output"] = has_half or draw(st.booleans())
        if parameters:
            request["parameters"] = parameters
        if asked.origin.outputs is not None:
            wants = [
                {"name": name, "parameters": {"binary_data": has_half or draw(st.booleans())}}
                for name in asked.origin.outputs
            ]
            request["outputs"] = wants
        if asked.ident:
            request = {"id": asked.ident, **request} if draw(st.booleans()) else {**request, "id": asked.ident}
        style = draw(st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]))
        text = json.dumps(request, **style).encode()
        is_binary = any("data" not in each for each in inputs)
        return Caller(asked, text + binary, len(text) if is_binary or draw(st.booleans()) else None)

    def predict(self, body: bytes, headers: interface.Headers) -> interface.UpstreamResponse:
        return v2_server.serve(body, dict(headers), self._is_nested)

    def alone(self, caller: Caller) -> interface.RenderedResponse:
        kind = "application/json" if caller.json_size is None else "application/octet-stream"
        size = () if caller.json_size is None else ((v2_server.HEADER, str(caller.json_size)),)
        reply = self.predict(caller.body, (("Content-Type", kind), *size))
        return interface.RenderedResponse(
            tuple((each.decode().title(), value.decode()) for each, value in reply.headers.items()), (reply.body,)
        )

    def told(self, shown: interface.RenderedResponse) -> Any:
        """What a caller can tell of an answer, to the last bit."""
        found = v2_server.receive(shown)
        return found.others, [each.same for each in found.tensors], found.are_binary


class Grpc:
    """Raw contents or typed ones, as each caller likes; the server answers as it is asked, or always raw, as Triton."""

    def __init__(self, is_triton: bool) -> None:
        self.codec: Any = grpc_codec.Codec(models.ModelInfo(max_batch_size=1000 if is_triton else None), uneven)
        self._predict = functools.partial(echo_model.answer, is_always_raw=is_triton)

    @staticmethod
    @st.composite
    def written(draw: st.DrawFn, asked: Asked) -> Caller:
        request = pb.ModelInferRequest(model_name="m", id=asked.ident)
        for name, value in asked.origin.parameters:
            request.parameters[name].int64_param = value
        is_listed = grpc_tensors.has_lists([each.datatype for each in asked.data]) and draw(st.booleans())
        for each in asked.data:
            tensor = request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
            raw = v2_server.pack(each)
            if is_listed:
                tensor.contents.CopyFrom(as_list(raw, each.datatype))
            else:
                request.raw_input_contents.append(raw)
        for name in asked.origin.outputs or ():
            request.outputs.add(name=name)
        return Caller(asked, request.SerializeToString())

    def predict(self, body: bytes, headers: interface.Headers = ()) -> interface.UpstreamResponse:
        return interface.UpstreamResponse(self._predict(body), {})

    def alone(self, caller: Caller) -> interface.RenderedResponse:
        return interface.RenderedResponse((), (self.predict(caller.body).body,))

    def told(self, shown: interface.RenderedResponse) -> Any:
        return pb.ModelInferResponse.FromString(b"".join(shown.body)).SerializeToString(deterministic=True)


def uneven() -> None:
    pytest.fail("all outputs are even")


@st.composite
def crowds(draw: st.DrawFn, protocol: type[Http | Grpc], most: int = 5) -> list[Caller]:
    """Callers of one model, who may differ in more than their rows."""
    first = draw(origins())
    known = st.sampled_from([first, first, draw(neighbours(first))])
    asked = [draw(requests(draw(known), protocol is Http)) for _ in range(draw(st.integers(1, most)))]
    return [draw(protocol.written(each)) for each in asked]


@st.composite
def batches(draw: st.DrawFn, callers: Sequence[Caller], group: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """All rows of callers that share a key in calls of (caller, start, stop)."""
    parts = []
    for who in group:
        rows = callers[who].asked.rows
        cuts = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=2))})
        parts += [(who, start, stop) for start, stop in itertools.pairwise(cuts)]
    ends = sorted({0, len(parts), *draw(st.lists(st.integers(0, len(parts)), max_size=3))})
    return [parts[start:stop] for start, stop in itertools.pairwise(ends)]


@pytest.mark.parametrize("protocol", [Http, Grpc])
@given(data=st.data(), is_odd=st.booleans())
def test_each_caller_gets_what_it_would_get_alone(
    protocol: Callable[[bool], Any], data: st.DataObject, is_odd: bool
) -> None:
    talk = protocol(is_odd)
    callers = data.draw(crowds(protocol))  # type: ignore[arg-type]
    payloads = [talk.codec.parse(each.body, 100, each.json_size) for each in callers]
    groups: dict[Any, list[int]] = {}
    for who, caller in enumerate(callers):
        groups.setdefault(payloads[who].key, []).append(who)
        for other, beside in enumerate(callers):
            assert (payloads[who].key == payloads[other].key) == (caller.asked.origin == beside.asked.origin)
    for group in groups.values():
        pieces: dict[int, list[messages.Piece]] = {who: [] for who in group}
        for number, batch in enumerate(data.draw(batches(callers, group))):
            try:
                rows = exchange(talk, [(payloads[who], start, stop) for who, start, stop in batch])
            except errors.NotMergeable:
                event("sent apart")
                assert len({who for who, _, _ in batch}) > 1
                break
            at = 0
            for who, start, stop in batch:
                pieces[who].append(messages.Piece(start, f"b{number}", rows[at : at + stop - start]))
                at += stop - start
            assert len(rows) == at
        else:
            event(f"{len(group)} callers of one key")
            for who in group:
                shown = payloads[who].response_format.render(pieces[who])
                assert talk.told(shown) == talk.told(talk.alone(callers[who]))


def exchange(talk: Any, parts: Sequence[tuple[Any, int, int]]) -> Any:
    """The rows that a call is answered."""
    requests = [
        messages.Part(messages.Request(payload.key, payload.row_count, payload=payload), start, stop)
        for payload, start, stop in parts
    ]
    call = talk.codec.merge("the-batch", TARGET, requests)
    return call.read(talk.predict(b"".join(call.body), call.headers)).rows


@given(data=st.data())
def test_the_sizes_of_rows_over_grpc_are_those_of_their_tensors(data: st.DataObject) -> None:
    (caller,) = data.draw(crowds(Grpc, most=1))
    payload, rows = Grpc(False).codec.parse(caller.body, 100), caller.asked.rows
    sizes = [0] * rows
    for tensor in caller.asked.data:
        width = len(tensor.values) // rows
        for row in range(rows):
            sizes[row] += len(v2_server.pack(tensor._replace(values=tensor.values[row * width : (row + 1) * width])))
    assert payload.row_sizes(0, rows) == sizes
    assert [payload.row_sizes(row, row + 1) for row in range(rows)] == [[size] for size in sizes]
    assert len(payload.row_lengths(0, rows)) == rows
