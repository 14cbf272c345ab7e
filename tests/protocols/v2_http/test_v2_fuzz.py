"""Whatever arrives, it is taken or refused in one of the ways there are; what is taken never reaches into others."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface as wire
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_http import codec
from tests.protocols.v2_http import v2_server

FLAT = b'{"id":"1","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[1.5,2,3,4]}]}'
NESTED = b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1.5, 2], [3, 4]]}],"id":"1"}'
STRINGS = b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"BYTES","data":["a,b","]","\\"","{}"]}]}'
TWO = FLAT.replace(b"}]}", b'},{"name":"y","shape":[2],"datatype":"BOOL","data":[true,false]}]}')
HEAD = b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}]}'
WORDS = b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"BYTES","parameters":{"binary_data_size":20}}]}'
SEEDS = [
    (FLAT, None),
    (NESTED, None),
    (STRINGS, None),
    (TWO, None),
    (HEAD + struct.pack("<4f", 1, 2, 3, 4), len(HEAD)),
    (WORDS + b"".join(struct.pack("<I", 1) + each for each in (b"a", b"b", b"c", b"d")), len(WORDS)),
]
BITS = [
    b"[",
    b"]",
    b",",
    b",,",
    b"{",
    b"}",
    b'"',
    b"\\",
    b" ",
    b"1",
    b"-",
    b"[]",
    b"null",
    b"\xff",
    b"\0",
    b":",
    b'"a"',
]


@st.composite
def garbled(draw):
    """A good request with some bytes replaced, added or taken away."""
    body, size = draw(st.sampled_from(SEEDS))
    garbage = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(garbage) - 1)))
        gone = draw(st.sampled_from([0, 0, 1, 1, 2, 10, 1000]))
        garbage[at : at + gone] = draw(st.sampled_from(BITS) | st.just(b""))
    moved = draw(st.sampled_from([0, 0, 0, -1, 1, -1000, 1000, len(garbage) - len(body)]))
    return body, bytes(garbage), size, None if size is None else size + moved


def rows_of(spoken, parts):
    call = spoken.merge("the-batch", "/t", parts)
    request, rest = v2_server.take_apart(b"".join(call.body), dict(call.headers))
    return v2_server.read(request, "inputs", rest)


def values(tensor):
    return list(tensor.values) if tensor.datatype == "BYTES" else tensor.values.tolist()


@given(garbled(), st.booleans())
def test_garbled_request_is_refused_or_stays_within_its_own_rows(case, is_first):
    body, garbage, size, moved = case
    spoken = codec.Codec(models.ModelInfo(), lambda: None)
    good = spoken.parse(body, 100, size)
    try:
        odd = spoken.parse(garbage, 100, moved)
    except (errors.BadRequest, errors.Unbatchable, errors.PayloadTooLarge):
        return
    if odd.key != good.key:
        return
    order = [odd, good] if is_first else [good, odd]
    parts = [
        messages.Part(messages.Request(each.key, each.row_count, payload=each), 0, each.row_count) for each in order
    ]
    alone = rows_of(spoken, [parts[is_first]])
    with contextlib.suppress(errors.NotMergeable, ValueError, TypeError, AttributeError):  # odd data, for numpy too
        together = rows_of(spoken, parts)
        for mine, all_rows in zip(alone, together, strict=True):
            count = len(values(mine))
            found = values(all_rows)
            assert (found[-count:] if is_first else found[:count]) == values(mine)
            assert len(found) == np.prod(all_rows.shape, dtype=int)


@st.composite
def garbled_answers(draw):
    tensor = {"name": "y", "shape": [2, 2], "datatype": draw(st.sampled_from(["FP32", "BYTES", "NEW"]))}
    data = draw(st.sampled_from([b"", struct.pack("<4f", 1, 2, 3, 4), b"\0\0\0\0" * 4]))
    said = {"parameters": {"binary_data_size": len(data)}} if data else {"data": [[1, 2], [3, 4]]}
    head = json.dumps({"model_name": "m", "outputs": [tensor | said]}).encode()
    garbage = bytearray(head + data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(garbage) - 1)))
        garbage[at : at + draw(st.integers(0, 3))] = draw(st.sampled_from(BITS))
    size = len(head) + draw(st.sampled_from([0, 0, 0, 1, -1]))
    headers = {b"inference-header-content-length": b"%d" % size} if data else {}
    return wire.UpstreamResponse(bytes(garbage), headers)


@given(garbled_answers(), st.booleans())
def test_garbled_answer_is_refused_or_can_be_shared_out(reply, wants_binary):
    spoken = codec.Codec(models.ModelInfo(), lambda: None)
    asked = FLAT.replace(
        b"}]}", b'}],"parameters":{"binary_data_output":%b}}' % (b"true" if wants_binary else b"false")
    )
    payloads = [
        spoken.parse(body, 100) for body in (FLAT.replace(b"[2,2]", b"[1,4]"), asked.replace(b"[2,2]", b"[1,4]"))
    ]
    parts = [messages.Part(messages.Request(each.key, 1, payload=each), 0, 1) for each in payloads]
    try:
        rows = spoken.merge("the-batch", "/t", parts).read(reply).rows
    except errors.UpstreamBroken:
        return
    assert len(rows) == 2
    for at, payload in enumerate(payloads):
        content = payload.response_format.render([messages.Piece(0, "b", rows[at : at + 1])])
        message, _ = v2_server.take_apart(b"".join(content.body), dict(content.headers))
        assert message["id"] == "1"
        assert all(output["shape"][0] == 1 for output in message["outputs"])
