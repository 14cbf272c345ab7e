"""Answers that are like the last one, or of single rows, are read and made in one go: no caller can tell."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import incremental_scan, interface, steps
from carpool_sidecar.protocols.lists import answers, codec, rules

OPENAI, TEI = "openai-embeddings", "tei-embed"


def codec_of(rule: str) -> codec.Codec:
    return codec.Codec([rules.built_in()[rule]], clock=lambda: 0.0)


class Batch:
    """Requests of one batch, and what their callers are answered."""

    def __init__(self, by: codec.Codec, *bodies: object) -> None:
        self._parts = []
        for body in bodies:
            payload = by.parse(json.dumps(body).encode(), 1000)
            request = messages.Request(payload.key, payload.row_count, payload=payload)
            self._parts.append(messages.Part(request, 0, payload.row_count))
        self._read = by.merge("b", "/path", self._parts).read

    def answered(self, body: bytes) -> list[tuple[interface.Headers, bytes]]:
        """Headers and body for each caller."""
        rows = self._read(interface.UpstreamResponse(body, {})).rows
        found, at = [], 0
        for request, start, stop in self._parts:
            piece = messages.Piece(0, "b", rows[at : at + stop - start])
            at += stop - start
            rendered = request.payload.response_format.render([piece])
            found.append((rendered.headers, b"".join(rendered.body)))
        return found


def asking(texts: list[str]) -> object:
    return {"input": texts, "model": "m"}


def answer(rows: list[str], tokens: int, more: str = "") -> bytes:
    places = range(len(rows))
    data = ",".join(f'{{"object":"embedding","index":{place},"embedding":{rows[place]}}}' for place in places)
    usage = f'{{"prompt_tokens": {tokens}, "total_tokens": {tokens}}}'
    return f'{{"object":"list","data":[{data}],"model":"100%{more}","usage":{usage}}}'.encode()


TWO = answer(["[1]", "[2]"], 4)
ODD = {
    "another model": answer(["[1]", "[2]"], 4, "other"),
    "numbers with a sign": answer(["[1]", "[2]"], -4),
    "numbers of 19 digits": answer(["[1]", "[2]"], 10**18),
    "numbers that begin with 0": TWO.replace(b": 4", b": 04"),
    "fractions to share": TWO.replace(b": 4", b": 1.4"),
    "no number": TWO.replace(b": 4", b": "),
    "no usage": TWO.partition(b',"usage"')[0] + b"}",
    "a list that ends early": TWO.replace(b"},{", b"}],{"),
    "two lists": TWO.replace(b',"model"', b',"data":[],"model"'),
    "NaN": answer(["[1]", "[NaN]"], 4),
    "no object": b"[1,2]",
    "nothing": b"",
    "cut": TWO[:-1],
    "one row": answer(["[1]"], 4),
    "three rows": answer(["[1]", "[2]", "[3]"], 4),
    "a number twice": TWO.replace(b'"index":1', b'"index":0'),
    "numbers from 1": TWO.replace(b'"index":1', b'"index":2').replace(b'"index":0', b'"index":1'),
    "numbered in fractions": TWO.replace(b'"index":1', b'"index":1.0'),
    "only the first is numbered": TWO.replace(b'"index":1,', b""),
    "numbered at the end": b'{"object":"list","data":[{"embedding":[1],"index":1},{"embedding":[2],"index":0}]}',
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_an_answer_unlike_the_last_is_judged_as_if_it_were_the_first(body: bytes) -> None:
    used = codec_of(OPENAI)
    Batch(used, asking(["a"]), asking(["b"])).answered(answer(["[1]", "[2]"], 7))
    results = []
    for by in (codec_of(OPENAI), used):
        try:
            results.append(str(Batch(by, asking(["a"]), asking(["b"])).answered(body)))
        except errors.CarpoolError as error:
            results.append(f"{type(error).__name__}: {error}")
    assert results[0] == results[1]


COLUMNS = b'{"outputs": {"x": [[1], [2]], "y": ["a", "b"]}}'
ODD_COLUMNS = {
    "another name": COLUMNS.replace(b'"y"', b'"z"'),
    "a column more": COLUMNS.replace(b'"y"', b'"w": [0, 0], "y"'),
    "a column of another length": COLUMNS.replace(b'"a", "b"', b'"a"'),
    "no list": COLUMNS.replace(b'["a", "b"]', b'"a"'),
    "text as between the columns": COLUMNS.replace(b'"a"', rb'"], \"y\": ["'),
    "a list that ends early": COLUMNS.replace(b"[1], ", b"[1]], "),
    "the same name twice": COLUMNS.replace(b'"y": ["a", "b"]', b'"y": ["a", "b"], "y": ["c", "d"]'),
    "NaN": COLUMNS.replace(b"[1]", b"NaN"),
    "written in another way": COLUMNS.replace(b", ", b","),
    "cut": COLUMNS[:-1],
}


@pytest.mark.parametrize("body", ODD_COLUMNS.values(), ids=ODD_COLUMNS)
def test_columns_unlike_the_last_are_judged_as_if_they_were_the_first(body: bytes) -> None:
    results = []
    for is_used in (False, True):
        by = codec_of("tfserving-columns")
        batch = Batch(by, {"inputs": {"a": [1]}}, {"inputs": {"a": [2]}})
        if is_used:
            assert [share for _, share in batch.answered(COLUMNS)][1] == b'{"outputs": {"x": [[2]], "y": ["b"]}}'
        try:
            results.append(str(batch.answered(body)))
        except errors.CarpoolError as error:
            results.append(f"{type(error).__name__}: {error}")
    assert results[0] == results[1]


ODD_INPUTS = {
    "as it was": {"a": [1, 2], "b": ["x", "y"]},
    "text as between the columns": {"a": [1, 2], "b": ['],"b":[', "y"]},
    "columns of other lengths": {"a": [1, 2], "b": ["x"]},
    "no rows": {"a": [], "b": []},
    "no list": {"a": [1, 2], "b": "x"},
    "another name": {"a": [1, 2], "c": ["x", "y"]},
    "a column more": {"a": [1, 2], "b": ["x", "y"], "c": [0, 0]},
    "another order": {"b": ["x", "y"], "a": [1, 2]},
}


@pytest.mark.parametrize("asked", ODD_INPUTS.values(), ids=ODD_INPUTS)
@pytest.mark.parametrize(
    "rule", ["tfserving-columns", "{own: {path: /p, list: inputs.a, along: inputs.b, answers: $}}"]
)
def test_requests_with_several_lists_are_understood_alike_the_first_and_the_second_time(
    rule: str, asked: dict[str, list[object]]
) -> None:
    results = []
    for is_used in (False, True):
        by = codec.Codec(rules.load([rule]), clock=lambda: 0.0)
        if is_used:
            by.parse(json.dumps({"inputs": ODD_INPUTS["as it was"]}).encode(), 1000)
        try:
            payload = by.parse(json.dumps({"inputs": asked}).encode(), 1000)
            results.append((payload.key, payload.row_count, payload.row_sizes(0, payload.row_count)))
        except errors.Unbatchable as error:
            results.append((str(error),))
    assert results[0] == results[1]


def test_answers_that_are_bare_lists_are_shared_out_alike_the_first_and_the_second_time() -> None:
    used = codec_of(TEI)
    for number in range(2):
        shares = Batch(used, {"inputs": ["a"]}, {"inputs": ["b"]}).answered(b"[[%d,0.5],[7]]" % number)
        assert [share for _, share in shares] == [b"[[%d,0.5]]" % number, b"[[7]]"]


def test_a_list_along_the_rows_may_be_left_empty_by_any_answer() -> None:
    by = codec_of("cohere-embed")
    for texts in (b'"a","b"', b"", b'"a","b"', b""):
        answer = b'{"embeddings":{"float":[[1],[2]]},"texts":[%b]}' % texts
        shares = Batch(by, {"texts": ["a"]}, {"texts": ["b"]}).answered(answer)
        own = [b'"a"', b'"b"'] if texts else [b"", b""]
        assert [share for _, share in shares] == [
            b'{"embeddings":{"float":[[%d]]},"texts":[%b]}' % each for each in zip((1, 2), own, strict=True)
        ]


def test_callers_of_one_batch_may_want_different_forms() -> None:
    chosen = rules.load(["{a: {path: /a, list: t, answers: $, scalar: unwrapped}}"])
    batch = Batch(codec.Codec(chosen, clock=lambda: 0.0), {"t": "x"}, {"t": ["y"]}, {"t": "z"})
    assert [share for _, share in batch.answered(b'["1%","2%","3%"]')] == [b'"1%"', b'["2%"]', b'"3%"']


@pytest.mark.parametrize("second", [b"[3,4] ", b"[3,4]\n", b" [3,4]", b"\n[ 3 , 4 ]\n"])
def test_white_space_around_a_list_is_not_the_lists(second: bytes) -> None:
    (rule,) = rules.load(["r:\n  path: /r\n  list: input\n  answers: $\n"])
    outlines: dict[str, answers.Outline] = {}
    shares = answers.Shares([0, 1, 2])
    for body in (b"[1,2]", second, b"[5,6]", second):
        rows = steps.at_once(answers.read(rule, shares, interface.UpstreamResponse(body, {}), outlines)).rows
        texts = [answers.ResponseFormat.LIST.render([messages.Piece(0, "b", rows[at : at + 1])]) for at in (0, 1)]
        assert [json.loads(b"".join(each.body)) for each in texts] == [[row] for row in json.loads(body)]


_ACCENTED = '["\u00e9"]'.encode()
_ROWS = st.lists(
    st.sampled_from([b"[1,2]", b"[]", b'"a,]b"', b'{"a":[1,{"b":"]"}]}', _ACCENTED, b"1e5", b"null", b"[[[", b""]),
    min_size=1, max_size=6,
)  # fmt: skip
_FORMS = st.sampled_from([b"%b", b"[%b]", b"[ %b ]", b'{"d":[%b],"n":7}', b'{"d":[%b],"n":7} ', b'{"d": [%b],"n":12}'])


@given(st.lists(st.tuples(_ROWS, _FORMS), min_size=1, max_size=5), st.sampled_from(["$", "d"]), st.integers(0, 2))
def test_an_answer_read_in_steps_is_what_it_is_at_once(told: Any, place: str, spread: int) -> None:
    (rule,) = rules.load([f"r:\n  path: /r\n  list: input\n  answers: {place}\n  shared: [n]\n"])
    first: dict[str, answers.Outline] = {}
    second: dict[str, answers.Outline] = {}
    for rows, form in told:
        # With `spread` the text is so large that it is cut.
        body = form % (b"," + b" " * 40_000 * spread).join(rows)
        response = interface.UpstreamResponse(body, {})
        shares = answers.Shares(range(len(rows) + 1), [1] * len(rows))
        at_once = shared(functools.partial(steps.at_once, answers.read(rule, shares, response, first)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(incremental_scan, "LARGE", 10)
            assert shared(functools.partial(steps.at_once, answers.read(rule, shares, response, second))) == at_once


def shared(read: Callable[[], interface.BatchPredictions]) -> Any:
    """What the callers are told, or why they are not."""
    try:
        found = read().rows
        forms = (answers.ResponseFormat.LIST, answers.ResponseFormat.ROW)
        pieces = [messages.Piece(0, "b", found[at : at + 1]) for at in range(len(found))]
        return [b"".join(form.render([piece]).body) for form in forms for piece in pieces]
    except errors.CarpoolError as error:
        return f"{type(error).__name__}: {error}"


def test_a_large_answer_like_the_last_one_is_read_in_steps_of_a_quarter_of_a_megabyte() -> None:
    (rule,) = rules.load(["r:\n  path: /r\n  list: input\n  answers: d\n"])
    outlines: dict[str, answers.Outline] = {}
    row = b"[" + b"0.25," * 50_000 + b"1]"
    shares = answers.Shares(range(17))
    response = interface.UpstreamResponse(b'{"d":[%b]}' % b",".join([row] * 16), {})
    steps.at_once(answers.read(rule, shares, response, outlines))
    count = sum(1 for _ in answers.read(rule, shares, response, outlines))
    assert count >= len(response.body) // incremental_scan.STEP
