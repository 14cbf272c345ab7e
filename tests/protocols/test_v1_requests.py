"""Reading v1 predict bodies: what is found, what is refused, and that nothing is changed."""

from __future__ import annotations

import json
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import json_rows, steps, v1

# Texts that a decoder and encoder would not give back as they were.
DELICATE = [
    b"9007199254740993", b"1.0", b"1e400", b'"\\u003c"', b"-0.0", b"12345678901234567890", b"0.1e-5", b'"\xc3\xa9"',
    b'{"b":1,"a":2}', b'[ 1 , 2 ]', b'"<>&"', b'"a\\/b"', b"1E+2", b"null", b'{"k":1,"k":2}',
]  # fmt: skip


def rows_of(payload):
    return [bytes(row) for row in payload.rows]


def merged(ranges):
    """The body of a call for ranges of rows."""
    parts = [
        messages.Part(messages.Request("key", len(payload.rows), payload=payload), *rows) for payload, *rows in ranges
    ]
    return v1.merge("the-batch", "/t", parts).body


def merge_alone(payload):
    return b"".join(merged([(payload, 0, len(payload.rows))]))


@pytest.mark.parametrize("text", DELICATE)
def test_instances_reach_the_predictor_byte_for_byte(text):
    payload = v1.parse_request(b'{"instances":[' + text + b"," + text + b"]}")
    assert rows_of(payload) == [text, text]
    assert merge_alone(payload) == b'{"instances":[' + text + b"," + text + b"]}"
    assert b"".join(merged([(payload, 1, 2)])) == b'{"instances":[' + text + b"]}"


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b'{"instances":[1]}', [b"1"]),
        (b' {\r\n"instances" : [ 1 ,\t[2] ] }\n', [b"1", b"[2]"]),
        (b'{"inputs":[{"a":1}]}', [b'{"a":1}']),
        (b'{"signature_name":"x","instances":[1,2]}', [b"1", b"2"]),
        (b'{"instances":[1],"parameters":{"k":"]}"}}', [b"1"]),
        (b'{"inst\\u0061nces":[1]}', [b"1"]),
        (b'{"instances":["]},{"]}', [b'"]},{"']),
        (b'{"instances":["\\"]}"]}', [b'"\\"]}"']),
    ],
)
def test_instances_are_found_wherever_they_are(body, rows):
    payload = v1.parse_request(body)
    assert rows_of(payload) == rows
    assert json.loads(merge_alone(payload)) == json.loads(body)


def test_other_members_are_kept_as_they_were_written():
    payload = v1.parse_request(b'{"b" : 1.0 ,"instances":[1], "a":{"x" :[ ]} }')
    assert payload.others == b'"b":1.0,"a":{"x" :[ ]}'
    two = [(payload, 0, 1), (payload, 0, 1)]
    assert b"".join(merged(two)) == b'{"b":1.0,"a":{"x" :[ ]},"instances":[1,1]}'


def test_a_request_that_travels_alone_goes_as_it_came():
    body = b' {"b" : 1.0 ,"instances" :[1, 2 ] }\n'
    payload = v1.parse_request(body)
    assert merged([(payload, 0, 2)]) == [body]
    assert b"".join(merged([(payload, 1, 2)])) == b'{"b":1.0,"instances":[2]}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b"not json", "malformed"),
        (b"[1]", "must be a JSON object"),
        (b'"instances"', "must be a JSON object"),
        (b'{"instances":[1]', "truncated"),
        (b'{"instances":[1]]', "malformed"),
        (b'{"instances":[1]]}', "malformed"),
        (b'{"instances":[1]}}', "trailing characters"),
        (b'{"instances":[1]}]', "trailing characters"),
        (b'{"instances":[1]}x', "trailing characters"),
        (b'{"instances":[1]}{"instances":[1]}', "trailing characters"),
        (b'{"instances":[NaN]}', "malformed"),
        (b'{"instances":[Infinity]}', "malformed"),
        (b'{"instances":[01]}', "malformed"),
        (b'{"instances":[1,]}', "trailing comma"),
        (b'{"instances":[1] "a":2}', "malformed"),
        (b'{"instances":["\xff"]}', "not valid UTF-8 (byte 15)"),
        (b'{"instances":["\xed\xa0\x80"]}', "not valid UTF-8"),
        (b'{"a":"\xff","instances":[1]}', "not valid UTF-8"),
        (b'{"instances":["' + "é".encode() * 300_000 + b'\xff"]}', "not valid UTF-8 (byte 600015)"),
        (b'{"instances":["' + "é".encode() * 300_000 + b"\xc3", "not valid UTF-8 (byte 600015)"),
        (b'\xef\xbb\xbf{"instances":[1]}', "byte order mark"),
        (b'{"instances":["\x01"]}', "invalid character"),
        (b'{"instances":["\n"]}', "invalid character"),
        (b'{"instances":[1],"instances":[2]}', "duplicate member 'instances'"),
        (b'{"instances":[1],"instances":[1]}', "duplicate member 'instances'"),
        (b'{"instances":[1],"inst\\u0061nces":[2]}', "duplicate member 'instances'"),
        (b'{"a":1,"a":12,"instances":[1]}', "duplicate member 'a'"),
        (b'{"a":12,"a":1,"instances":[1]}', "duplicate member 'a'"),
        (b'{"a":"x","instances":[1],"a":"x"}', "duplicate member 'a'"),
        (b'{"instances":5}', "'instances' must be a list"),
        (b'{"instances":{"a":1}}', "'instances' must be a list"),
        (b'{"inputs":"x"}', "'inputs' must be a list"),
        (b'{"instances":[1],"inputs":[1]}', "both 'instances' and 'inputs'"),
        (b'{"parameters":NaN,"instances":[1]}', "malformed"),
        (b'{"instances":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "nested too deeply"),
        (b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b',"instances":[1]}', "nested too deeply"),
        (b'{"instances":[' + b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000 + b"]}", "nested too deeply"),
        (b'{"instances":[' + b"[" * 1_000_000, "nested too deeply"),
    ],
)
def test_undecodable_body_is_rejected_before_it_can_join_a_batch(body, reason):
    with pytest.raises(errors.BadRequest) as caught:
        v1.parse_request(body)
    assert reason in str(caught.value)
    assert errors.status_of(caught.value) == 400


@pytest.mark.parametrize(
    "body", [b"{}", b"{ }", b'{"instances":[]}', b'{"instances": null}', b'{"inputs":[ ]}', b'{"Instances":[1]}']
)
def test_a_body_without_instances_is_told_apart(body):
    with pytest.raises(errors.NoInstances):
        v1.parse_request(body)


def test_a_misspelt_member_is_pointed_out():
    with pytest.raises(errors.NoInstances, match="'Instances' is spelt differently"):
        v1.parse_request(b'{"Instances":[1]}')


def test_columnar_inputs_are_not_batched():
    with pytest.raises(errors.Unbatchable, match="columnar"):
        v1.parse_request(b'{"inputs":{"a":[1,2]}}')


@pytest.mark.parametrize("prefix", [b"{", b'{"signature_name":"x",'])
def test_too_many_rows_are_refused_before_memory_is_spent_on_them(prefix):
    exact = prefix + b'"instances":[' + b"1," * 999 + b"1]}"
    assert len(v1.parse_request(exact, max_rows=1000).rows) == 1000
    with pytest.raises(errors.PayloadTooLarge, match="more than 1000 instances"):
        v1.parse_request(prefix + b'"instances":[' + b"1," * 1000 + b"1]}", max_rows=1000)
    few_but_long = prefix + b'"instances":[[' + b"1," * 9999 + b"1]]}"
    assert len(v1.parse_request(few_but_long, max_rows=1000).rows) == 1


@pytest.mark.parametrize("prefix", [b"{", b'{"signature_name":"x",'])
@pytest.mark.parametrize("row", [b"1", b'"x"', b"[]", b"null"])
def test_a_million_rows_too_many_cost_neither_memory_nor_time(prefix, row):
    body = prefix + b'"instances":[' + (row + b",") * 1_000_000 + b"1]}"
    json_rows.bounded_rows(16_384)
    tracemalloc.start()
    try:
        with pytest.raises(errors.PayloadTooLarge, match="more than 16384 instances"):
            v1.parse_request(body, max_rows=16_384)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body) + 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rows", [[b"[" + b"1," * 9999 + b"1]"] * 30, [b"1" * 40] * 29_999 + [b'""']])
def test_many_commas_alone_are_no_reason_to_refuse(rows):
    body = b'{"instances":[' + b",".join(rows) + b"]}"
    assert rows_of(v1.parse_request(body, max_rows=len(rows))) == rows
    with pytest.raises(errors.PayloadTooLarge):
        v1.parse_request(body, max_rows=len(rows) - 1)


def test_checking_utf8_takes_no_memory_to_speak_of():
    body = b'{"instances":["' + "é".encode() + b"x" * 8_000_000 + b'"]}'
    tracemalloc.start()
    try:
        steps.at_once(json_rows.check_utf8(body))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@given(text=st.text(max_size=40), step=st.integers(1, 12))
def test_utf8_is_checked_alike_wherever_the_slices_end(text, step):
    step = max(step, 4)  # a character has at most four bytes
    steps.at_once(json_rows.check_utf8(text.encode(), step))
    with pytest.raises(errors.BadRequest, match=rf"\(byte {len(text.encode())}\)"):
        steps.at_once(json_rows.check_utf8(text.encode() + b"\xff", step))


def test_members_beside_the_list_must_be_small():
    body = b"{" + b",".join(b'"m%d":0' % i for i in range(20_000)) + b',"instances":[1]}'
    with pytest.raises(errors.BadRequest, match="members beside the list take"):
        v1.parse_request(body)


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_member_that_is_there_twice_is_told_as_such_whatever_its_size(size):
    long = b"[" + b"1," * size + b"1]"
    with pytest.raises(errors.BadRequest, match="duplicate member 'instances'"):
        v1.parse_request(b'{"instances":%b,"instances":[7]}' % long)
    with pytest.raises(errors.BadRequest, match="duplicate member 'a'"):
        v1.parse_request(b'{"instances":[7],"a":%b,"a":1}' % long)


@pytest.mark.parametrize("name", [b"predictions", b"outputs", b"x"])
def test_no_name_makes_a_large_member_beside_the_list_a_small_one(name):
    with pytest.raises(errors.BadRequest, match="members beside the list take"):
        v1.parse_request(b'{"instances":[1],"%b":[%b1]}' % (name, b"1," * 100_000))


@pytest.mark.parametrize(
    ("row", "length"),
    [
        (b"[]", 0), (b"[ \n]", 0), (b"[7]", 1), (b"[1, 2,3 ]", 3), (b'["a,b"]', 1), (b'["a,b","]"]', 2), (b"[[]]", 1),
        (b"[[1,2],[3]]", 2), (b'[{"a":1,"b":2},3]', 2), (b'["\\",",",",[1,2]]', 3), (b'{"a":[1,2,3]}', 1),
        (b'"[1,2]"', 1), (b"null", 1), (b"12345", 1), (b"[" + b"0," * 2_000_000 + b"0]", 2_000_001),
    ],
)  # fmt: skip
def test_the_length_of_an_instance_is_that_of_its_array_or_one(row, length):
    payload = v1.parse_request(b'{"instances":[0,' + row + b",[1,2]]}")
    assert payload.row_lengths(0, 3) == [1, length, 2]
    assert payload.row_lengths(1, 2) == [length]


def test_counting_elements_costs_no_memory_for_each_of_them():
    payload = v1.parse_request(b'{"instances":[[' + b'"",' * 2_000_000 + b'""]]}')
    tracemalloc.start()
    try:
        assert payload.row_lengths(0, 1) == [2_000_001]
        assert tracemalloc.get_traced_memory()[1] < 3 * len(payload.text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", DELICATE)
def test_the_size_of_an_instance_is_that_of_its_text(text):
    payload = v1.parse_request(b'{"instances":[1, ' + text + b" ,22]}")
    assert payload.row_sizes(0, 3) == [1, len(text), 2]
    assert payload.row_sizes(2, 3) == [2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
MEMBERS = st.dictionaries(st.text().filter(lambda name: name not in ("instances", "inputs")), JSON, max_size=4)


def has_surrogate_escapes(value) -> bool:
    return any(0xD800 <= ord(char) <= 0xDFFF for char in json.dumps(value, ensure_ascii=False))


@given(
    instances=st.lists(JSON, min_size=1, max_size=6),
    others=MEMBERS,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    first=st.booleans(),
)
@example(instances=[None], others={}, ascii_only=True, indent=None, first=True)
def test_any_valid_body_keeps_its_meaning_and_every_row_its_bytes(instances, others, ascii_only, indent, first):
    members = {"instances": instances, **others} if first else {**others, "instances": instances}
    text = json.dumps(members, ensure_ascii=ascii_only, indent=indent)
    payload = v1.parse_request(text.encode())
    assert [json.loads(bytes(row)) for row in payload.rows] == instances
    assert all(bytes(row) in text.encode() for row in payload.rows)
    assert json.loads(merge_alone(payload)) == members
    again = v1.parse_request(merge_alone(payload))
    assert rows_of(again) == rows_of(payload)
    lengths = [len(instance) if isinstance(instance, list) else 1 for instance in instances]
    assert payload.row_lengths(0, len(instances)) == lengths
    assert sum(payload.row_sizes(0, len(instances))) <= len(payload.text)
    assert again.others == payload.others


@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_a_payload_or_a_clear_refusal(body):
    try:
        payload = v1.parse_request(body)
    except (errors.BadRequest, errors.Unbatchable):
        return
    assert payload.rows


@given(
    prefix=st.sampled_from([b'{"instances":[1,', b'{"x":1,"instances":[', b'{"instances":["', b'{"instances":[[1],{']),
    tail=st.text(alphabet='[]{}",:0123456789.eE+- \\ntrufalse', max_size=20).map(str.encode),
)
def test_whatever_is_accepted_is_json_that_an_ordinary_parser_reads_the_same(prefix, tail):
    try:
        payload = v1.parse_request(prefix + tail)
    except (errors.BadRequest, errors.Unbatchable):
        return
    read = json.loads(prefix + tail, parse_constant=_refuse)
    assert len(read["instances"]) == len(payload.rows)


def _refuse(name):
    raise AssertionError(f"{name} was accepted")


def test_the_pattern_of_a_row_of_a_body_in_parts_is_told_without_putting_them_together() -> None:
    body = b'{"instances":[' + b'{"a":[1,2,"x"],"b":null},' * 2 + b'"' + b"x" * 1000 + b'"]}'
    parts = [body[at : at + 7] for at in range(0, len(body), 7)]
    scan = v1.RequestScan()
    for part in parts:
        scan.feed(part)
    found = scan.payload(json_rows.PartedText(parts))
    assert found is not None
    assert found.row_pattern == v1.parse_request(body).row_pattern == b'{":[,,"],":null}'
    assert len(found.parts.between(0, len(body))) == len(parts)
