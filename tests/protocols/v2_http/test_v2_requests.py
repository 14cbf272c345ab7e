"""A request is taken apart, or refused with the place and the reason, or passed on: nothing wrong gets into a batch."""

from __future__ import annotations

import json
import struct

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_http import codec

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
BINARY = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}


def body_of(*inputs, **others):
    return json.dumps({"inputs": list(inputs), **others}).encode()


def parse(body, json_size=None, max_rows=100):
    return codec.Reader().parse(body, max_rows, json_size)


def strings(*elements):
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"[1]", "Expected `object`"),
        (b"{}", "missing required field `inputs`"),
        (b'{"inputs":5}', "`$.inputs`"),
        (b'{"inputs":[5]}', "`$.inputs[0]`"),
        (b'{"inputs":[{]}', "byte 12"),
        (body_of(X) + b" x", "trailing characters"),
        (body_of(X, {"name": "y"}), "inputs[1].datatype must be a string"),
        (body_of(X | {"name": 3}), "inputs[0].name must be a string"),
        (body_of(X | {"parameters": 3}), "inputs[0].parameters must be an object"),
        (body_of(X, parameters=3), "parameters must be an object"),
        (body_of(X, outputs=3), "'outputs' must be a list of objects"),
        (body_of(X, outputs=[{}]), "outputs[0].name must be a string"),
        (body_of(BINARY | {"data": [1, 2]}), "and not both"),
        (body_of(BINARY), "need the header Inference-Header-Content-Length"),
        (body_of(X).replace(b'"name"', b'"data": [1, 2], "name"'), "duplicate member 'data'"),
        (body_of(X).replace(b'"name"', b'"n\\u0061me": "x", "name"'), "duplicate member 'name'"),
        (b'{"id":"1",' + body_of(X, id="1")[1:], "duplicate member 'id'"),
        (body_of(X)[:-1] + b',"id":"1","id":"2"}', "duplicate member 'id'"),
        (body_of(X, parameters={}).replace(b"{}", b'{"a":1,"a":2}'), "duplicate member 'a'"),
        (body_of(X).replace(b'"x"', b'"\xff"'), "not valid UTF-8 (byte 22)"),
        (body_of(X | {"datatype": "BYTES", "data": ["a", "b"]}).replace(b'"a"', b'"\xff"'), "not valid UTF-8"),
        (body_of(X | {"datatype": "BYTES", "data": ["\ud800", "b"]}).replace(b"d800", b"d8"), "unicode escape"),
        (b'{"inputs":[{"a":' + b"[" * 1_000_000, "nested too deeply"),
    ],
)
def test_malformed_request_is_refused_with_the_place_and_the_reason(body, words):
    with pytest.raises(errors.BadRequest) as caught:
        parse(body)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("what", "rest", "words"),
    [
        (BINARY, b"1234567", "7 bytes after"),
        (BINARY, b"123456789", "binary_data_size is 8"),
        (BINARY | {"parameters": {"binary_data_size": -8}}, b"", "must be a number of bytes, not -8"),
        (BINARY | {"parameters": {"binary_data_size": 8.0}}, b"12345678", "must be a number of bytes"),
    ],
)
def test_binary_data_that_the_body_has_more_or_less_of_than_it_says_are_refused(what, rest, words):
    head = body_of(what)
    with pytest.raises(errors.BadRequest) as caught:
        parse(head + rest, len(head))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("what", "rest"),
    [
        (BINARY | {"shape": [1, 3]}, b"12345678"),
        (BINARY | {"shape": [-1, 2]}, b"12345678"),
        (BINARY | {"shape": -1}, b"12345678"),
        (BINARY | {"datatype": "BYTES"}, b"\x01\0\0\0a\1\0\0"),
        (BINARY | {"datatype": "BYTES"}, b"\x04\0\0\0abcd"),
        (BINARY | {"datatype": "BYTES"}, b"\xff\xff\xff\xffabcd"),
    ],
)
def test_binary_data_that_do_not_fill_their_shape_are_passed_on(what, rest):
    head = body_of(what)
    reader = codec.Reader()
    for _ in range(2):  # the same when the text is known
        with pytest.raises(errors.Unbatchable, match="shape"):
            reader.parse(head + rest, 100, len(head))


@pytest.mark.parametrize("size", [-1, 10_000])
def test_size_of_the_json_that_cannot_be_is_refused(size):
    with pytest.raises(errors.BadRequest, match="Inference-Header-Content-Length is"):
        parse(body_of(X), size)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (body_of(), "shape"),
        (body_of(X | {"shape": []}), "shape"),
        (body_of(X | {"shape": [0, 2], "data": []}), "shape"),
        (body_of(X, X | {"name": "y", "shape": [2, 1]}), "shape"),
        (body_of(X).replace(b"[1, 2], ", b"[1, -2], "), "shape"),
        (body_of(X | {"shape": 3}), "shape"),
        (body_of(X | {"shape": [1, 10**4200, 10**4200]}), "shape"),
        (body_of(X | {"shape": [1, *[10**18] * 300]}), "shape"),
        (body_of(BINARY | {"shape": [1, 2**63, 0]}), "shape"),
        (body_of(X | {"shape": [1.5]}), "shape"),
        (body_of(X | {"data": 3}), "shape"),
        (body_of({name: X[name] for name in ("name", "shape", "datatype")}), "shape"),
        (body_of(X | {"data": [1, 2, 3]}), "shape"),
        (body_of(X | {"data": []}), "shape"),
        (body_of(X | {"data": [[1], [], []]}), "shape"),
        (body_of(X | {"data": [" , ", [[]]]}), "shape"),
        (body_of(X).replace(b"[1, 2]}", b"[ [ \n] , [1 ]]}"), "shape"),
        (body_of(X | {"datatype": "BYTES", "data": json.loads('["a",' + "[" * 20 + "1" + "]" * 21)}), "shape"),
        (body_of(X | {"datatype": "FP8"}), "datatype"),
        (body_of(X | {"datatype": "FP16"}), "datatype"),
        (body_of(X | {"datatype": "BF16"}), "datatype"),
        (body_of(X, parameters={"sequence_id": 7}), "sequence"),
        (body_of(X, parameters={"sequence_id": "a"}), "sequence"),
        (body_of(X, parameters={"sequence_start": True}), "sequence"),
        (body_of(X, parameters={"sequence_end": True}), "sequence"),
        (body_of({name: X[name] for name in X if name != "data"} | {"parameters": {"shared_memory_region": "r"}}),
         "shared_memory"),
        (body_of(X, outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]), "shared_memory"),
        (body_of(X, outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), "outputs"),
        (body_of(X, outputs=[{"name": "y"}, {"name": "y"}]), "outputs"),
        (body_of(X, parameters={"binary_data_output": 1}), "outputs"),
        (body_of(X, X), "members"),
        (body_of(X, id=5), "members"),
        (body_of(X, more="x" * 70_000), "members"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"data":[1]},"data":[1]}]}', "members"),
    ],
)  # fmt: skip
def test_what_only_the_predictor_can_tell_is_passed_on_with_the_reason(body, reason):
    with pytest.raises(errors.Unbatchable) as caught:
        parse(body)
    assert caught.value.reason == reason
    assert reason in set(errors.NotBatched)


def test_request_without_any_json_is_passed_on():
    with pytest.raises(errors.Unbatchable):
        parse(b"1234", 0)


@pytest.mark.parametrize("parameters", [{"sequence_id": 0}, {"sequence_id": ""}, {"sequence_start": False}])
def test_parameters_that_say_there_is_no_sequence_are_batched(parameters):
    assert parse(body_of(X, parameters=parameters)).row_count == 1


def test_more_rows_than_allowed_are_refused():
    body = body_of(X | {"shape": [3, 1], "data": [1, 2, 3]})
    assert parse(body, max_rows=3).row_count == 3
    with pytest.raises(errors.PayloadTooLarge, match="more than 2 rows"):
        parse(body, max_rows=2)


SAME = [
    body_of(X),
    body_of(X, id="1"),
    b'{ "id" :"2",' + body_of(X)[1:],
    body_of(X | {"data": [[1, 2]]}),
    body_of(X | {"shape": [2, 2], "data": [1, 2, 3, 4]}),
    body_of(X, parameters={"binary_data_output": True}),
    body_of(X, parameters={}),
    body_of(X | {"parameters": {}}),
    b'{"inputs":[{"data":[1,2],"datatype":"FP32","shape":[1,2],"n\\u0061me":"\\u0078"}]}',
]
OTHERS = [
    body_of(X | {"name": "y"}),
    body_of(X | {"datatype": "FP64"}),
    body_of(X | {"shape": [2, 1]}),
    body_of(X | {"shape": [1, 2, 1]}),
    body_of(X | {"parameters": {"a": 1}}),
    body_of(X | {"more": 1}),
    body_of(X, X | {"name": "y"}),
    body_of(X | {"name": "y"}, X),
    body_of(X, parameters={"priority": 1}),
    body_of(X, more=1),
    body_of(X, outputs=[]),
    body_of(X, outputs=[{"name": "y"}]),
    body_of(X, outputs=[{"name": "y"}], parameters={"binary_data_output": True}),
    body_of(X, outputs=[{"name": "y", "parameters": {"classification": 2}}]),
    body_of(X, outputs=[{"name": "y", "parameters": {"classification": 3}}]),
    body_of(X, outputs=[{"name": "y"}, {"name": "z"}]),
    body_of(X, outputs=[{"name": "z"}, {"name": "y"}]),
]


def test_requests_share_a_key_if_they_differ_in_data_rows_id_and_form_only():
    reader = codec.Reader()
    head = body_of(BINARY)
    keys = {reader.parse(body, 100).key for body in SAME} | {reader.parse(head + b"12345678", 100, len(head)).key}
    assert len(keys) == 1


def test_requests_that_differ_in_anything_else_share_none():
    reader = codec.Reader()
    assert len({reader.parse(body, 100).key for body in [SAME[0], *OTHERS]}) == 1 + len(OTHERS)


@pytest.mark.parametrize("wants", [[True, True], [False, True], [False, False]])
def test_outputs_wanted_in_binary_or_not_share_a_key(wants):
    listed = [{"name": f"y{at}", "parameters": {"binary_data": want}} for at, want in enumerate(wants)]
    plain = body_of(X, outputs=[{"name": "y0"}, {"name": "y1"}])
    assert parse(body_of(X, outputs=listed)).key == parse(plain).key


@pytest.mark.parametrize(
    "change",
    [
        (b"[1, 2]}", b"[1, 2, 3]}"),
        (b"[1, 2]}", b"1, 2}"),
        (b"[1, 2]}", b'[1, 2], "data": [3]}'),
        (b"[1, 2]}", b"[1, 2]]}"),
        (b"[1, 2]}", b'{"a": 1, "b": 2}}'),
        (b"[1, 2]}", b'["\xff", 2]}'),
        (b'{"id"', b'x"id"'),
        (b'"1"', b'"\\"'),
        (b'"1"', b'"1'),
        (b"}]}", b"}]"),
        (b"}]}", b"}]}}"),
    ],
)
def test_text_seen_before_hides_nothing_that_is_wrong(change):
    reader = codec.Reader()
    body = b'{"id": "1", ' + body_of(X)[1:]
    for _ in range(2):
        assert reader.parse(body, 100).response_format.opening == b'{"id":"1",'
        with pytest.raises((errors.BadRequest, errors.Unbatchable)):
            assert reader.parse(body.replace(*change), 100).template.pieces is None


def test_id_is_kept_as_it_was_written_wherever_it_stands():
    reader = codec.Reader()
    for ident in [b'"1"', b'"a,b\\"}"', '"é"'.encode(), b'""']:
        first = b'{"id":%b,' % ident + body_of(X)[1:]
        last = body_of(X)[:-1] + b', "id": %b }' % ident
        middle = last[:-1] + b',"more":1}'
        assert [reader.parse(body, 100).response_format.opening for body in (first, last, middle)] == [
            b'{"id":%b,' % ident
        ] * 3
    assert reader.parse(body_of(X), 100).response_format.opening == b"{"


def test_what_is_kept_of_requests_is_bounded():
    reader = codec.Reader()
    for number in range(1000):
        reader.parse(body_of(X, more="x" * 60_000 + str(number)), 100)
    kept = [each for siblings in reader._splitter._known.values() for each in siblings]
    assert sum(len(piece) for each in kept for piece in each.pieces) <= 4_300_000


def test_rests_that_were_forgotten_for_others_like_them_do_not_push_out_the_rest():
    reader = codec.Reader()
    first = reader.parse(body_of(X | {"name": "first"}), 100).template
    for number in range(2000):  # alike up to their data, of which a few are kept
        reader.parse(body_of(X, more=number), 100)
    assert reader.parse(body_of(X | {"name": "first"}), 100).template is first


def test_what_would_take_long_to_take_apart_is_passed_on():
    many = 200_000
    texts = body_of(X | {"datatype": "BYTES", "shape": [1, many], "data": ["a"] * many})
    head = body_of(BINARY | {"datatype": "BYTES", "shape": [1, many], "parameters": {"binary_data_size": 4 * many}})
    crowd = b'{"inputs":[%b{}]}' % (b"{}," * many)
    for body, size in [(texts, None), (head + bytes(4 * many), len(head)), (crowd, None)]:
        with pytest.raises(errors.Unbatchable) as caught:
            parse(body, size)
        assert caught.value.reason == "members"


def test_large_data_are_views_of_the_body():
    body = body_of(X | {"shape": [1, 50_000], "data": [1] * 50_000})
    head = body_of(BINARY | {"shape": [1, 50_000], "parameters": {"binary_data_size": 200_000}})
    for payload in (parse(body), parse(head + bytes(200_000), len(head))):
        assert isinstance(payload.data[0], memoryview)
        assert payload.data[0].obj is payload.body


def test_sizes_and_lengths_are_those_of_the_whole_request():
    payload = parse(body_of(X | {"shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}))
    assert sum(payload.row_sizes(0, 3)) == len(payload.body)
    assert payload.row_lengths(1, 3) == [2, 2]
