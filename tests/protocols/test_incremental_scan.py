"""Scanned while it arrives or all at once: the same bodies are fine, with the same instances."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_sidecar import errors
from carpool_sidecar.protocols import incremental_scan, v1

ATOMS = st.sampled_from([b"1", b"-2.5e3", b"0.125", b"true", b"null"])
ODD = st.sampled_from([b'"a,]"', b'{"a":[1]}', b"NaN", b"01", b"", b"1 2", b",", b"[", b"]", "é".encode(), b"}"])
SPACE = st.sampled_from([b"", b"", b" ", b"\n\t "])


@st.composite
def lists(draw, values):
    items = draw(st.lists(values, max_size=5))
    between = draw(st.sampled_from([b",", b", ", b" ,\n"]))
    return b"[" + draw(SPACE) + between.join(items) + draw(SPACE) + b"]"


ROWS = st.recursive(ATOMS, lists, max_leaves=40)


@st.composite
def bodies(draw, rows=ROWS):
    member = draw(st.sampled_from([b"instances", b"instances", b"inputs", b"others"]))
    space = [draw(SPACE) for _ in range(5)]
    return b'%b{%b"%b":%b%b%b}%b' % (*space[:2], member, space[2], draw(lists(rows)), *space[3:])


@st.composite
def broken(draw):
    """With things in it that a scan leaves to others, or bytes changed, added or taken away."""
    body = bytearray(draw(bodies(st.recursive(ATOMS | ODD, lists, max_leaves=40))))
    for _ in range(draw(st.integers(0, 2))):
        at, kind = draw(st.integers(0, len(body) - 1)), draw(st.integers(0, 2))
        body[at : at + (kind != 1)] = (
            draw(st.sampled_from([b"[", b"]", b",", b",,", b" ", b"1", b"-", b"}"])) if kind else b""
        )
    return bytes(body)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(incremental_scan, "_PIECE", 6)


def scanned(body, sizes, max_rows=1000):
    scan, at = incremental_scan.IncrementalScan(max_rows), 0
    for size in [30, *sizes, len(body)]:
        scan.feed(body[at : at + size])
        at = min(len(body), at + size)
    return scan.payload(body)


def parsed(body):
    try:
        return v1.parse_request(body)
    except (errors.CarpoolError, errors.Unbatchable):
        return None


def seen(payload):
    return payload and (payload.list_name, payload.body, bytes(payload.text), [bytes(row) for row in payload.rows])


SIZES = st.lists(st.integers(1, 30), max_size=30)


@given(body=bodies() | broken(), sizes=SIZES)
def test_what_a_scan_finds_is_what_the_parser_finds(body, sizes):
    found = scanned(body, sizes)
    assert found is None or seen(found) == seen(parsed(body))


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@given(rows=st.lists(st.lists(st.lists(st.floats(0, 1), min_size=1), min_size=1), min_size=1), sizes=SIZES)
def test_nested_lists_of_numbers_are_never_left_to_the_parser(rows, sizes, separators):
    body = json.dumps({"instances": rows}, separators=separators).encode()
    incremental_scan._PIECE = 60  # as in use: longer than any number with what may follow it
    assert seen(scanned(body, sizes)) == seen(parsed(body))


def test_more_rows_than_allowed_are_left_to_the_parser():
    incremental_scan._PIECE = 12
    body = b'{"instances":[' + b",".join([b"0.25"] * 20) + b"]}"
    assert scanned(body, [9] * 20, max_rows=20) is not None
    assert scanned(body, [9] * 20, max_rows=19) is None
