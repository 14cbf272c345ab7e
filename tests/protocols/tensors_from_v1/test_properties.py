"""What must hold for any model and any instances."""

from __future__ import annotations

import contextlib
import fractions
import json
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from carpool_sidecar import errors
from tests.protocols.tensors_from_v1.model import Model

FLOATS = {"FP16": ("<f2", 16), "FP32": ("<f4", 32), "FP64": ("<f8", 64)}
INTEGERS = {
    f"{sign}INT{bits}": f"<{kind}{bits // 8}" for sign, kind in (("", "i"), ("U", "u")) for bits in (8, 16, 32, 64)
}
DTYPES = {"BOOL": "?", **INTEGERS, **{name: dtype for name, (dtype, _) in FLOATS.items()}}


def values(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(st.characters(codec="utf-8"), max_size=8)
    if datatype in INTEGERS:
        limits = np.iinfo(INTEGERS[datatype])
        return st.integers(int(limits.min), int(limits.max))
    return st.floats(width=FLOATS[datatype][1], allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]


def nested(datatype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Lists of values of this shape."""
    strategy = values(datatype)
    for size in reversed(shape):
        strategy = st.lists(strategy, min_size=size, max_size=size)
    return strategy


class Inputs:
    """A model's inputs, and requests for it: `requests[i]` is a list of instances, each a value for every input."""

    def __init__(self, specs: list[tuple[str, str, tuple[int, ...], tuple[int, ...]]], requests: Any) -> None:
        self.specs = specs  # name, datatype, what an instance has, what the metadata says of that
        self.requests = requests
        self.model = Model(*((name, datatype, (-1, *told)) for name, datatype, _, told in specs))

    def body(self, request: Any, draw_columns: bool = False) -> bytes:
        names = [name for name, *_ in self.specs]
        if draw_columns:
            written: Any = {"inputs": {name: [row[at] for row in request] for at, name in enumerate(names)}}
        elif len(names) == 1:
            written = {"instances": [row[0] for row in request]}
        else:
            written = {"instances": [dict(zip(names, row, strict=True)) for row in request]}
        return json.dumps(written, ensure_ascii=False).encode()


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    specs = []
    for number in range(draw(st.integers(1, 3))):
        datatype = draw(st.sampled_from([*DTYPES, "BYTES"]))
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
        shape += draw(st.sampled_from([(), (), (0,)]))  # lists of no lists cannot say what those would have been
        told = tuple(draw(st.sampled_from([size, -1])) for size in shape)
        specs.append((f"in {number}", datatype, shape, told))
    row = st.tuples(*(nested(datatype, shape) for _, datatype, shape, _ in specs))
    return Inputs(specs, draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=4)))


def refusal(model: Model, body: bytes) -> str | None:
    try:
        model.parse(body)
    except errors.BadRequest as error:
        return str(error)
    return None


@given(inputs(), st.booleans())
def test_tensors_are_what_numpy_reads(some: Inputs, in_columns: bool) -> None:
    for request in some.requests:
        payload = some.model.parse(some.body(request, in_columns))
        for at, (column, (name, datatype, shape, _)) in enumerate(zip(payload.columns, some.specs, strict=True)):
            assert (column.name, column.shape, column.rows) == (name, shape, len(request))
            if datatype != "BYTES":
                assert column.data == np.array([row[at] for row in request], DTYPES[datatype]).tobytes()
            else:
                assert len(column.data) >= 4 * len(request) * math.prod(shape)


@given(inputs(), st.data())
def test_every_member_of_a_batch_gets_what_it_would_have_got_alone(some: Inputs, data: st.DataObject) -> None:
    payloads = [some.model.parse(some.body(request)) for request in some.requests]
    assert len({payload.key for payload in payloads}) == 1
    alone = [some.model.call((payload, 0, payload.row_count)) for payload in payloads]
    parts = []
    for payload in payloads:
        start = data.draw(st.integers(0, payload.row_count - 1))
        parts.append((payload, start, data.draw(st.integers(start + 1, payload.row_count))))
    together = some.model.call(*parts)
    assert together == [row for rows, (_, start, stop) in zip(alone, parts, strict=True) for row in rows[start:stop]]
    assert [tensor.shape[0] for tensor in some.model.transport.calls[-1]] == [len(together)] * len(some.specs)


@given(inputs())
def test_a_model_that_gives_back_its_inputs_gives_back_the_instances(some: Inputs) -> None:
    for request in some.requests:
        payload = some.model.parse(some.body(request))
        told = [json.loads(row) for row in some.model.call((payload, 0, payload.row_count))]
        wanted = json.loads(some.body(request))["instances"]
        assert told == wanted or any(datatype in ("FP16", "FP32") for _, datatype, *_ in some.specs)
        again = some.model.parse(json.dumps({"instances": told}).encode())
        assert [column.data for column in again.columns] == [column.data for column in payload.columns]


@given(digits=st.integers(-(10**20), 10**20), exponent=st.integers(-22, 4) | st.just(-400), zeros=st.integers(0, 20))
def test_an_integer_is_what_was_written_or_refused(digits: int, exponent: int, zeros: int) -> None:
    model = Model(("a", "INT64", (-1,)))
    exact = fractions.Fraction(digits) * fractions.Fraction(10) ** exponent
    for written in (f"{digits}e{exponent}", f"{digits}.{'0' * zeros}E{exponent}" if zeros else f"{digits}E{exponent}"):
        body = b'{"instances":[%b]}' % written.encode()
        if exact.denominator == 1 and -(2**63) <= exact < 2**63:
            assert np.frombuffer(model.parse(body).columns[0].data, "<i8").tolist() == [exact]
        else:
            assert refusal(model, body) is not None


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["in 0", "in 1", "b64", "x"]), inner),
)


@given(inputs(), st.lists(_JSON, max_size=4), st.sampled_from(["instances", "inputs"]))
def test_whatever_else_callers_send_is_a_bad_request_or_fine(some: Inputs, rows: list[Any], member: str) -> None:
    with contextlib.suppress(errors.BadRequest):
        payload = some.model.parse({member: rows})
        assert payload.row_count == len(rows)
        assert len(some.model.call((payload, 0, len(rows)))) == len(rows)


@given(inputs(), st.dictionaries(st.sampled_from(["in 0", "in 1", "x"]), _JSON))
def test_whatever_columns_callers_send_are_a_bad_request_or_fine(some: Inputs, columns: dict[str, Any]) -> None:
    with contextlib.suppress(errors.BadRequest):
        assert some.model.parse({"inputs": columns}).row_count > 0


@given(inputs(), st.data())
def test_a_value_put_in_anothers_place_is_told_by_instance_or_fine(some: Inputs, data: st.DataObject) -> None:
    request = data.draw(st.sampled_from(some.requests))
    row = data.draw(st.integers(0, len(request) - 1))
    at = data.draw(st.integers(0, len(some.specs) - 1))
    spoilt = [[*each] for each in request]
    spoilt[row][at] = data.draw(_JSON)
    told = refusal(some.model, some.body(spoilt))
    assert told is None or told.startswith("instance ")
