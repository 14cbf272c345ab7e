"""Which heads are refused, which header fields cross the sidecar, and how the hop through it is recorded."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.protocols import hop_by_hop
from carpool_sidecar.server import headers

_TOKENS = st.text("abcXYZ019-_!#~", min_size=1, max_size=12)
_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
_FIELDS = st.lists(st.tuples(_TOKENS, _VALUES), max_size=12)


@pytest.mark.parametrize("name", sorted(hop_by_hop.FIELDS))
def test_hop_by_hop_fields_are_dropped_in_any_spelling(name: str) -> None:
    kept = headers.end_to_end(CIMultiDict([(name.title(), "x"), (name.upper(), "y"), ("Accept", "*/*")]))
    assert list(kept.items()) == [("Accept", "*/*")]


def test_fields_named_by_connection_are_dropped() -> None:
    fields = CIMultiDict([("Connection", "close, X-One"), ("connection", " x-TWO ,,"), ("X-One", "1")])
    fields.add("x-two", "2")
    fields.add("X-Three", "3")
    assert list(headers.end_to_end(fields).items()) == [("X-Three", "3")]


def test_connection_cannot_take_away_the_host_or_the_length() -> None:
    fields = CIMultiDict([("Connection", "Host, Content-Length"), ("Host", "a"), ("Content-Length", "3")])
    assert list(headers.end_to_end(fields)) == ["Host", "Content-Length"]


def test_a_length_beside_a_transfer_encoding_is_dropped() -> None:
    fields = CIMultiDict([("Content-Length", "3"), ("Transfer-Encoding", "chunked")])
    assert not headers.end_to_end(fields)


@given(_FIELDS)
def test_end_to_end_fields_keep_order_spelling_and_duplicates(fields: list[tuple[str, str]]) -> None:
    expected = [field for field in fields if field[0].lower() not in hop_by_hop.FIELDS]
    assert list(headers.end_to_end(CIMultiDict(fields)).items()) == expected


@given(_FIELDS, st.lists(_TOKENS, max_size=4))
def test_dropping_twice_is_dropping_once(fields: list[tuple[str, str]], named: list[str]) -> None:
    once = headers.end_to_end(CIMultiDict([*fields, ("Connection", ", ".join(named))]))
    assert headers.end_to_end(once) == once
    assert not {name.lower() for name in once} & {name.lower() for name in named}


def test_expect_may_be_named_among_the_options_of_the_connection() -> None:
    fields = CIMultiDict({"Host": "model.example", "Expect": "100-continue", "Connection": "expect"})
    assert "Expect" not in headers.outgoing_headers(fields, None, None)


def test_outgoing_headers_record_the_hop_and_answer_expect_here() -> None:
    fields = CIMultiDict({"Host": "model.example", "Expect": "100-Continue", "Content-Length": "4"})
    outgoing = headers.outgoing_headers(fields, "192.0.2.7", "model.example")
    assert outgoing["Host"] == outgoing["X-Forwarded-Host"] == "model.example"
    assert outgoing["X-Forwarded-Proto"] == "http"
    assert outgoing["X-Forwarded-For"] == "192.0.2.7"
    assert outgoing["Content-Length"] == "4"
    assert "Expect" not in outgoing


@pytest.mark.parametrize(
    ("lines", "passed"),
    [
        (["100-continue, x"], ["x"]),
        (["x;y=1", "100-Continue"], ["x;y=1"]),
        (["100-continue", "100-continue"], []),
        (["x, y"], ["x, y"]),
    ],
)
def test_an_expectation_is_met_and_left_out_wherever_it_stands_in_the_list(lines: list[str], passed: list[str]) -> None:
    fields = CIMultiDict([("Host", "h"), *(("Expect", line) for line in lines)])
    assert headers.expects_continue(fields) is (lines != ["x, y"])
    assert headers.outgoing_headers(fields, None, "h").getall("Expect", []) == passed


def test_an_upgrade_is_accepted_to_protocols_that_were_offered() -> None:
    def accepts(*protocols: str) -> bool:
        return headers.accepts_upgrade("WebSocket, echo/1", CIMultiDict([("Upgrade", each) for each in protocols]))

    assert accepts("websocket")
    assert accepts("echo/1", "WebSocket")
    assert not accepts("echo")
    assert not accepts("websocket, tcp")


def test_a_field_that_comes_in_several_spellings_is_passed_on_as_it_came() -> None:
    fields = CIMultiDict([("Host", "h"), ("x-user", "a"), ("Accept", "*/*"), ("X-User", "b"), ("X-USER", "a")])
    outgoing = headers.outgoing_headers(fields, None, "h")
    passed = [item for item in outgoing.items() if item[0].lower() == "x-user"]
    assert passed == [("x-user", "a"), ("X-User", "b"), ("X-USER", "a")]


@pytest.mark.parametrize(
    ("fields", "upgrade"),
    [
        ({"Connection": "Upgrade", "Upgrade": "websocket"}, "websocket"),
        ({"Connection": "keep-alive, upgrade", "Upgrade": "echo/1"}, "echo/1"),
        ({"Connection": "Upgrade", "Upgrade": "h2c, websocket"}, "websocket"),
        ({"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}, None),
        ({"Upgrade": "websocket"}, None),
        ({"Connection": "Upgrade"}, None),
        ({"Connection": "Upgrade", "Upgrade": " , "}, None),
    ],
)
def test_an_upgrade_is_one_that_connection_names_and_that_is_not_h2c(
    fields: dict[str, str], upgrade: str | None
) -> None:
    assert headers.requested_upgrade(CIMultiDict(fields)) == upgrade


@pytest.mark.parametrize(("value", "is_utf8"), [("", True), ("a", True), ("größe €", True), ("a\udcffb", False)])
def test_what_is_not_utf8_cannot_be_forwarded(value: str, is_utf8: bool) -> None:
    assert headers.is_utf8(value) is is_utf8
    with contextlib.nullcontext() if is_utf8 else pytest.raises(errors.BadRequest, match="header X is not valid UTF-8"):
        headers.check_utf8("X", value)


@pytest.mark.parametrize(
    ("peer", "host", "element"),
    [
        ("192.0.2.7", "a.example", "for=192.0.2.7;host=a.example;proto=http"),
        ("192.0.2.7", "a.example:8080", 'for=192.0.2.7;host="a.example:8080";proto=http'),
        ("2001:db8::1", None, 'for="[2001:db8::1]";proto=http'),
        ("fe80::1%eth0", None, 'for="[fe80::1]";proto=http'),
        (None, None, "for=unknown;proto=http"),
        ("", 'q"\\', 'for=unknown;host="q\\"\\\\";proto=http'),
    ],
)
def test_a_forwarded_element_is_quoted_as_rfc_7239_asks(peer: str | None, host: str | None, element: str) -> None:
    assert headers.forwarded_element(peer, "http", host) == element


def test_forwarding_is_appended_and_the_first_proxy_keeps_its_word() -> None:
    fields = CIMultiDict(
        [
            ("X-Forwarded-For", "203.0.113.1"),
            ("X-Forwarded-For", "203.0.113.2"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "public.example"),
            ("Forwarded", "for=203.0.113.1"),
        ]
    )
    headers.add_forwarding(fields, "2001:db8::1", "http", "inner")
    assert fields.getall("X-Forwarded-For") == ["203.0.113.1, 203.0.113.2, 2001:db8::1"]
    assert fields.getall("X-Forwarded-Proto") == ["https"]
    assert fields.getall("X-Forwarded-Host") == ["public.example"]
    assert fields.getall("Forwarded") == ['for=203.0.113.1, for="[2001:db8::1]";host=inner;proto=http']


def test_an_unknown_peer_adds_no_x_forwarded_for() -> None:
    fields: CIMultiDict[str] = CIMultiDict()
    headers.add_forwarding(fields, None, "http", None)
    assert list(fields) == ["X-Forwarded-Proto", "Forwarded"]


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@given(st.ip_addresses(), st.none() | _VALUES)
def test_a_forwarded_element_stays_one_element_whatever_the_host_says(peer: object, host: str | None) -> None:
    bare = _QUOTED.sub("", headers.forwarded_element(str(peer), "http", host))
    assert '"' not in bare
    assert "," not in bare
    assert bare.count(";") == (2 if host else 1)


V1_0, V1_1 = (1, 0), (1, 1)


def status(version: tuple[int, int] = V1_1, *fields: tuple[str, str]) -> int | None:
    told = headers.objection(version, CIMultiDict([("Host", "h"), *fields]))
    return None if told is None else told.status


@pytest.mark.parametrize(
    ("coding", "expected"),
    [
        ("chunked", None), ("Chunked", None), (" chunked ", None), ("gzip, chunked", 501), ("gzip", 501), ("", 501),
        ("identity", 501), ("chunked, chunked", 501), ("chunked, gzip", 501), ("xchunked", 501), (",chunked", 501),
        ("chunked;x=y", 501),
    ],
)  # fmt: skip
def test_the_only_transfer_encoding_is_chunked(coding: str, expected: int | None) -> None:
    assert status(V1_1, ("Transfer-Encoding", coding)) == expected


def test_and_it_is_there_once() -> None:
    assert status(V1_1, ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")) == 501
    assert status(V1_1, ("Transfer-Encoding", "gzip"), ("Transfer-Encoding", "chunked")) == 501


@pytest.mark.parametrize(
    ("version", "expected"),
    [((1, 1), None), ((1, 0), None), ((2, 0), 505), ((3, 0), 505), ((1, 2), 505), ((0, 9), 400)],
)
def test_the_versions_are_1_1_and_1_0(version: tuple[int, int], expected: int | None) -> None:
    assert status(version) == expected


@pytest.mark.parametrize(
    "host",
    ["", "h", "h:80", "[::1]:80", "[::1", "h:port", "a,b", "a_b", "a%20b", "h:80:90", "*", "a;b", "a'b(c)!$&+=~.-_"],
)  # fmt: skip
def test_a_host_is_taken_if_all_its_bytes_may_be_in_one(host: str) -> None:
    assert headers.is_host(host)
    assert headers.objection(V1_1, CIMultiDict(Host=host)) is None


@pytest.mark.parametrize(
    "host",
    ["a b", "a/b", "c@d", "a b/c@d", "h?x", "h#x", "a\\b", "<h>", "ü", 'a"b', "a{b", "a|b", "a^b", "a`b", "h\n"],
)  # fmt: skip
def test_a_host_with_any_other_byte_is_400(host: str) -> None:
    told = headers.objection(V1_0, CIMultiDict(Host=host))
    assert told is not None
    assert (told.status, told.close) == (400, True)
