"""Rows share a call only if they are of one form, which is the same however the text came, in C and in Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import form_scan, forms, incremental_scan, json_rows, steps, v1
from carpool_sidecar.protocols.lists import codec, rules
from tests import native
from tests.examples import examples

Scan = Callable[[bytes, bytes, int, int, bool], bytes | None]


@pytest.fixture(scope="module", params=["C", "Python"])
def scan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """The function in both languages."""
    if request.param == "Python":
        return native.in_python("protocols.form_scan").scan  # type: ignore[no-any-return]
    return native.in_c("protocols.form_scan", tmp_path_factory.mktemp("native")).scan  # type: ignore[no-any-return]


def merged(made: Any, *cuts: tuple[bytes, int, int]) -> bytes:
    """The call for rows of bodies, from one to before another."""
    parts = []
    for body, start, stop in cuts:
        payload = made.parse(body, 100)
        parts.append(messages.Part(messages.Request(payload.key, payload.row_count, payload=payload), start, stop))
    return b"".join(made.merge("id", "/", parts).body)


RULES = rules.load(['{"mine": {"path": "/p", "list": "instances", "answers": "predictions"}}'])


@pytest.mark.parametrize("made", [v1.Codec(), codec.Codec(RULES, lambda: 0.0)], ids=["v1", "lists"])
def test_a_part_of_a_request_with_rows_of_several_forms_travels_alone(made: Any) -> None:
    many, few = b'{"instances":[{"a":1},{"a":2},{"b":3}]}', b'{"instances":[{"a":4},{"b":5}]}'
    with pytest.raises(errors.NotMergeable):
        merged(made, (many, 2, 3), (few, 0, 2))
    assert json.loads(merged(made, (many, 2, 3)))["instances"] == [{"b": 3}]
    assert json.loads(merged(made, (many, 0, 3), (few, 0, 2)))["instances"][3:] == [{"a": 4}, {"b": 5}]
    alike = b'{"instances":[{"a":1},{"a":2},{"a":3}]}'
    assert json.loads(merged(made, (alike, 2, 3), (alike, 0, 1)))["instances"] == [{"a": 3}, {"a": 1}]


@pytest.mark.parametrize(
    ("text", "several"),
    [
        (b"[]", False),
        (b"[1,2.5,-3]", False),
        (b'["a","b]{,"]', False),
        (b'[{"a":1,"b":[1,"x",{"c":null}]}]', False),
        (b'[{"a]":1},{"a]":2}]', False),
        (b'[{"a":1},{"b":1}]', True),
        (b'[1,"a"]', True),
        (b"[[1],[[1]]]", True),
        (b"[null,true]", True),
        (b'[{"%b":1}]' % (b"x" * 300), True),
    ],
)
def test_a_form_tells_whether_rows_are_of_several_forms_and_a_digest_that_they_may_be(
    text: bytes, several: bool
) -> None:
    assert forms.may_be_several(forms.of(text)) is several


# --- the oracle: what the form of rows is, by what Python's json makes of them ------------------------------------


class Number(str):
    """As it was written."""

    __slots__ = ()


class Members(list[Any]):
    """Names and values in order."""


def read(text: bytes) -> Any:
    return json.loads(
        text,
        parse_int=Number,
        parse_float=Number,
        parse_constant=Number,
        object_pairs_hook=lambda pairs: Members(pairs),
    )


def numbers(value: Any) -> Iterator[Number]:
    if isinstance(value, Number):
        yield value
    elif isinstance(value, Members):
        for _, each in value:
            yield from numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers(each)


def is_whole(number: Number) -> bool:
    return number.removeprefix("-").isdigit()


def traits(number: Number) -> frozenset[str]:
    """What numpy looks at when it chooses a type for a number."""
    if not is_whole(number):
        return frozenset({"fraction"})
    value = int(number)
    size = "int64" if -(2**63) <= value < 2**63 else "uint64" if 0 <= value < 2**64 else "object"
    return frozenset({"whole", *(["negative"] if number.startswith("-") else []), *([size] if size != "int64" else [])})


def told(value: Any, in_detail: bool) -> Any:
    if isinstance(value, Number):
        return traits(value) if in_detail else "number"
    if isinstance(value, Members):
        return ("object", *((name, told(each, in_detail)) for name, each in value))
    if isinstance(value, list):
        found: list[Any] = []
        for each in value:
            form = told(each, in_detail)
            if found and isinstance(form, frozenset) and isinstance(found[-1], frozenset):
                found[-1] |= form
            elif not found or found[-1] != form:
                found.append(form)
        return ("list", *found)
    return {bool: "boolean", type(None): "null", str: "text"}[type(value)]


def oracle(text: bytes) -> Any:
    """The form of the rows of a list: all that there are, the first first."""
    rows = read(text)
    in_detail = any(is_whole(each) and len(each.removeprefix("-")) >= 16 for each in numbers(rows))
    alone = [told(each, in_detail) for each in rows]
    together = frozenset().union(*(each for each in alone if isinstance(each, frozenset)))
    return list(dict.fromkeys(together if isinstance(each, frozenset) else each for each in alone))


# --- texts --------------------------------------------------------------------------------------------------------

_BLANKS = st.sampled_from(["", "", "", " ", "\n\t"])
_NUMBERS = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["1e5", "-0", "0.12345678901234567", "1E-16", "12345678901234567.5", "123456789012345", "-999999999999999"]
    ),
)
_EDGES = [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40]
_BIG = st.sampled_from([str(sign * each) for each in _EDGES for sign in (1, -1)] + [str(-(2**63) - 1)])
_STRINGS = st.sampled_from(
    ['""', '"a"', '"\\""', '"\\\\"', '"]"', '"{,"', '"é"', '"\\ud83d"', '"1"', '"\\u005b\\\\\\""']
)
_NAMES = st.sampled_from(['"a"', '"b"', '"\\"c"', '"d\\\\"', '"é]"'])


@st.composite
def values(draw: st.DrawFn, scalars: st.SearchStrategy[str], deepest: int) -> str:
    """JSON text."""
    kind = draw(st.sampled_from(["scalar", "scalar", "list", "numbers", "object"] if deepest else ["scalar"]))
    if kind == "scalar":
        return draw(scalars)
    if kind == "numbers":
        return f"[{draw(st.sampled_from([',', ', ', ' , '])).join(draw(st.lists(_NUMBERS, max_size=6)))}]"
    blank = draw(_BLANKS)
    inner = draw(st.lists(values(scalars, deepest - 1), max_size=4))
    if kind == "list":
        return f"[{blank}{f',{blank}'.join(inner)}{blank}]"
    return "{" + f"{blank},".join(f"{blank}{draw(_NAMES)}{blank}:{blank}{each}" for each in inner) + blank + "}"


_SMALL = st.one_of(_NUMBERS, _NUMBERS, _STRINGS, st.sampled_from(["true", "false", "null"]))


@st.composite
def lists(draw: st.DrawFn) -> bytes:
    """Lists of rows of one form or several, some with large numbers."""
    scalars = draw(st.sampled_from([_SMALL, _NUMBERS, st.one_of(_SMALL, _BIG), st.one_of(_NUMBERS, _BIG)]))
    rows = draw(st.lists(values(scalars, 3), min_size=1, max_size=4))
    return f"[{draw(st.sampled_from([',', ', '])).join(rows)}]".encode()


def whole(scan: Scan, text: bytes) -> bytes | None:
    found = scan(b"", text, 0, len(text), False)
    return scan(b"", text, 0, len(text), True) if found is None else found


# --- what a form is -----------------------------------------------------------------------------------------------


@given(st.lists(lists(), min_size=2, max_size=6))
@examples(120)
def test_forms_are_equal_where_those_of_a_plain_reader_are(scan: Scan, texts: list[bytes]) -> None:
    found = {text: whole(scan, text) for text in texts}
    expected = {text: oracle(text) for text in texts}
    for one in texts:
        for other in texts:
            assert (found[one] == found[other]) is (expected[one] == expected[other])


@given(lists(), st.booleans())
@examples(120)
def test_both_languages_find_the_same(tmp_path_factory: pytest.TempPathFactory, text: bytes, in_detail: bool) -> None:
    in_python = native.in_python("protocols.form_scan").scan
    assert form_scan.scan(b"", text, 0, len(text), in_detail) == in_python(b"", text, 0, len(text), in_detail)


def cuts(text: bytes) -> Iterator[tuple[int, int]]:
    """Where a text may be cut: where the first piece ends, and where the second begins."""
    in_string = escaped = False
    is_name = False
    stack: list[int] = []
    for at, byte in enumerate(text):
        if in_string:
            if not escaped and not is_name and byte & 0xC0 != 0x80 and text[at - 1] != ord("\\"):
                yield at, at
            if escaped:
                escaped = False
            elif byte == ord("\\"):
                escaped = True
            elif byte == ord('"'):
                in_string = False
        elif byte == ord('"'):
            in_string = True
        elif byte in b"[{":
            stack.append(byte)
            is_name = byte == ord("{")
        elif byte in b"]}":
            stack.pop()
        elif byte == ord(":"):
            is_name = False
        elif byte == ord(","):
            yield at, at + 1
            is_name = stack[-1] == ord("{")


@given(lists(), st.data())
@examples(120)
def test_a_text_in_pieces_has_the_form_of_the_whole(scan: Scan, text: bytes, data: st.DataObject) -> None:
    places = list(cuts(text))
    chosen = sorted(data.draw(st.lists(st.sampled_from(places), unique=True, max_size=5))) if places else []
    for in_detail in (False, True):
        form: bytes | None = b""
        at = 0
        for stop, start in [*chosen, (len(text), len(text))]:
            form = None if form is None else scan(form, text, at, stop, in_detail)
            at = start
        assert form == scan(b"", text, 0, len(text), in_detail)


@given(st.binary(max_size=100), st.binary(max_size=20), st.booleans())
@example(b"]", b"", False)
@example(b'["\\', b"[", False)
def test_what_is_no_json_harms_nobody(scan: Scan, text: bytes, form: bytes, in_detail: bool) -> None:
    for start, stop in ((0, len(text)), (len(text) // 2, len(text))):
        found = scan(form, text, start, stop, in_detail)
        assert found is None or len(found) <= 64 * 1024 + 1


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 1001 + b"]" * 1001,
        b'[{"%b":1}]' % (b"x" * 65_536),
        b"[[%b]]" % b",".join([b'1,""'] * 40_000),
        b"[%b]" % b",".join([b'{"%d":1}' % number for number in range(257)]),
    ],
    ids=["deep", "a name", "kinds", "rows"],
)
def test_no_form_takes_memory_without_end(scan: Scan, text: bytes) -> None:
    assert scan(b"", text, 0, len(text), False) is None


def test_a_long_form_is_kept_as_a_digest() -> None:
    one, other = (forms.of(b'[{"%b":1}]' % (name * 1000)) for name in (b"x", b"y"))
    assert len(one) == len(other) == 16
    assert one != other
    assert forms.of(b'[ {"%b" : 2} ]' % (b"x" * 1000)) == one


def test_rows_of_very_many_forms_travel_alone() -> None:
    with pytest.raises(errors.Unbatchable):
        v1.parse_request(b'{"instances":[%b]}' % b",".join([b'{"%d":1}' % number for number in range(257)]))


# --- in steps, as large bodies come -------------------------------------------------------------------------------


@st.composite
def grown(draw: st.DrawFn) -> bytes:
    """Lists that are larger than what is scanned in one step."""
    few = draw(st.lists(values(_SMALL, 2) | values(_NUMBERS, 3), min_size=1, max_size=4))
    many = draw(st.sampled_from(["1.5,", "[1,2.5],", "[[1,2],[3]],", '"text",', '{"a":1,"b":"x"},', "123,", '"\\"",']))
    inner = many * (300_000 // len(many)) + few[0]
    return f"[{f',{inner},'.join(few) if len(few) > 1 else inner}]".encode()


def in_pieces(text: bytes, size: int) -> tuple[json_rows.Rows, bytes] | None:
    for in_detail in (False, True):
        scan = incremental_scan.IncrementalScan(0, in_detail=in_detail)
        for at in range(1, len(text), size):
            scan.feed(text[at : at + size])
        if scan.finish():
            return scan.rows(text), scan.form
        if not scan.lacks_form:
            break
    return None


@given(grown(), st.sampled_from([20_000, 65_536, 100_001, 262_144]))
@examples(20)
def test_a_body_has_one_form_however_it_arrives(text: bytes, size: int) -> None:
    at_once = v1.parse_request(b'{"instances":%b}' % text)
    found = in_pieces(text, size)
    if found is not None:
        assert found[1] == at_once.key[2]
    assert steps.at_once(v1.parse_in_steps(b'{"instances":%b}' % text)).key == at_once.key


@pytest.mark.parametrize(
    "row",
    [b"[1,2.5]", b"[[1],[2,3]]", b'"text"', b'{"a":[1,2],"b":null}', b"9007199254740993", b"[9007199254740993,0.5]"],
)
def test_large_bodies_meet_small_ones_of_the_same_form(row: bytes) -> None:
    large = b'{"instances":[%b]}' % b",".join([row] * (1_100_000 // len(row)))
    small = v1.parse_request(b'{"instances":[%b]}' % row)
    assert steps.at_once(v1.parse_in_steps(large)).key == v1.parse_request(large).key == small.key
    found = in_pieces(large[len(b'{"instances":') : -1], 262_144)
    assert found is not None
    assert found[1] == small.key[2]


# --- who meets ----------------------------------------------------------------------------------------------------

APART = [
    ('{"a":1,"b":2,"c":3}', '{"c":3,"b":2,"a":1}'),
    ('{"a":1,"b":2,"c":3}', '{"a":1,"b":2}'),
    ('{"a":1}', '{"a":null}'),
    ("9007199254740993", "0.5"),
    ("9007199254740993", "1"),
    ("[9007199254740993,1]", "[0.5,2]"),
    ("[9007199254740993,1]", "[9007199254740993,0.5]"),
    ("[[9007199254740993],[1]]", "[[9007199254740993],[0.5]]"),
    ("18446744073709551615", "9223372036854775807"),
    ("18446744073709551615", "-9223372036854775808"),
    ('{"a":9007199254740993,"b":0.5}', '{"a":0.5,"b":9007199254740993}'),
    ("1", '"x"'),
    ("true", "7"),
    ("[true]", "[7]"),
    ("null", "7"),
    ("[1]", "1"),
    ("[[1]]", "[1]"),
    ("[]", "[1]"),
    ("{}", "[]"),
    ('["a",1]', '[1,"a"]'),
    ('{"a":{"b":1}}', '{"a":{"c":1}}'),
]
TOGETHER = [
    ("1.0", "1"),
    ("[1.0,2]", "[1,2.5,3]"),
    ("[[1],[2,3]]", "[[4.5,6]]"),
    ('{"a": 1, "b": "x"}', '{"a":2.5,"b":""}'),
    ("true", "false"),
    ('["a"]', '["b","c"]'),
    ("[9007199254740993,1]", "[2,9007199254740995]"),
    ("0.12345678901234567", "12345678901234567.5"),
]


def keys(rule: str | None, *rows: str, mixes: bool = False) -> list[Any]:
    if rule is None:
        by: Any = v1.Codec(mixes=mixes)
        return [by.parse(f'{{"instances":[{row}]}}'.encode(), 100).key for row in rows]
    by = codec.Codec(rules.load([f"{{it: {{path: /x, list: rows, answers: rows, {rule}}}}}"]), lambda: 0.0, mixes)
    return [by.parse(f'{{"rows":[{row}]}}'.encode(), 100).key for row in rows]


@pytest.mark.parametrize("rule", [None, "scalar: alone", "scalar: wrapped"])
@pytest.mark.parametrize(("one", "other"), APART)
def test_rows_of_other_form_share_no_call(rule: str | None, one: str, other: str) -> None:
    found = keys(rule, one, other, one)
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("rule", [None, "scalar: alone", "scalar: wrapped"])
@pytest.mark.parametrize(("one", "other"), TOGETHER)
def test_rows_of_one_form_share_a_call_whatever_their_values(rule: str | None, one: str, other: str) -> None:
    found = keys(rule, one, other)
    assert found[0] == found[1]


@pytest.mark.parametrize(("one", "other"), APART)
def test_rows_of_other_form_share_a_call_where_an_operator_says_so(one: str, other: str) -> None:
    found = keys(None, one, other, mixes=True)
    assert found[0] == found[1]
    if one[0] == other[0]:  # lists keep texts, numbers, lists and objects apart in any case
        found = keys("scalar: alone", one, other, mixes=True)
        assert found[0] == found[1]


def test_the_order_of_rows_of_several_forms_matters_as_pandas_takes_the_first_ones_columns() -> None:
    one, other, third = keys(None, '{"a":1},{"b":1}', '{"b":1},{"a":1}', '{"a":2.5},{"a":0},{"b":3},{"a":1}')
    assert one != other
    assert one == third


@given(st.lists(st.integers(0, 300), min_size=1, max_size=600))
@examples(30)
def test_rows_of_many_forms_are_told_by_their_first_ones(scan: Scan, kinds: list[int]) -> None:
    def text(numbers: list[int]) -> bytes:
        return b"[%b]" % b",".join([b'{"%d":1}' % each for each in numbers])

    found = scan(b"", text(kinds), 0, len(text(kinds)), False)
    first = text(list(dict.fromkeys(kinds)))
    assert found == scan(b"", first, 0, len(first), False)
    assert (found is None) is (len(set(kinds)) > 256)


@pytest.mark.parametrize("kind", ["a single text", "a list"])
def test_a_single_value_meets_a_list_of_it(kind: str) -> None:
    rule = rules.load(["{it: {path: /x, list: rows, answers: rows, scalar: wrapped}}"])
    by = codec.Codec(rule, lambda: 0.0)
    row = '"a"' if kind == "a single text" else '{"a":[1]}'
    assert by.parse(f'{{"rows":{row}}}'.encode(), 10).key == by.parse(f'{{"rows":[{row},{row}]}}'.encode(), 10).key
