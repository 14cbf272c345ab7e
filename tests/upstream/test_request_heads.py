"""The bytes of a request's head: complete, the same for the same, and nothing callers can break out of."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies

from carpool_sidecar import errors
from carpool_sidecar.upstream import predictor

TARGET = "/v1/models/m:predict"


def head_of(target, headers):
    return predictor.request_head(("127.0.0.1:8080", target, headers))


def test_a_head_says_what_is_sent_and_what_is_wanted():
    assert head_of(TARGET, (("X-Request-ID", "a"),)) == (
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: application/json\r\n"
        b"Accept-Encoding: identity\r\nContent-Type: application/json\r\nX-Request-ID: a\r\nContent-Length: "
    )


def test_the_batchs_own_headers_replace_the_usual_ones():
    head = head_of(TARGET, (("content-type", "text/json"), ("ACCEPT", "*/*")))
    assert head.lower().count(b"content-type") == 1
    assert b"content-type: text/json\r\n" in head
    assert b"ACCEPT: */*\r\n" in head
    assert b"Accept: " not in head


def test_bytes_of_the_target_and_of_values_stay_as_they_are():
    target = b"/a%2Fb/\xc3\xbc\xff?q=#f".decode(errors="surrogateescape")
    head = head_of(target, (("Authorization", "größe"),))
    assert head.startswith(b"POST /a%2Fb/\xc3\xbc\xff?q=#f HTTP/1.1\r\n")
    assert "Authorization: größe\r\n".encode() in head


@pytest.mark.parametrize("evil", ["\r\n", "\n", "\r", "\0", "\r\nTransfer-Encoding: chunked\r\n", "\x0b", "\x7f"])
def test_nothing_in_a_head_can_begin_another_line(evil):
    for target, headers in [
        (f"/a{evil}b", ()),
        (TARGET, ((f"A{evil}", "b"),)),
        (TARGET, (("A", f"b{evil}"),)),
        (TARGET, (("A", f"{evil}b"),)),
    ]:
        with pytest.raises(errors.BadRequest):
            head_of(target, headers)


@pytest.mark.parametrize("target", ["", "a", "http://h/a", "/a HTTP/1.1", "/a b", "/a\tb", "*", "/\ud800"])
def test_a_target_is_a_path_in_one_word(target):
    with pytest.raises(errors.BadRequest):
        head_of(target, ())


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "CONNECTION", "", "a b", "a:", "ä"])
def test_headers_that_frame_or_address_a_message_are_not_a_batchs_to_set(name):
    with pytest.raises(errors.BadRequest):
        head_of(TARGET, ((name, "1"),))


@hypothesis.given(strategies.text(max_size=20), strategies.text(max_size=20), strategies.text(max_size=20))
def test_whatever_is_put_in_a_head_has_as_many_lines_as_it_should(target, name, value):
    try:
        head = predictor.request_head(("h:1", "/" + target, (("X" + name, value),)))
    except errors.BadRequest:
        return
    assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == 6
    assert head.endswith(b"\r\nContent-Length: ")
    assert head.partition(b"\r\n")[0].count(b" ") == 2
