"""`carpool-sidecar advise` and `plan --from`: a table a person can trust, JSON, and clear words for bad input."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from carpool_sidecar.app import advise_command, cli
from carpool_sidecar.planning import advice, advise_text, command, planner, service_times
from carpool_sidecar.recording import document
from tests import loopback
from tests.planning import recordings

SLOW = document.Setting(policy="window", max_latency=50.0, max_batch_size=8)
QUICK = planner.Effort(short=2_000, long=5_000)


@pytest.fixture(scope="module")
def arrivals() -> bytes:
    return recordings.written(recordings.recording(SLOW))


@pytest.fixture
def file(tmp_path, arrivals):
    path = tmp_path / "arrivals.jsonl"
    path.write_bytes(arrivals)
    return str(path)


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    printed = capsys.readouterr()
    return caught.value.code, printed.out, printed.err


def rows_of(out: str) -> dict[str, list[str]]:
    """Cells of the table by label."""
    table = out.split("\n\n")[1].splitlines()[2:]
    return {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line)[1:] for line in table}


def test_the_table_has_what_was_measured_its_replay_and_what_would_have_been(file, capsys):
    code, out, err = run(["advise", "--from", file, "--pods", "2"], capsys)
    assert (code, [line for line in err.splitlines() if not line.startswith("replaying: ")]) == (0, [])
    assert re.match(
        r"What 3,\d\d\d requests of 10 s \(\d+\.?\d* requests/s, one instance each\) would have met:\n", out
    )
    rows = rows_of(out)
    assert list(rows)[:2] == ["measured", "as it is, replayed"]
    assert {"no batching", "max batch size 4", "max batch size 16", "adaptive", "window of 0 ms", "1 pod"} <= {
        label.removesuffix(" *") for label in rows
    }
    measured, replayed = rows["measured"], rows["as it is, replayed"]
    assert float(replayed[3]) == pytest.approx(float(measured[3]), rel=0.1)  # mean batch
    assert float(replayed[5]) == pytest.approx(float(measured[5]), rel=0.1)  # mean milliseconds
    assert "The replay of the present settings is near enough to compare settings." in out
    assert re.search(r"\nSet --\S.*: requests would have taken \d+\.\d ms on average, in\s+place of \d+\.\d\.\n$", out)
    assert max(map(len, out.splitlines())) <= 120


def test_with_an_objective_settings_are_rated_by_what_is_in_time(file, capsys):
    code, out, _ = run(["advise", "--from", file, "--slo", "30"], capsys)
    assert code == 0
    cells = rows_of(out)["as it is, replayed"]
    before = float(cells[-1].removesuffix("%"))
    after = float(re.search(r"(\d+\.\d)% of the\s+requests\s+would have been answered within 30\s+ms", out)[1])
    assert after > before + 3


def test_json_has_the_same_figures(file, capsys):
    code, out, _ = run(["advise", "--from", file, "--slo", "30", "--json"], capsys)
    told = json.loads(out)
    assert code == 0
    assert (told["cases"][0]["label"], told["cases"][0]["changes"]) == ("as it is", {})
    assert told["slo_ms"] == 30
    assert told["off"] < 0.1
    assert told["differences"]["mean_batch"]["measured"] == pytest.approx(told["cases"][0]["mean_batch"], rel=0.1)
    best = next(case for case in told["cases"] if case["label"] == told["best"])
    assert best["in_time"] >= max(case["in_time"] for case in told["cases"] if case["pods"] == 1) - 0.001
    assert told["advice"].startswith(f"Set {told['flags']}: ")


def test_settings_that_are_best_are_left_alone(capsys, tmp_path):
    path = tmp_path / "arrivals.jsonl"
    idle = document.Setting(policy="window", max_latency=0.0)
    path.write_bytes(recordings.written(recordings.recording(idle, rate=30)))
    code, out, _ = run(["advise", "--from", str(path)], capsys)
    assert code == 0
    assert out.endswith("Leave the settings as they are: nothing that was tried would have been clearly better.\n")


def test_a_replay_that_is_far_off_is_said_to_be():
    recording = recordings.recording(SLOW)
    recording.present[0].measured.request.sum *= 2
    found = advice.advise(recording)
    assert found.off > advice.FAR
    text = advise_text.text(found, 1)
    assert "is far off: take the rest with care" in text
    assert "Try it before you trust it" in text or "Leave the settings" in text


def test_fewer_pods_are_advised_where_they_would_have_been_enough(capsys, tmp_path):
    path = tmp_path / "arrivals.jsonl"
    path.write_bytes(recordings.written(recordings.recording(document.Setting(policy="window", max_latency=0.0), 50)))
    _, out, _ = run(["advise", "--from", str(path), "--pods", "4", "--slo", "200"], capsys)
    assert re.search(r"; 2 pods would have been enough for\s+99\.0%\.\n$", out)


def test_recorded_arrivals_come_from_standard_input(file, capsys, monkeypatch):
    with open(file, "rb") as opened:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(opened.read())))
    code, out, _ = run(["advise", "--from", "-", "--json"], capsys)
    assert code == 0
    assert json.loads(out)["requests"] > 2_500


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["--from", "missing.jsonl"], "--from: missing.jsonl cannot be read: No such file or directory"),
        (["--from", __file__], "these are no recorded arrivals: allowed is what /arrivals"),
        (["--slo", "0"], "--slo: got '0': must be a number from 0.1 to 60,000"),
        (["--pods", "0"], "--pods: got '0': must be a whole number from 1 to 100,000"),
        (["--share", "1"], "--share: got '1': must be a number from 0.5 to 0.999"),
        (["--admin-port", "0"], "--admin-port: (CARPOOL_ADMIN_PORT) got '0': must be a port"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_bad_input_is_told_in_one_line(changes, complaint, capsys):
    code, out, err = run(["advise", *changes], capsys)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert err.startswith("carpool-sidecar advise: error: ")


def test_too_few_requests_are_told(capsys, tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_bytes(recordings.written(recordings.recording(SLOW, rate=20, seconds=2)))
    assert advise_command.main(["--from", str(path)], {}) == 1
    assert re.search(r"error: \d\d requests were recorded under the settings in force", capsys.readouterr().err)


def test_a_sidecar_that_is_not_there_is_told(capsys):
    [port] = loopback.free_ports(1)
    assert advise_command.main(["--admin-port", str(port)], {}) == 1
    assert f"the admin port 127.0.0.1:{port} cannot be reached: Connection refused" in capsys.readouterr().err


def test_ctrl_c_ends_it_without_a_traceback(file, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(advice, "advise", interrupted)
    assert advise_command.main(["--from", file], {}) == 130


# --- plan --from ------------------------------------------------------------------------------------------------------


def test_a_plan_takes_rate_and_predictor_from_the_recording(file, capsys):
    assert command.main(["--from", file, "--slo", "100", "--json"], QUICK) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rate"] == pytest.approx(300, rel=0.1)
    assert told["max_batch_size"] == 8
    assert told["recorded_requests"] > 2_500
    assert service_times.parse(told["service"]).seconds(8, 0.0) == pytest.approx(0.014 + 0.001, rel=0.15)
    assert told["pods"] == 1


def test_a_plan_scales_what_was_recorded_to_the_rate(file, capsys):
    argv = ["--from", file, "--slo", "100", "--rate", "3000", "--service", "10+0.5n"]
    assert command.main(argv, QUICK) == 0
    out = capsys.readouterr().out
    assert " for 3,000 requests/s" in out
    assert "as recorded, 1 instances each" in out
    assert int(out.split()[0]) in range(5, 9)  # a full batch of 8 takes 14 ms


@pytest.mark.parametrize("balancer", [*planner.Balancing])
def test_a_plan_counts_the_instances_of_requests(balancer, tmp_path, capsys):
    path = tmp_path / "arrivals.jsonl"
    path.write_bytes(recordings.written(recordings.recording(SLOW, rate=100, rows=4)))
    argv = ["--from", str(path), "--slo", "100", "--rate", "1500", "--balancer", balancer, "--json"]
    argv += ["--service", "10+0.5n"]
    assert command.main(argv, QUICK) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pods"] >= 1500 * 4 / (8 / 0.014) * 0.95
    assert told["chosen"]["load"] == pytest.approx(1500 * 4 / told["pods"] / (8 / 0.014), rel=0.02)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_latency": 0.0}, "--max-latency 0"),
        ({"policy": "adaptive", "slo": 50.0, "max_latency": None}, "--policy adaptive --slo 50 without --max-latency"),
        ({"max_in_flight": None}, "no --max-in-flight"),
    ],
)
def test_flags_are_written_as_they_are_set(changes, words):
    assert advise_text.flags(changes) == words


def test_the_documents_show_a_table_as_the_command_prints_it(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    ((asked, told),) = re.findall(
        r"```text\n\$ kubectl[^\n]* carpool-sidecar (advise [^\n]*)\n(.*?)```", page, re.DOTALL
    )
    path = tmp_path / "arrivals.jsonl"
    setting = document.Setting(policy="window", max_latency=30.0, max_batch_size=16)
    path.write_bytes(recordings.written(recordings.recording(setting, rate=400)))
    code, out, _ = run([*asked.split(), "--from", str(path)], capsys)
    assert code == 0
    assert out.split("\n\n")[1].split("\n")[0].split() == told.split("\n\n")[1].split("\n")[0].split()
    printed, shown = ({label.removesuffix(" *") for label in rows_of(text) if ";" not in label} for text in (out, told))
    assert shown
    assert shown <= printed
    assert [part.split()[0] for part in out.split("\n\n")[:3]] == [part.split()[0] for part in told.split("\n\n")[:3]]
