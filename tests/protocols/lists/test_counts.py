"""What a server counted for a whole call is shared out or left out: no caller takes all of it for its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool.scheduling import messages
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import codec, rules

EMBEDDINGS = '{"object":"list","data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[2]}],"usage":%s,"model":"m"}'
USAGE = {"prompt_tokens": 147, "total_tokens": 147}


def shares(by: codec.Codec, answer: str, requests: tuple[str, ...] = ('{"input":["abc"]}', '{"input":["x"]}')) -> Any:
    """What callers with one row each are answered."""
    payloads = [by.parse(body.encode(), 10) for body in requests]
    parts = [messages.Part(messages.Request(each.key, 1, payload=each), 0, 1) for each in payloads]
    rows = by.merge("b", "/x", parts).read(interface.UpstreamResponse(answer.encode(), {})).rows
    return [
        json.loads(b"".join(each.response_format.render([messages.Piece(0, "b", rows[at : at + 1])]).body))
        for at, each in enumerate(payloads)
    ]


def openai() -> codec.Codec:
    return codec.Codec(rules.load(["openai-embeddings"]), lambda: 0.0)


def own(shared: str) -> codec.Codec:
    rule = f"{{own: {{path: /x, list: input, answers: data, shared: [{shared}]}}}}"
    return codec.Codec(rules.load([rule]), lambda: 0.0)


@pytest.mark.parametrize("written", ["12", "12.0", "1.2e1", "120e-1", "1.2E+1"])
def test_a_whole_number_is_shared_out_however_it_is_written(written: str) -> None:
    by = openai()
    for _ in range(2):  # the second answer is like the first
        found = [each["usage"] for each in shares(by, EMBEDDINGS % (f'{{"prompt_tokens":{written}}}'))]
        assert found == [{"prompt_tokens": 8}, {"prompt_tokens": 4}]  # by the bytes of their rows, 5 and 3


@pytest.mark.parametrize(
    "written",
    ["147.5", "-147", "1" + "0" * 18, "1e30", "1e400", '"147"', '"147 tokens"', '"\\u0031"', "[147]", '[{"n":147}]',
     '{"a":1,"a":2}'],
)  # fmt: skip
@pytest.mark.parametrize("after_plain", [False, True])
def test_a_count_that_cannot_be_shared_out_is_left_out(written: str, after_plain: bool) -> None:
    by = openai()
    if after_plain:
        shares(by, EMBEDDINGS % json.dumps(USAGE))
    for usage, expected in (
        ('{"prompt_tokens":%s,"total_tokens":12}', [{"total_tokens": 8}, {"total_tokens": 4}]),
        ('{"total_tokens":12,"prompt_tokens":%s}', [{"total_tokens": 8}, {"total_tokens": 4}]),
        (
            '{"total_tokens":12 , "a": %s ,"b":null, "prompt_tokens": %s }',
            [{"total_tokens": n, "b": None} for n in (8, 4)],
        ),
        ('{"prompt_tokens":%s, "total_tokens": %s}', [{}, {}]),
        ("%s", [None, None]),
    ):
        found = shares(by, EMBEDDINGS % usage.replace("%s", written))
        assert [each.get("usage") for each in found] == expected
        assert [each["model"] for each in found] == ["m", "m"]
        assert [each["data"] for each in found] == [[{"index": 0, "embedding": [n]}] for n in (1, 2)]


@pytest.mark.parametrize("written", ["null", "true", '"none"', "[]", "{}", "NaN"])
def test_what_counts_nothing_stays_as_it_was_written(written: str) -> None:
    found = shares(openai(), EMBEDDINGS % (f'{{"total_tokens":12,"details":{written}}}'))
    assert [str(each["usage"]["details"]) for each in found] == [str(json.loads(written))] * 2


def test_counts_within_usage_are_shared_out_whatever_they_are_called() -> None:
    usage = {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 6, "audio": {"seconds": 3.5, "n": 3}}}
    first, second = (each["usage"] for each in shares(openai(), EMBEDDINGS % json.dumps(usage)))
    assert first == {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4, "audio": {"n": 2}}}
    assert second == {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2, "audio": {"n": 1}}}


@pytest.mark.parametrize("where", ["meta.billed_units", "meta.billed_units.input_tokens", "meta", "n, meta, meta.n"])
def test_a_rule_names_counts_or_objects_of_counts_wherever_they_are(where: str) -> None:
    answer = '{"data":[[1],[2]],"n":12,"meta":{"n":"9","billed_units":{"input_tokens":12.0,"images":"3"}}}'
    first, second = shares(own(where), answer)
    assert [each["meta"]["billed_units"]["input_tokens"] for each in (first, second)] == [8, 4]
    assert ("images" in first["meta"]["billed_units"]) == (where == "meta.billed_units.input_tokens")
    assert ("n" in first["meta"]) == where.startswith("meta.billed")
    assert [each["n"] for each in (first, second)] == ([8, 4] if where.startswith("n") else [12, 12])


def test_rows_are_not_taken_for_counts_where_a_rule_names_what_they_are_in() -> None:
    rule = "{own: {path: /x, list: input, answers: out.*, shared: out}}"
    by = codec.Codec(rules.load([rule]), lambda: 0.0)
    first, second = shares(by, '{"out":{"a":[1,2],"n":12,"b":[3,4],"x":1.5}}')
    assert first == {"out": {"a": [1], "n": 8, "b": [3]}}
    assert second == {"out": {"a": [2], "n": 4, "b": [4]}}


@pytest.mark.parametrize("written", ["12", "12.0", '"12"', "-12", "12.5"])
def test_ollamas_count_is_shared_out_or_left_out(written: str) -> None:
    by = codec.Codec(rules.load(["ollama-embed"]), lambda: 0.0)
    answer = f'{{"model":"m","embeddings":[[1],[2]],"total_duration":14,"prompt_eval_count":{written}}}'
    found = shares(by, answer)
    expected = [8, 4] if written in ("12", "12.0") else [None, None]
    assert [each.get("prompt_eval_count") for each in found] == expected
    assert [each["total_duration"] for each in found] == [14, 14]
