"""The bytes of a request's head: complete, the same for the same, and nothing callers can break out of."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies

from carpool_sidecar import errors
from carpool_sidecar.upstream import requests

TARGET = "/v1/models/m:predict"


@pytest.fixture
def writer():
    return requests.HeadWriter("127.0.0.1:8080")


def test_a_head_says_what_is_sent_and_what_is_wanted(writer):
    assert writer.write(TARGET, (("X-Request-ID", "a"),), 17) == (
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: application/json\r\n"
        b"Accept-Encoding: identity\r\nContent-Type: application/json\r\nX-Request-ID: a\r\nContent-Length: 17\r\n\r\n"
    )


def test_the_batchs_own_headers_replace_the_usual_ones(writer):
    head = writer.write(TARGET, (("content-type", "text/json"), ("ACCEPT", "*/*")), 0)
    assert head.lower().count(b"content-type") == 1
    assert b"content-type: text/json\r\n" in head
    assert b"ACCEPT: */*\r\n" in head
    assert b"Accept: " not in head


def test_a_head_like_the_last_one_differs_in_its_length_only_and_others_in_all(writer):
    cases = [(TARGET, ()), (TARGET, ()), (TARGET + "?x", ()), (TARGET, (("A", "b"),)), (TARGET, (("A", "c"),))]
    for length, (target, headers) in enumerate(cases):
        fresh = requests.HeadWriter("127.0.0.1:8080").write(target, headers, length)
        assert writer.write(target, headers, length) == fresh


def test_bytes_of_the_target_and_of_values_stay_as_they_are(writer):
    target = b"/a%2Fb/\xc3\xbc\xff?q=#f".decode(errors="surrogateescape")
    head = writer.write(target, (("Authorization", "größe"),), 0)
    assert head.startswith(b"POST /a%2Fb/\xc3\xbc\xff?q=#f HTTP/1.1\r\n")
    assert "Authorization: größe\r\n".encode() in head


@pytest.mark.parametrize("evil", ["\r\n", "\n", "\r", "\0", "\r\nTransfer-Encoding: chunked\r\n", "\x0b", "\x7f"])
def test_nothing_in_a_head_can_begin_another_line(writer, evil):
    for target, headers in [
        (f"/a{evil}b", ()),
        (TARGET, ((f"A{evil}", "b"),)),
        (TARGET, (("A", f"b{evil}"),)),
        (TARGET, (("A", f"{evil}b"),)),
    ]:
        with pytest.raises(errors.BadRequest):
            writer.write(target, headers, 0)


@pytest.mark.parametrize("target", ["", "a", "http://h/a", "/a HTTP/1.1", "/a b", "/a\tb", "*", "/\ud800"])
def test_a_target_is_a_path_in_one_word(writer, target):
    with pytest.raises(errors.BadRequest):
        writer.write(target, (), 0)


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "CONNECTION", "", "a b", "a:", "ä"])
def test_headers_that_frame_or_address_a_message_are_not_a_batchs_to_set(writer, name):
    with pytest.raises(errors.BadRequest):
        writer.write(TARGET, ((name, "1"),), 0)


def test_a_head_that_was_refused_leaves_no_trace(writer):
    before = writer.write(TARGET, (), 1)
    with pytest.raises(errors.BadRequest):
        writer.write(TARGET, (("A", "\n"),), 1)
    assert writer.write(TARGET, (), 1) == before


@hypothesis.given(strategies.text(max_size=20), strategies.text(max_size=20), strategies.text(max_size=20))
def test_whatever_is_put_in_a_head_has_as_many_lines_as_it_should(target, name, value):
    try:
        head = requests.HeadWriter("h:1").write("/" + target, (("X" + name, value),), 0)
    except errors.BadRequest:
        return
    assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == 8
    assert head.endswith(b"\r\n\r\n")
    assert head.partition(b"\r\n")[0].count(b" ") == 2
