"""What each member of a batch gets is what it would have got alone, whatever else is in the batch."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_http import codec, tensors
from tests.protocols.v2_http import v2_server

DATATYPES = [*v2_server.DTYPES, "BYTES"]
TARGET = "/v2/models/m/infer"


class Spec(NamedTuple):
    """An input that all callers have."""

    name: str
    datatype: str
    tail: list[int]


class Caller(NamedTuple):
    body: bytes
    json_size: int | None
    rows: int


class Exchanges:
    """A codec in front of a server, and what they said."""

    def __init__(self, is_nested: bool = False) -> None:
        self.codec = codec.Codec(models.ModelInfo(), self.uneven)
        self.is_nested = is_nested

    def uneven(self) -> None:
        pytest.fail("all outputs are even")

    def parse(self, caller: Caller) -> Any:
        return self.codec.parse(caller.body, 100, caller.json_size)

    def exchange(self, parts: list[messages.Part]) -> Any:
        call = self.codec.merge("the-batch", TARGET, parts)
        assert call.target == TARGET
        reply = v2_server.serve(b"".join(call.body), dict(call.headers), self.is_nested)
        answer = call.read(reply)
        assert len(answer.rows) == sum(part.stop - part.start for part in parts)
        return answer.rows

    def alone(self, caller: Caller) -> v2_server.Received:
        payload = self.parse(caller)
        rows = self.exchange([part_of(payload, 0, caller.rows)])
        return received(payload.response_format, [messages.Piece(0, "b", rows[0 : caller.rows])])


def received(form: Any, pieces: list[messages.Piece]) -> v2_server.Received:
    """What a caller gets, whichever way its answer is made."""
    rendered = form.render(pieces)
    text = form.text(pieces[0].predictions) if len(pieces) == 1 else None
    assert text is None or (text, tensors.JSON) == (b"".join(rendered.body), rendered.headers)
    return v2_server.receive(rendered)


def part_of(payload: Any, start: int, stop: int) -> messages.Part:
    return messages.Part(messages.Request(payload.key, payload.row_count, payload=payload), start, stop)


def values(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BYTES":
        return st.text(max_size=5).map(str.encode)
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "FP32":  # as a caller may write them in JSON: with more digits than an FP32 has
        return st.floats(-1e38, 1e38) | st.floats(-10, 10, width=32)
    if datatype == "FP16":
        return st.floats(-60000, 60000, width=16)
    if datatype == "FP64":
        return st.floats(allow_nan=False, allow_infinity=False)
    limits = np.iinfo(v2_server.DTYPES[datatype])
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def specs(draw: st.DrawFn) -> list[Spec]:
    names = draw(st.lists(st.sampled_from(["x", "y", 'q"\\', "é", "data"]), min_size=1, max_size=3, unique=True))
    tails = st.lists(st.integers(0, 3), max_size=2)
    return [Spec(name, draw(st.sampled_from(DATATYPES)), draw(tails)) for name in names]


@st.composite
def callers(draw: st.DrawFn, inputs: list[Spec], listed: list[str] | None) -> Caller:
    rows = draw(st.integers(1, 4))
    has_half = any(spec.datatype in ("FP16", "BF16") for spec in inputs)
    told: list[dict[str, Any]] = []
    binary = b""
    for spec in inputs:
        shape = [rows, *spec.tail]
        count = math.prod(shape)
        data = draw(st.lists(values(spec.datatype), min_size=count, max_size=count))
        told.append({"name": spec.name, "shape": shape, "datatype": spec.datatype})
        if spec.datatype in ("FP16", "BF16") or draw(st.booleans()):
            tensor = v2_server.Tensor(spec.name, spec.datatype, shape, data)
            if spec.datatype != "BYTES":
                tensor = tensor._replace(values=np.array(data, v2_server.DTYPES[spec.datatype]))
            packed = v2_server.pack(tensor)
            told[-1]["parameters"] = {"binary_data_size": len(packed)}
            binary += packed
        else:
            written = [each.decode() for each in data] if spec.datatype == "BYTES" else data
            told[-1]["data"] = v2_server.nest(written, shape) if draw(st.booleans()) else written
        if draw(st.booleans()):  # members come in any order
            told[-1] = dict(reversed(told[-1].items()))
    request: dict[str, Any] = {"inputs": told}
    if has_half or draw(st.booleans()):
        request["parameters"] = {"binary_data_output": has_half or draw(st.booleans())}
    if listed is not None:
        request["outputs"] = [
            {"name": name, "parameters": {"binary_data": has_half or draw(st.booleans())}} for name in listed
        ]
    ident = draw(st.none() | st.sampled_from(["1", "a,b", 'é"\\', "}]"]))
    if ident is not None:
        request = {"id": ident, **request} if draw(st.booleans()) else {**request, "id": ident}
    style = draw(st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]))
    text = json.dumps(request, **style).encode()
    is_binary = any("data" not in each for each in told)
    return Caller(text + binary, len(text) if is_binary or draw(st.booleans()) else None, rows)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Caller], list[list[tuple[int, int, int]]]]:
    """Callers who may share batches, and batches of (caller, start, stop)."""
    inputs = draw(specs())
    names = [spec.name for spec in inputs] + [f"{spec.name}_next" for spec in inputs]
    listed = draw(st.none() | st.lists(st.sampled_from(names), unique=True, min_size=1))
    found = draw(st.lists(callers(inputs, listed), min_size=1, max_size=5))
    parts = []
    for number, caller in enumerate(found):
        cuts = sorted({0, caller.rows, *draw(st.lists(st.integers(0, caller.rows), max_size=2))})
        parts += [(number, start, stop) for start, stop in itertools.pairwise(cuts)]
    ends = sorted({0, len(parts), *draw(st.lists(st.integers(0, len(parts)), max_size=3))})
    return found, [parts[start:stop] for start, stop in itertools.pairwise(ends)]


@given(scenes(), st.booleans())
def test_each_member_gets_what_it_would_have_got_alone(scene, is_nested):
    members, batches = scene
    exchanges = Exchanges(is_nested)
    alone = [exchanges.alone(caller) for caller in members]
    payloads = [exchanges.parse(caller) for caller in members]
    assert len({payload.key for payload in payloads}) == 1
    pieces: dict[int, list[messages.Piece]] = {}
    for number, batch in enumerate(batches):
        rows, at = exchanges.exchange([part_of(payloads[who], start, stop) for who, start, stop in batch]), 0
        for who, start, stop in batch:
            share = rows[at : at + stop - start]
            pieces.setdefault(who, []).append(messages.Piece(start, f"b{number}", share))
            at += stop - start
    for who, payload in enumerate(payloads):
        found = received(payload.response_format, pieces[who])
        assert found.others == alone[who].others
        assert [each.same for each in found.tensors] == [each.same for each in alone[who].tensors]
        assert found.are_binary == alone[who].are_binary
