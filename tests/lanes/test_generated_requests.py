"""Any single request, well-formed or not: both lanes say the same to the client and to the predictor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import bodies, heads, streams
from tests.lanes.pair import Pair, Stream

pytestmark = pytest.mark.timeout(300)  # thousands of requests


_BODY = b'{"instances":[1]}'
_ECHO = heads.target(b"echo")
_USUAL = [b"Host: h", b"Content-Type: application/json", b"Content-Length: %d" % len(_BODY), b"X-Request-ID: r"]


def _with(*lines: bytes, start: bytes = b"POST " + _ECHO + b" HTTP/1.1", usual: list[bytes] = _USUAL) -> bytes:
    return b"\r\n".join([start, *usual, *lines, b"", _BODY])


def _instead(line: bytes) -> bytes:
    """A usual request with this line in place of the one of the same name."""
    name = line.partition(b":")[0].strip().lower()
    return _with(line, usual=[one for one in _USUAL if not one.lower().startswith(name + b":")])


def _with_ends(end: bytes) -> Iterator[bytes]:
    lines = [b"POST " + _ECHO + b" HTTP/1.1", *_USUAL, b""]
    for index in range(len(lines)):
        yield b"".join(line + (end if at == index else b"\r\n") for at, line in enumerate(lines)) + _BODY


_ODDITIES: dict[str, list[bytes]] = {
    "a field more": [_with(name + b": " + value) for name, value in heads.KNOWN],
    "another value": [_instead(name + b": " + value) for name, value in heads.KNOWN],
    "a field twice": [_with(line) for line in _USUAL] + [_with(line, line) for line in _USUAL],
    "a field less": [_with(usual=[*_USUAL[:index], *_USUAL[index + 1 :]]) for index in range(len(_USUAL))],
    "another name": [_with(name + b": v") for name in heads.NAMES],
    "another kind of value": [_with(b"X-A: " + value) for value in heads.VALUES],
    "another kind of id": [_instead(b"X-Request-ID: " + value) for value in heads.VALUES],
    "another length": [_instead(b"Content-Length: " + length) for length in heads.LENGTHS],
    "another spelling": [
        _instead(spell(*line.split(b": ", 1))) for line in (*_USUAL, b"Accept: a") for spell in heads.SPELLINGS
    ],
    "another target": [_with(start=b"POST " + target + b" HTTP/1.1") for target in heads.ODD_TARGETS],
    "another method": [_with(start=method + b" " + _ECHO + b" HTTP/1.1") for method in heads.METHODS],
    "another version": [_with(start=b"POST " + _ECHO + b" " + version) for version in heads.VERSIONS],
    "another end of a line": [request for end in streams.LINE_ENDS for request in _with_ends(end)],
    "another body": [
        streams.request(body, _ECHO)
        for body in (
            *bodies.INVALID,
            *bodies.COLUMNS,
            *(b'{"instances":[%b]}' % row for row in bodies.ROWS),
            *(b'{%b,"inputs":[1]}' % other for other in bodies.OTHERS),
        )
    ],
    "many fields": [_with(*(b"X-%d: v" % index for index in range(count))) for count in (60, 123, 124, 125, 200)],
    "many bytes": [_with(b"X-A: " + b"v" * size) for size in (8_000, 16_000, 16_300, 30_000, 65_500, 65_600)],
}


@pytest.mark.parametrize("name", _ODDITIES)
@pytest.mark.parametrize("place", ["first", "behind a usual one", "before a usual one"])
def test_a_usual_request_with_one_thing_about_it(lanes: Pair, name: str, place: str) -> None:
    before, behind = [_with()] * (place == "behind a usual one"), [_with()] * (place == "before a usual one")
    lanes.compare([Stream((*before, request, *behind), predicts=2 - (place == "first")) for request in _ODDITIES[name]])


def _some(kind: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Stream]]:
    return st.lists(kind.map(lambda part: Stream((part,))), min_size=1, max_size=20)


@streams.examples(40)
@given(_some(streams.proper()))
def test_what_good_clients_send_is_answered_alike(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


@streams.examples(150)
@given(_some(streams.odd()))
def test_any_spelling_of_a_head_is_answered_alike(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


@streams.examples(30)
@given(_some(streams.encoded()))
def test_any_content_encoding_is_answered_alike(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


@streams.examples(50)
@given(_some(streams.framed_twice()))
def test_no_framing_is_read_differently(lanes: Pair, sent: list[Stream]) -> None:
    lanes.compare(sent)


@streams.examples(100)
@given(st.lists(streams.single(), min_size=1, max_size=20))
def test_what_comes_before_behind_and_in_how_many_pieces_makes_no_difference_between_the_lanes(
    lanes: Pair, sent: list[Stream]
) -> None:
    lanes.compare(sent)
