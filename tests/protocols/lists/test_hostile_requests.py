"""What a caller sends neither changes what others get, nor holds the event loop and the memory for itself."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, json_rows
from carpool_sidecar.protocols.lists import codec, rules


def codec_of(*names: str) -> codec.Codec:
    return codec.Codec(rules.load(names), clock=lambda: 0.0)


def test_a_row_that_the_first_rule_refuses_does_not_take_the_next_request_from_it():
    by = codec_of("hf-toolkit", "mlflow")
    assert by.parse(b'{"inputs":[1]}', 10).template.rule.name == "mlflow"
    assert by.parse(b'{"inputs":["a"]}', 10).template.rule.name == "hf-toolkit"


@pytest.mark.parametrize("beside", ["columns", "elsewhere"])
def test_text_beside_rows_within_an_object_counts_as_much_as_on_top(beside):
    by = codec_of("mlflow")
    body = json.dumps({"dataframe_split": {beside: ["x" * 1000] * 70, "data": [[1]]}}).encode()
    with pytest.raises(errors.Unbatchable) as refused:
        by.parse(body, 10)
    assert refused.value.args[0] == errors.NotBatched.MEMBERS


def test_rows_within_an_object_may_be_large():
    body = json.dumps({"dataframe_split": {"columns": ["a"], "data": [["x" * 100_000]]}}).encode()
    assert codec_of("mlflow").parse(body, 10).row_count == 1


def test_answers_to_all_callers_are_written_once_for_each_form_however_forms_alternate():
    by = codec_of("{own: {path: /embed, list: texts, scalar: unwrapped, answers: vectors}}")
    payloads = [by.parse(body, 10) for body in (b'{"texts":"a"}', b'{"texts":["b"]}') * 2]
    parts = [messages.Part(messages.Request(each.key, 1, payload=each), 0, 1) for each in payloads]
    reply = interface.UpstreamResponse(b'{"vectors":[[0],[1],[2],[3]]}', {})
    result = by.merge("b", "/embed", parts).read(reply).rows
    written = [result.finished(payload.response_format) for payload in payloads]
    assert written[0] is written[2]
    assert written[1] is written[3]
    assert [each[place] for place, each in enumerate(written)] == [
        b'{"vectors":[0]}',
        b'{"vectors":[[1]]}',
        b'{"vectors":[2]}',
        b'{"vectors":[[3]]}',
    ]


def test_a_long_beginning_of_a_row_is_not_kept_for_each_row_of_the_answer():
    by = codec_of("openai-embeddings")
    payloads = [by.parse(b'{"input":"a"}', 10) for _ in range(64)]
    parts = [messages.Part(messages.Request(each.key, 1, payload=each), 0, 1) for each in payloads]
    first = '{"object":"%s","index":0,"embedding":[0]}' % ("a" * 100_000)
    rows = [first, *[f'{{"index":{place},"embedding":[{place}]}}' for place in range(1, 64)]]
    reply = interface.UpstreamResponse(b'{"data":[%b]}' % ",".join(rows).encode(), {})
    tracemalloc.start()
    result = by.merge("b", "/v1/embeddings", parts).read(reply).rows
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * 100_000
    assert result.finished(payloads[63].response_format)[63] == b'{"data":[{"index":0,"embedding":[63]}]}'


def test_the_length_of_a_row_that_is_nested_too_deeply_is_that_of_all_it_has():
    assert json_rows.length(b"[1," * 900_000 + b"1" + b"]" * 900_000) == 900_001


@pytest.mark.parametrize("row", [[1] * 30_000, {str(place): 1 for place in range(30_000)}, [[1, 2]] * 15_000])
def test_rows_with_so_many_values_that_a_look_at_each_takes_long_are_passed_on(row):
    by = codec_of("mlflow")
    with pytest.raises(errors.Unbatchable) as refused:
        by.parse(json.dumps({"instances": [row]}).encode(), 10)
    assert refused.value.args[0] == errors.NotBatched.MEMBERS


def test_rows_of_other_members_are_passed_on_for_their_shape():
    with pytest.raises(errors.Unbatchable) as refused:
        codec_of("mlflow").parse(b'{"instances":[{"a":1},{"b":1}]}', 10)
    assert refused.value.args[0] == errors.NotBatched.SHAPE
