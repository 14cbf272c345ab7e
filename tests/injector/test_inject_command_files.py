"""`inject` and `uninject` among files and streams: what is read and written, the exit status, the words for callers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import testing

from carpool_injector import cli
from tests.injector.command_runs import DEPLOYMENT, SERVICE, Run


def test_in_place_writes_what_changes_and_nothing_to_standard_output(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    (tmp_path / "b.yaml").write_text(SERVICE)
    untouched = (tmp_path / "b.yaml").stat().st_ino
    result = run("inject", "-i", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "name: carpool\n" in (tmp_path / "a.yaml").read_text()
    assert (tmp_path / "b.yaml").stat().st_ino == untouched


def test_nothing_is_written_when_one_file_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    (tmp_path / "b.yaml").write_text("a: [1\n")
    result = run("inject", "-i", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"carpool-injector inject: {tmp_path / 'b.yaml'}:2:1: ")
    assert (tmp_path / "a.yaml").read_text() == DEPLOYMENT


def test_check_writes_nothing_and_tells_by_its_exit_status(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(DEPLOYMENT)
    result = run("inject", "--check", "-i", path)
    assert (result.exit_code, result.stdout, path.read_text()) == (1, "", DEPLOYMENT)
    run("inject", "-i", path)
    assert run("inject", "--check", path).exit_code == 0


def test_diff_shows_what_changes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(DEPLOYMENT)
    lines = run("inject", "--diff", path).stdout.splitlines()
    assert [line for line in lines if line.startswith("-") and not line.startswith("---")] == [
        "-          - --http_port=8080",
        "-        - containerPort: 8080",
    ]
    assert path.read_text() == DEPLOYMENT


def test_documents_that_begin_with_a_byte_order_mark_are_injected_and_keep_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    content = f"{DEPLOYMENT}---\n\ufeff{DEPLOYMENT.replace('name: iris', 'name: lily')}".encode()
    path.write_bytes(content)
    assert run("inject", "-i", path).stderr.endswith("2 injected\n")
    assert path.read_bytes().count(b"\n\xef\xbb\xbf# The iris model") == 1
    run("uninject", "-i", path)
    assert path.read_bytes() == content


def test_a_byte_order_mark_elsewhere_is_told_and_hides_nothing(run: Run) -> None:
    result = run("inject", text="# a comment\n\ufeffapiVersion: v1\nkind: Pod\n")
    assert result.exit_code == 2
    assert "stdin:2:1: a byte order mark hides this key; remove it" in result.stderr


@pytest.mark.parametrize("command", ["inject", "explain"])
def test_a_file_to_which_the_output_goes_is_not_taken_for_an_empty_one(tmp_path: Path, command: str) -> None:
    path = tmp_path / "a.yaml"
    with path.open("w") as out:  # as the shell does it: a.yaml is empty by now
        done = subprocess.run(
            [sys.executable, "-m", "carpool_injector", command, path], stdout=out, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert f"{path}: the output goes to it as well, and the shell empties it first; use --in-place" in done.stderr


def test_what_was_read_empty_is_told_to_be_empty(run: Run) -> None:
    assert "what was read is empty" in run("inject", text="\n").stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("inject", "--opted-in-only"), "nothing to do: nothing in there asks for the sidecar\n"),
        (("uninject",), "nothing to do: nothing in there has the sidecar\n"),
    ],
)
def test_objects_that_make_pods_are_not_said_to_make_none(run: Run, command: tuple[str, ...], words: str) -> None:
    assert run(*command, text=DEPLOYMENT).stderr == words
    assert run(*command, text=SERVICE).stderr == "nothing to do: no object in there makes pods\n"


@pytest.mark.parametrize("command", ["inject", "uninject"])
def test_diff_and_in_place_do_not_go_together(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(DEPLOYMENT)
    result = run(command, "--diff", "--in-place", path)
    assert (result.exit_code, result.stdout, path.read_text()) == (2, "", DEPLOYMENT)
    assert "--diff only shows what would change: leave out --in-place" in result.stderr


@pytest.mark.parametrize("args", [["inject"], ["inject", "--diff"], ["explain"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_one_line(tmp_path: Path, args: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = piped(args, full)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "standard output cannot be written: No space left on device" in result.stderr


@pytest.mark.parametrize("args", [["inject"], ["explain", "--output", "json"]])
def test_a_pipe_that_nobody_reads_ends_it_as_sigpipe_does(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        result = piped(args, closed)
    assert (result.returncode, result.stderr) == (141, "")


def test_no_standard_output_at_all_is_told() -> None:
    command = f"exec {shlex.join([sys.executable, '-m', 'carpool_injector', 'inject'])} >&-"
    result = subprocess.run(["sh", "-c", command], input=DEPLOYMENT, text=True, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 2
    assert result.stderr == "carpool-injector inject: standard output is closed; nothing was written\n"


def piped(args: list[str], out: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "carpool_injector", *args]
    return subprocess.run(command, input=DEPLOYMENT, text=True, stdout=out, stderr=subprocess.PIPE, check=False)


def test_a_template_of_helm_among_the_files_stops_all_and_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    (tmp_path / "b.yaml").write_text("kind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n")
    result = run("inject", "-i", tmp_path)
    assert (result.exit_code, (tmp_path / "a.yaml").read_text()) == (2, DEPLOYMENT)
    assert f"{tmp_path / 'b.yaml'}:3:10: a key must be a string" in result.stderr
    assert "helm template CHART | carpool-injector inject" in result.stderr


def test_several_files_come_out_as_one_stream(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    (tmp_path / "b.yaml").write_text(SERVICE)
    result = run("inject", tmp_path)
    assert result.stdout.endswith(f"---\n{SERVICE}")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["/nowhere.yaml"], "/nowhere.yaml: cannot be read: No such file or directory"),
        (
            ["--annotate", "x"],
            "Invalid value for --annotate: 'x' must be KEY=VALUE; see carpool-injector inject --help",
        ),
        (["--annotate", "carpool.dev/max-batchsize=1"], "did you mean carpool.dev/max-batch-size?"),
        (["--annotate", "example.com/x=1"], "'example.com/x' is no setting"),
        (["--kubernetes-version", "new"], "'new' is no version such as 1.33"),
        (["--namespace-labels", "=x"], "'=x' must be KEY=VALUE"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
        (["--nonsense"], "No such option"),
    ],
)
def test_what_the_caller_has_to_mend_is_told_in_one_line_with_status_2(run: Run, args: list[str], problem: str) -> None:
    result = run("inject", *args, text=DEPLOYMENT)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("carpool-injector inject: ")


def test_colours_are_for_terminals_only(run: Run) -> None:
    assert "\x1b" not in run("inject", text=DEPLOYMENT).stderr
    coloured = testing.CliRunner().invoke(cli.program, ["inject"], input=DEPLOYMENT, color=True)
    assert "\x1b[32minjected" in coloured.stderr
    plain = testing.CliRunner().invoke(cli.program, ["inject"], input=DEPLOYMENT, color=True, env={"NO_COLOR": "1"})
    assert "\x1b" not in plain.stderr
