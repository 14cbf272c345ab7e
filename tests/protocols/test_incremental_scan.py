"""Scanned while it arrives, in steps, or all at once: the same bodies are fine, with the same rows."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import forms, incremental_scan, interface, json_rows, steps, v1
from tests.examples import examples

ATOMS = st.sampled_from([b"1", b"-2.5e3", b"0.125", b"true", b"null"])
STRINGS = st.sampled_from(
    [
        b'"a,]"', b'""', b'"a long text, with words [in] it"', b'"\\""', b'"\\\\"', b'"\\\\\\",{"', b'"\\ud83d\\ude00"',
        b'"\\u3042\\u3044\\u3046\\u3048\\u304a\\u3042\\u3044\\u3046\\u3048\\u304a"', '"日本語, 日本語"'.encode(),
        b'"' + b"QUFB" * 30 + b'"', b'"\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n"',
    ]
)  # fmt: skip
ODD = st.sampled_from(
    [
        b"NaN",
        b"01",
        b"",
        b"1 2",
        b",",
        b"[",
        b"]",
        "é".encode(),
        b"}",
        b"{",
        b'"',
        b'{"a"}',
        b'{"a":}',
        b'"\xff"',
        b"[}",
    ]
)
SPACE = st.sampled_from([b"", b"", b" ", b"\n\t "])


@st.composite
def lists(draw, values):
    items = draw(st.lists(values, max_size=5))
    between = draw(st.sampled_from([b",", b", ", b" ,\n"]))
    return b"[" + draw(SPACE) + between.join(items) + draw(SPACE) + b"]"


@st.composite
def objects(draw, values):
    names = st.sampled_from([b"a", b"b64", b"", b"x,y", b'"', b"instances", b"\\u0061"])
    items = draw(st.lists(st.tuples(names, values), max_size=4))
    between = draw(st.sampled_from([b",", b", "]))
    return (
        b"{"
        + between.join(b'"%b":%b%b' % (name.replace(b'"', b'\\"'), draw(SPACE), each) for name, each in items)
        + b"}"
    )


NUMBERS = st.recursive(ATOMS, lists, max_leaves=40)
ROWS = st.recursive(ATOMS | STRINGS, lambda values: lists(values) | objects(values), max_leaves=40)
NAMES = [b"instances", b"instances", b"inputs", b"predictions", b"outputs", b"others"]
OTHERS = st.sampled_from(
    [
        b'"signature_name":"x"', b'"a":1.5', b'"a":null', b'"a":"\\"["', b'"a":[1,"]"]', b'"instances":[1]',
        b'"a":1,"a":2', b'"predictions":[2]', b'"inst\\u0061nces":[1]', b'"outputs":"x"', b'"inputs":"x"',
    ]
)  # fmt: skip


@st.composite
def bodies(draw, rows=NUMBERS | ROWS):
    member = draw(st.sampled_from(NAMES))
    space = [draw(SPACE) for _ in range(5)]
    before = [each + b"," for each in draw(st.lists(OTHERS, max_size=2))]
    after = [b"," + each for each in draw(st.lists(OTHERS, max_size=2))]
    if draw(st.booleans()):
        before = after = []
    around = (
        space[0],
        space[1],
        b"".join(before),
        member,
        space[2],
        draw(lists(rows)),
        space[3],
        b"".join(after),
        space[4],
    )
    return b'%b{%b%b"%b":%b%b%b%b}%b' % around


@st.composite
def broken(draw):
    """With things in it that a scan leaves to others, or bytes changed, added or taken away."""
    values = st.recursive(ATOMS | STRINGS | ODD, lambda values: lists(values) | objects(values), max_leaves=40)
    body = bytearray(draw(bodies(values)))
    for _ in range(draw(st.integers(0, 2))):
        at, kind = draw(st.integers(0, len(body) - 1)), draw(st.integers(0, 2))
        body[at : at + (kind != 1)] = (
            draw(st.sampled_from([b"[", b"]", b",", b",,", b" ", b"1", b"-", b"}", b"{", b'"', b"\\", b'",']))
            if kind
            else b""
        )
    return bytes(body)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    for name, size in (("LARGE", 20), ("_PIECE", 6), ("STEP", 40)):
        monkeypatch.setattr(incremental_scan, name, size)


def scanned(body, sizes, max_rows=1000):
    scan, at = v1.RequestScan(max_rows), 0
    for size in [30, *sizes, len(body)]:
        scan.feed(body[at : at + size])
        at = min(len(body), at + size)
    return scan.payload(json_rows.PartedText([body]))


def parts_of(body, sizes):
    ends = [0, *itertools.accumulate([30, *sizes]), len(body)]
    return [body[start:stop] for start, stop in itertools.pairwise(ends) if body[start:stop]]


def request_of(payload):
    return messages.Request(payload.key, payload.row_count, payload=payload)


def parsed(body, parse=v1.parse_request):
    try:
        return parse(body)
    except (errors.CarpoolError, errors.Unbatchable) as error:
        return str(error)


def seen(payload):
    if not isinstance(payload, v1.Payload):
        return payload
    rows = [bytes(row) for row in payload.rows]
    text = payload.text if payload.parts is None else b"".join(payload.parts.between(payload.start, payload.stop))
    return payload.list_name, bytes(text), rows, payload.others, payload.key


def read(body):
    try:
        found = steps.at_once(v1.parse_answer(interface.UpstreamResponse(body, {})))
    except errors.CarpoolError as error:
        return str(error)
    return found.list_name, [bytes(row) for row in found.rows], found.members


SIZES = st.lists(st.integers(1, 30), max_size=30)


@examples(150)
@given(body=bodies() | broken(), sizes=SIZES)
def test_what_a_scan_finds_is_what_the_parser_finds(body, sizes):
    found = scanned(body, sizes)
    assert found is None or seen(found) == seen(parsed(body))


@examples(150)
@given(body=bodies(), sizes=SIZES, data=st.data())
def test_a_body_in_parts_makes_the_same_batches_as_one_that_is_whole(body, sizes, data):
    parts, scan = parts_of(body, sizes), v1.RequestScan()
    for part in parts:
        scan.feed(part)
    whole, parted = parsed(body), scan.payload(json_rows.PartedText(parts))
    if parted is None or not isinstance(whole, v1.Payload):
        return
    assert (parted.key, parted.row_count, parted.content) == (whole.key, whole.row_count, None)
    start = data.draw(st.integers(0, whole.row_count - 1))
    stop = data.draw(st.integers(start + 1, whole.row_count))
    ranges = [
        [(0, whole.row_count)],
        [(0, whole.row_count)] * 2,
        [(start, stop)],
        [(0, whole.row_count), (start, stop)],
    ]
    if forms.may_be_several(forms.of(bytes(whole.text))):
        ranges.pop()  # parts of such a request travel alone
    # In this order: the last ones need the body in one piece, the first ones must not.
    for places in ranges:
        sent = [
            b"".join(v1.merge("id", "/", [messages.Part(request_of(each), *place) for place in places]).body)
            for each in (parted, whole)
        ]
        assert sent[0] == sent[1]


def test_a_body_in_parts_travels_in_them():
    parts = parts_of(b'{"instances":[[1,2,3,4,5,6,7,8,9,10,11,12],[13,14,15,16]]}', [20])
    scan = v1.RequestScan()
    for part in parts:
        scan.feed(part)
    request = request_of(scan.payload(json_rows.PartedText(parts)))
    pieces = v1.merge("id", "/", [messages.Part(request, 0, 2)]).body
    assert [piece.obj for piece in pieces] == parts
    assert len(parts) > 1


@given(text=st.binary(max_size=60), sizes=SIZES, start=st.integers(0, 70), stop=st.integers(0, 70))
def test_what_lies_between_two_places_of_a_parted_text_is_what_lies_there_in_the_whole(text, sizes, start, stop):
    parted = json_rows.PartedText(parts_of(text, sizes))
    assert parted.size == len(text)
    assert b"".join(parted.between(start, stop)) == text[start:stop]
    assert parted.whole() == text
    assert b"".join(parted.between(start, stop)) == text[start:stop]


@examples(150)
@given(body=bodies() | broken())
def test_in_steps_the_same_comes_of_a_request_as_at_once(body):
    in_steps = parsed(body, lambda body: steps.at_once(v1.parse_in_steps(body)))
    assert seen(in_steps) == seen(parsed(body))


@examples(150)
@example(body=b'{"predictions":[1,-2.5e3][}')
@given(body=bodies() | broken())
def test_of_a_large_answer_comes_the_same_as_of_a_small_one(body):
    small = read(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interface, "LARGE_ANSWER", 0)
        assert read(body) == small


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@given(rows=st.lists(st.lists(st.lists(st.floats(0, 1), min_size=1), min_size=1), min_size=1), sizes=SIZES)
def test_nested_lists_of_numbers_are_never_left_to_the_parser(rows, sizes, separators):
    body = json.dumps({"instances": rows}, separators=separators).encode()
    incremental_scan._PIECE = 60  # as in use: longer than any number with what may follow it
    assert seen(scanned(body, sizes)) == seen(parsed(body))


TEXTS = st.text(st.sampled_from('ab1 ,:[]{}"\\\n日é\U0001f600'), max_size=40)
VALUES = st.recursive(
    TEXTS | st.floats(0, 1) | st.booleans(),
    lambda values: st.lists(values, min_size=1, max_size=4) | st.dictionaries(TEXTS, values, min_size=1, max_size=4),
    max_leaves=30,
)


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@given(rows=st.lists(VALUES, min_size=1), others=st.booleans(), sizes=st.lists(st.integers(60, 200), max_size=30))
def test_strings_and_objects_are_never_left_to_the_parser(rows, sizes, separators, is_ascii, others):
    told = {"signature_name": "x", "instances": rows, "parameters": {"a": [1]}} if others else {"instances": rows}
    body = json.dumps(told, separators=separators, ensure_ascii=is_ascii).encode()
    incremental_scan._PIECE = 60
    assert seen(scanned(body, sizes)) == seen(parsed(body))


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@given(rows=st.lists(VALUES, min_size=1), size=st.integers(60, 200))
def test_the_end_of_a_list_is_found_before_whatever_follows(rows, size, separators, is_ascii):
    told = {"signature_name": "x", "instances": rows, "parameters": {"a": [1]}}
    body = json.dumps(told, separators=separators, ensure_ascii=is_ascii).encode()
    incremental_scan._PIECE, incremental_scan.STEP = 60, size
    start = body.index(b"[")
    found = steps.at_once(incremental_scan.scan_in_steps(body, start, len(body)))
    text = json.dumps(rows, separators=separators, ensure_ascii=is_ascii).encode()
    assert found is not None
    assert body[start : found.end] == text
    assert [bytes(row) for row in found.rows(body)] == [bytes(row) for row in json_rows.LIST.decode(text)]


@pytest.mark.parametrize(
    "value", ["x" * 3000, "日本" * 1000, "\U0001f600\n" * 500, '\\"' * 1000, {"b64": "QUFB" * 900}, [["y" * 2500]]]
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_string_longer_than_any_piece_is_cut(value, is_ascii):
    body = json.dumps({"instances": [value, 1, value]}, ensure_ascii=is_ascii).encode()
    incremental_scan._PIECE = 60
    scan, at, most = v1.RequestScan(), 0, 0
    while at < len(body):
        scan.feed(body[at : at + 100])
        at += 100
        most = max(most, len(scan._list._rest))
    assert most < 300
    assert seen(scan.payload(json_rows.PartedText([body]))) == seen(parsed(body))


def test_more_rows_than_allowed_are_left_to_the_parser():
    incremental_scan._PIECE = 12
    body = b'{"instances":[' + b",".join([b"0.25"] * 20) + b"]}"
    assert scanned(body, [9] * 20, max_rows=20) is not None
    assert scanned(body, [9] * 20, max_rows=19) is None


@given(rows=st.lists(ROWS, min_size=1, max_size=9), data=st.data())
def test_no_row_is_lost_where_more_came_than_are_allowed(rows, data):
    body = b'{"instances":[%b]}' % b",".join(rows)
    most = data.draw(st.integers(1, len(rows)))
    found = parsed(body, lambda body: steps.at_once(v1.parse_in_steps(body, most)))
    assert seen(found) == (seen(parsed(body)) if most == len(rows) else f"more than {most} instances in one request")


@pytest.mark.parametrize(
    "end", [b",]}", b"]", b"]}}", b"]]}", b'"]}', b"}}", b"", b'],"a":}', b'],"a":1', b',"\xff"]}']
)
def test_a_body_that_is_wrong_at_its_very_end_is_refused_in_the_same_words(end):
    body = b'{"instances":[' + b'["abc",{"a":1}],' * 50 + b'"x"' + end
    told = parsed(body)
    assert isinstance(told, str)
    assert parsed(body, lambda body: steps.at_once(v1.parse_in_steps(body))) == told
