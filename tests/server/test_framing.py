"""What is refused as Go's net/http server refuses it, by a table of what that answers."""

from __future__ import annotations

import pytest
from aiohttp import HttpVersion
from multidict import CIMultiDict

from carpool_sidecar.server import framing

V1_0, V1_1 = HttpVersion(1, 0), HttpVersion(1, 1)


def status(version: HttpVersion = V1_1, *headers: tuple[str, str]) -> int | None:
    told = framing.objection(version, CIMultiDict([("Host", "h"), *headers]))
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
    assert status(HttpVersion(*version)) == expected


@pytest.mark.parametrize(
    "host",
    ["", "h", "h:80", "[::1]:80", "[::1", "h:port", "a,b", "a_b", "a%20b", "h:80:90", "*", "a;b", "a'b(c)!$&+=~.-_"],
)  # fmt: skip
def test_a_host_is_taken_if_all_its_bytes_may_be_in_one(host: str) -> None:
    assert framing.is_host(host)
    assert framing.objection(V1_1, CIMultiDict(Host=host)) is None


@pytest.mark.parametrize(
    "host",
    ["a b", "a/b", "c@d", "a b/c@d", "h?x", "h#x", "a\\b", "<h>", "ü", 'a"b', "a{b", "a|b", "a^b", "a`b", "h\n"],
)  # fmt: skip
def test_a_host_with_any_other_byte_is_400(host: str) -> None:
    told = framing.objection(V1_0, CIMultiDict(Host=host))
    assert told is not None
    assert (told.status, told.close) == (400, True)
