"""The page about lists: its rules load, its server is batched by its rule, and its tables name every field."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from fastapi.testclient import TestClient

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.app import lists_command
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import codec, rules
from carpool_sidecar.protocols.pairs import codec as pairs
from carpool_sidecar.protocols.pairs import destinations
from tests import tables

PAGE = (tables.ROOT / "docs" / "lists.md").read_text()
RULES = re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE)


def parsed(by: codec.Codec, *bodies: bytes) -> list[messages.Part]:
    payloads = [by.parse(body, 100) for body in bodies]
    requests = [messages.Request(payload.key, payload.row_count, payload=payload) for payload in payloads]
    assert len({request.key for request in requests}) == 1
    return [messages.Part(request, 0, request.payload.row_count) for request in requests]


def codec_of(name: str) -> codec.Codec:
    texts = [text for text in RULES if re.search(rf"(?m)^{name}:$", text)]
    return codec.Codec(rules.load(texts or [name]), clock=lambda: 0.0)


def merged(name: str, *bodies: bytes) -> Any:
    """The call of requests that share a batch by a rule of the page."""
    by = codec_of(name)
    return json.loads(b"".join(by.merge("b", "/", parsed(by, *bodies)).body))


def program(name: str) -> dict[str, Any]:
    """The names in a program of the page."""
    (text,) = re.findall(rf"(?ms)^```python\n(# {name}\n.*?)^```$", PAGE)
    made: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), made)
    return made


@pytest.mark.parametrize("text", RULES, ids=lambda text: re.search(r"(?m)^([\w-]+):$", text)[1])
def test_every_rule_loads(text):
    assert rules.load([text])


def test_rules_fit_in_a_variable():
    (text,) = re.findall(r"CARPOOL_LISTS='(.*)'", PAGE)
    assert [rule.name for rule in rules.load([text])] == ["my-embedder"]


def test_the_server_of_the_page_answers_a_batch_made_by_its_rule():
    made = program("embedder.py")
    by = codec_of("my-embedder")
    parts = parsed(by, b'{"texts": ["a b"]}', b'{"texts": ["c", "dd"]}')
    call = by.merge("b", "/embed", parts)
    with TestClient(made["app"]) as client:
        answer = client.post("/embed", content=b"".join(call.body), headers={"Content-Type": "application/json"})
    rows = call.read(interface.UpstreamResponse(answer.content, {})).rows
    shares = [
        b"".join(part.request.payload.response_format.render([messages.Piece(0, "b", rows[start:stop])]).body)
        for part, start, stop in zip(parts, (0, 1), (1, 3), strict=True)
    ]
    assert [json.loads(share) for share in shares] == [{"vectors": [[3, 1]]}, {"vectors": [[1, 0], [2, 0]]}]


def test_the_ranker_of_the_page_answers_pairs_as_shown():
    by = pairs.Codec([rules.built_in()["rerank"]], destinations.Destination.parse("tei-predict"))
    (sent,) = re.findall(r"""-d '(\{"query": .*\})' &$""", PAGE, re.MULTILINE)
    bodies = [sent.replace("""'"$query"'""", query).encode() for query in ("hot soup", "green tea")]
    payloads = [by.parse(body, 100) for body in bodies]
    requests = [messages.Request(each.key, each.row_count, payload=each) for each in payloads]
    call = by.merge("…", "/v1/rerank", [messages.Part(each, 0, 3) for each in requests])
    with TestClient(program("ranker.py")["app"]) as client:
        answer = client.post(call.target, content=b"".join(call.body), headers={"Content-Type": "application/json"})
    rows = call.read(interface.UpstreamResponse(answer.content, {})).rows
    told = b"".join(payloads[0].response_format.render([messages.Piece(0, "…", rows[0:3])]).body)
    assert told.decode() in PAGE


def test_a_rule_is_tried_as_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES[0])
    program, shown = re.findall(r"(?ms)^```sh\n(echo .*?)^```\n\n```text\n(.*?)^```$", PAGE)[0]
    *files, command = program.splitlines()
    for line in files:
        _, text, _, name = shlex.split(line)
        (tmp_path / name).write_text(text)
    assert lists_command.main(shlex.split(command)[2:]) == 0
    assert capsys.readouterr().out == shown


def test_examples_do_what_is_said_of_them():
    assert merged("embeddings", b'{"input":"a","user":"1"}', b'{"input":"b","user":"2"}') == {"input": ["a", "b"]}
    assert merged("tei-predict", b'{"inputs":[["a"]]}', b'{"inputs":[["b","c"]]}') == {"inputs": [["a"], ["b", "c"]]}
    with pytest.raises(errors.Unbatchable):
        codec_of("tei-predict").parse(b'{"inputs":["a","b"]}', 100)
    columns = merged("mlflow-columns", b'{"inputs":{"a":[1,3],"b":[2,4]}}', b'{"inputs":{"a":[5],"b":[6]}}')
    assert columns == {"inputs": {"a": [1, 3, 5], "b": [2, 4, 6]}}
    with pytest.raises(errors.Unbatchable):
        codec_of("mlflow-columns").parse(b'{"inputs":{"messages":[{"role":"user"}]}}', 100)
    one, other = (
        b'{"features":{"user":[1],"item":[[2]],"size":[9,9]}}',
        b'{"features":{"user":[3],"item":[[4]],"size":[9,9]}}',
    )
    assert merged("two-towers", one, other) == {"features": {"user": [1, 3], "item": [[2], [4]], "size": [9, 9]}}
    (rule,) = codec_of("vllm-pooling")._rules
    assert rule.matches("/classify")
    assert rule.index == "index"


def test_every_field_is_explained():
    section = PAGE.partition("\n### Every field\n")[2].partition("\n#")[0]
    rows = set(re.findall(r"(?m)^- `(\w+)`", section))
    assert rows == {info.alias or name for name, info in rules.Rule.model_fields.items() if name != "name"} | {
        "extends"
    }


def test_every_built_in_rule_has_a_section():
    assert all(f"`{name}`" in PAGE.partition("<!-- end -->")[2] for name in rules.built_in())
