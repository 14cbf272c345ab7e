"""`carpool-sidecar lists`: rules shown, and tried on recorded requests, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carpool_sidecar.app import cli
from carpool_sidecar.protocols.lists import rules

OWN = "own:\n  path: /embed\n  list: texts\n  scalar: unwrapped\n  answers: vectors\n"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["lists", *argv])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "one.json").write_text('{"texts": "a"}')
    (tmp_path / "two.json").write_text('{"texts": ["b", "c"]}')
    (tmp_path / "odd.json").write_text('{"texts": []}')
    (tmp_path / "answer.json").write_text('{"vectors": [1, 2, 3]}')
    (tmp_path / "short.json").write_text('{"vectors": [1]}')
    return tmp_path


def test_the_built_in_rules_are_shown_where_none_is_named(capsys):
    assert run() == 0
    told = capsys.readouterr().out
    assert all(f"{name}: " in told for name in rules.built_in())


def test_it_says_what_becomes_of_requests_that_come_together_and_what_each_is_given(files, capsys):
    tried = ["own.yaml", "--path", "/embed", "--request", "one.json", "two.json", "--answer", "answer.json"]
    assert run(*tried) == 0
    assert capsys.readouterr().out == (
        "call 1 of 1: one.json, two.json\n"
        "  one.json: 1 row(s), 3 bytes\n"
        "  two.json: 2 row(s), 6 bytes\n"
        "  POST /embed\n"
        '  {"texts": ["a","b", "c"]}\n'
        '  one.json gets {"vectors": 1}\n'
        '  two.json gets {"vectors": [2, 3]}\n'
    )


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("max_characters: 4", "  75.0% of what the limits of its rule let into one call\n"),
        ("max_characters: 3", "  100.0% of what the limits of its rule let into one call\n"),
        ("max_bytes: 8", "  144.4% of what the limits of its rule let into one call: it becomes several calls\n"),
    ],
)
def test_it_says_how_much_of_a_call_requests_take_by_the_limits_of_their_rule(files, capsys, limits, told):
    (files / "own.yaml").write_text(f"{OWN}  {limits}\n")
    assert run("own.yaml", "--path", "/embed", "--request", "one.json", "two.json") == 0
    assert told in capsys.readouterr().out


def test_it_says_why_a_request_is_not_batched(files, capsys):
    assert run("own.yaml", "--path", "/embed", "--request", "odd.json", "one.json") == 1
    told = capsys.readouterr().out
    assert "odd.json: not batched, no_rows: " in told
    assert "call 1 of 1: one.json\n" in told


def test_it_says_that_an_answer_does_not_have_the_rows(files, capsys):
    tried = ["own.yaml", "--path", "/embed", "--request", "one.json", "two.json", "--answer", "short.json"]
    assert run(*tried) == 1
    assert "short.json: the predictor's answer has 1 rows; the batch has 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nothing"], "'nothing' is no built-in rule"),
        (["own.yaml", "--request", "one.json"], "--request and --answer need --path"),
        (["own.yaml", "--path", "/embed"], "--path needs --request FILE"),
        (["own.yaml", "--path", "/x", "--request", "one.json"], "no rule is for the path /x; there are rules for"),
        (["own.yaml", "--path", "/embed", "--request", "none.json"], "none.json cannot be read: No such file"),
        (["--nonsense"], "--nonsense"),
        (["tei-embed", "--rerank-to", "tei-predict"], "--rerank-to needs a rule of --lists with a query"),
        (["own.yaml", "--path", "/embed", "--request", "one.json", "--rerank-to", "v1"], "needs a rule of --lists"),
        (["tei-rerank", "--rerank-to", "tei"], "must be one of tei-predict, vllm-score, v1, and of v1 with a model"),
    ],
)  # fmt: skip
def test_arguments_that_are_wrong_end_with_one_line_and_status_2(files, capsys, argv, words):
    assert run(*argv) == 2
    assert words in capsys.readouterr().err


def test_a_rerank_request_is_shown_as_the_pairs_that_it_becomes(tmp_path, capsys):
    for name, query in (("one", "q"), ("two", "r")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"query": query, "texts": ["a"]}))
    (tmp_path / "answer.json").write_text('[[{"score": 0.5}], [{"score": 0.25}]]')
    files = [str(tmp_path / f"{name}.json") for name in ("one", "two", "answer")]
    words = ["tei-rerank", "--path", "/rerank", "--rerank-to", "tei-predict", "--request", *files[:2]]
    assert run(*words, "--answer", files[2]) == 0
    shown = capsys.readouterr().out
    assert '  POST /predict\n  {"inputs":[["q","a"],["r","a"]]}\n' in shown
    assert f'  {files[1]} gets [{{"index":0,"score":0.25}}]\n' in shown
    assert run(*words[:4], "v2", *words[5:]) == 2
    assert "calls of v2 depend on the model's metadata" in capsys.readouterr().err
