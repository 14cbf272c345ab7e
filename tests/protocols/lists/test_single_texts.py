"""A text that stands for a list of one is what most callers send: it is taken a short way, by the rules of any."""

from __future__ import annotations

import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols.lists import answers, codec, rules


def codec_of(fields: str) -> codec.Codec:
    return codec.Codec(rules.load([f"{{a: {{path: /a, list: t, answers: $, {fields}}}}}"]), clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ("scalar: wrapped", answers.ResponseFormat.LIST),
        ("scalar: unwrapped", answers.ResponseFormat.ROW),
        ("scalar: by_row", answers.ResponseFormat.LIST_IF_NONE),
        ("scalar: wrapped, kinds: [number, string]", answers.ResponseFormat.LIST),
    ],
)
@pytest.mark.parametrize("body", [b'{"t":"x"}', b'{ "t" : "x" }', b'{"t":"\\"]"}'])
def test_a_text_is_a_row_where_the_rule_says_so_the_first_and_the_second_time(
    fields: str, form: answers.ResponseFormat, body: bytes
) -> None:
    by = codec_of(fields)
    for _ in range(2):
        payload = by.parse(body, 10)
        assert (payload.row_count, payload.response_format) == (1, form)
        assert payload.cut(0, 0, 1) == body.partition(b":")[2].rstrip(b"} ").strip()


@pytest.mark.parametrize(
    "fields", ["scalar: alone", "scalar: wrapped, kinds: [number]", "scalar: wrapped, kinds: [list]"]
)
@pytest.mark.parametrize("body", [b'{"t":"x"}', b'{ "t" : "x" }'])
def test_a_text_travels_alone_where_the_rule_does_not_take_it(fields: str, body: bytes) -> None:
    by = codec_of(fields)
    by.parse(b'{"t":["x"]}' if "kinds" not in fields else b'{"t":[1]}' if "number" in fields else b'{"t":[[1]]}', 10)
    with pytest.raises(errors.Unbatchable):
        by.parse(body, 10)


@pytest.mark.parametrize("value", [b'""', b'"x', b'x"', b'"a" "b"', b'"a","b"', b'"\n"', b'"'])
def test_what_only_looks_like_a_text_is_none(value: bytes) -> None:
    by = codec_of("scalar: wrapped")
    by.parse(b'{"t":"x"}', 10)
    with pytest.raises(errors.Unbatchable):
        by.parse(b'{"t":' + value + b"}", 10)
