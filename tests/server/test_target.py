"""Request targets, byte for byte."""

from __future__ import annotations

import pytest

from carpool_sidecar.batching import request_target


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        ("/a%2Fb?x=%20#y", "/a%2Fb?x=%20#y"),
        ("/http://a/b", "/http://a/b"),
        ("//a/b", "//a/b"),
        ("*", "*"),
        ("host:1", "host:1"),
        ("http://host:1/v1/models/m:predict?x", "/v1/models/m:predict?x"),
        ("HTTPS://user@host/", "/"),
        ("http://host", "/"),
        ("http://host?q=/x", "/?q=/x"),
        ("http://host//x", "//x"),
        ("http://host/?", "/?"),
        ("http://host/a#b", "/a#b"),
    ],
)
def test_the_origin_form_is_the_path_and_query_of_any_target(received: str, expected: str) -> None:
    assert request_target.origin_form(received) == expected
