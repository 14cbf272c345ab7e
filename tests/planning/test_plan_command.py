"""`carpool-sidecar plan`: an answer a person enjoys, one a program can read, and clear words for bad input."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from carpool_sidecar.app import cli
from carpool_sidecar.planning import command, planner
from carpool_sidecar.recording import document
from tests.planning import recordings

QUICK = planner.Effort(short=5_000, long=20_000)
ASK = ["plan", "--rate", "3000", "--slo", "100", "--service", "10+0.1n"]


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    printed = capsys.readouterr()
    return caught.value.code, printed.out, printed.err


def test_answer_names_the_pods_and_shows_one_fewer_and_head_room(capsys: pytest.CaptureFixture[str]) -> None:
    code = command.main(ASK[1:], QUICK)
    out, err = capsys.readouterr()
    assert code == 0
    assert out.startswith("2 pods for 3,000 requests/s, 99 % of them answered within 100 ms.\n")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("too few", "plan", "head-room"))}
    assert rows["too"].split()[2:5] == ["1", "3,000", "124%"]
    assert rows["plan"].split()[1:4] == ["2", "1,500", "62%"]
    assert rows["head-room"].split()[1:3] == ["3", "1,000"]
    assert "1 pod: asked for 124% of what full batches can do" in out
    assert "3 pods: room for 50% more requests, or for 1 pod out of service." in out
    assert "Simulated " in out
    assert max(map(len, out.splitlines())) <= 120
    assert all(line.startswith("simulating ") for line in err.splitlines())


def test_json_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--json", "--balancer", "round-robin", "--share", "0.95"]
    assert command.main([*ASK[1:], *more], QUICK) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["pods"], answer["fewer"]["pods"], answer["more"]["pods"]) == (2, 1, 3)
    assert (answer["slo_ms"], answer["share"], answer["balancer"]) == (100, 0.95, "round-robin")
    assert answer["chosen"]["in_time"] >= 0.95 > answer["fewer"]["in_time"]
    assert 10 < answer["chosen"]["p50_ms"] < answer["chosen"]["p99_ms"] < 100
    assert answer["simulated_requests"] > 30_000


@pytest.mark.parametrize(("given", "most"), [("64", 32), ("16", 16)])
def test_no_call_has_more_than_the_rule_of_the_requests_lets_into_one(
    given: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*ASK[1:], "--json", "--lists", "tei-embed", "--max-batch-size", given], QUICK) == 0
    assert json.loads(capsys.readouterr().out)["max_batch_size"] == most


def test_a_limit_in_bytes_holds_for_recorded_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "arrivals.jsonl"  # each of 100 bytes, from a predictor of 10 ms a call
    path.write_bytes(recordings.written(recordings.recording(document.Setting(policy="window", max_latency=0.0), 300)))
    rule = "{own: {path: /e, list: a, answers: b, max_characters: 250}}"
    ask = ["--from", str(path), "--slo", "100", "--rate", "600", "--json"]
    pods = []
    for more in ([], ["--lists", rule]):
        assert command.main([*ask, *more], QUICK) == 0
        pods.append(json.loads(capsys.readouterr().out)["pods"])
    assert pods[0] < pods[1]


def test_a_limit_in_bytes_needs_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    rule = "{own: {path: /e, list: a, answers: b, max_tokens: 5, characters_a_token: 4}}"
    code, _, err = run([*ASK, "--lists", rule], capsys)
    assert code == 2
    assert "limits in bytes, characters or tokens need --from" in err
    assert "--lists: 'nothing' is no built-in rule" in run([*ASK, "--lists", "nothing"], capsys)[2]


@pytest.mark.parametrize(
    ("lists", "to", "most"),
    [
        ("rerank", "tei-predict", 32), ("tei-rerank", "tei-predict", 32), ("tei-rerank", "vllm-score", 64),
        ("{own: {extends: rerank, max_batch_size: 8}}", "v1:m", 8), ("tei-rerank", "v2:m", 64),
    ],
)  # fmt: skip
def test_calls_of_pairs_have_the_limits_of_who_takes_them(
    lists: str, to: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*ASK[1:], "--json", "--max-batch-size", "64", "--lists", lists, "--rerank-to", to]
    assert command.main(asked, QUICK) == 0
    assert json.loads(capsys.readouterr().out)["max_batch_size"] == most


def test_as_pairs_recorded_requests_share_calls_whatever_their_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recordings.recording(document.Setting(policy="window", max_latency=0.0), 300)
    for _, block in made.blocks:
        block.keys = [*range(len(block.at))]
    path = tmp_path / "arrivals.jsonl"
    path.write_bytes(recordings.written(made))
    ask = ["--from", str(path), "--slo", "100", "--rate", "600", "--json", "--lists", "rerank"]
    pods = []
    for more in ([], ["--rerank-to", "v1:m"]):
        assert command.main([*ask, *more], QUICK) == 0
        pods.append(json.loads(capsys.readouterr().out)["pods"])
    assert pods[0] > pods[1]


def test_pairs_need_a_rule_with_a_query(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--lists", "tei-embed"]):
        code, _, err = run([*ASK, *more, "--rerank-to", "v1"], capsys)
        assert code == 2
        assert "error: --rerank-to needs a rule of --lists with a query" in err
    assert "--rerank-to: must be one of tei-predict" in run([*ASK, "--rerank-to", "tei"], capsys)[2]


def test_the_sidecars_own_time_counts_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["--rate", "60000", "--slo", "50", "--service", "0.5+0.01n", "--own-time", "0.2+0.02n"]
    assert command.main(ask, QUICK) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 pods for ")
    assert "What limits a pod is the sidecar's own core, and not the predictor.\n" in out
    assert "The sidecar's core: 0.2 ms for a batch and 0.02 ms for a request.\n" in out
    assert command.main([*ask[:-2], "--json"], QUICK) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pods"], told["own_batch_ms"]) == (2, 0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["--rate", "0"], "--rate: got '0': must be a number from 0.001 to 1,000,000,000"),
        (["--rate", "many"], "--rate: got 'many'"),
        (["--rate", "nan"], "--rate: got 'nan'"),
        (["--slo", "-1"], "--slo: got '-1'"),
        (["--slo", "10"], "longer than the objective of 10 ms: no number of pods helps"),
        (["--service", "10-n"], "--service: '10-' is not a number of milliseconds; allowed: "),
        (["--share", "1"], "--share: got '1': must be a number from 0.5 to 0.999"),
        (["--max-batch-size", "0"], "--max-batch-size: got '0': must be a whole number from 1 to 10,000"),
        (["--max-batch-size", "1.5"], "--max-batch-size: got '1.5'"),
        (["--workers", "0"], "--workers: got '0'"),
        (["--noise", "-0.1"], "--noise: got '-0.1'"),
        (["--overhead", "inf"], "--overhead: got 'inf'"),
        (["--balancer", "clever"], "--balancer: invalid choice: 'clever'"),
        (["--own-time", "1:2,2:3"], "--own-time: '1:2,2:3' is not a formula; allowed: like 0.1+0.02n"),
        (["--own-time", "some"], "--own-time: 'some' is not a number of milliseconds"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_bad_input_is_told_in_one_line(changes: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*ASK, *changes], capsys)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert err.startswith("carpool-sidecar plan: error: ")


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["plan", "--rate", "5"], capsys)
    assert code == 2
    assert "required: --slo, --service" in err


def test_help_of_both_commands_tells_of_planning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "carpool-sidecar plan --help" in run(["--help"], capsys)[1]
    code, out, _ = run(["plan", "--help"], capsys)
    assert code == 0
    assert "How many pods" in out
    assert "least-loaded" in out


@pytest.mark.timeout(300)  # 14 s of one core, which others may want too
def test_the_documents_show_what_the_command_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """The simulation is seeded; digits that another version of Python rounds in another way are no difference."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    ((asked, told),) = re.findall(r"```text\n\$ carpool-sidecar (plan [^\n]*)\n(.*?)```", page, re.DOTALL)
    code, out, _ = run(shlex.split(asked), capsys)
    assert code == 0
    assert words(out) == words(told)
    assert numbers(out) == [pytest.approx(number, rel=0.02, abs=0.15) for number in numbers(told)]


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def words(text: str) -> list[str]:
    return [" ".join(NUMBER.sub("N", line).split()) for line in text.splitlines()]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]
