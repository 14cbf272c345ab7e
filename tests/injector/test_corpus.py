"""The program that runs over other people's manifests: what it lists, compares and counts, on a small repository."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.injector.corpus import __main__ as program
from tests.injector.corpus import clones, listing, runs

DEPLOYMENT = b"""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    spec:
      containers:
      - {name: triton, image: tritonserver, args: [tritonserver]} # the server
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with the clone `some/models`, and a list of its own."""
    clone = tmp_path / "some" / "models"
    clone.mkdir(parents=True)
    (clone / "web.yaml").write_bytes(DEPLOYMENT)
    (clone / "chart.yaml").write_text("kind: Deployment\nmetadata: {{ .Values.x }}\n")
    (clone / "other.yaml").write_text("kind: Service\nspec: {}\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(clone), *words], check=True)
    monkeypatch.setattr(listing, "LIST", tmp_path / "list.txt")
    assert program.main([str(tmp_path), "--list", "some/models"]) == 0
    return tmp_path


def listed() -> listing.Entry:
    [repository] = listing.read(listing.LIST.read_text())
    [file] = repository.files
    assert (repository.name, file.path) == ("some/models", "web.yaml")
    [entry] = file.entries
    return entry


def test_files_with_objects_that_make_pods_are_listed_with_commit_and_decision(folder: pathlib.Path) -> None:
    assert listed() == listing.Entry("Deployment/web", "injected, port-swap of triton: 9083 behind 8000, gRPC 8001", "")
    assert clones.head(clones.find(folder, "some/models")) in listing.LIST.read_text()


def test_a_run_without_changes_says_so(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "1 files, 1 objects, 0 of them judged" in said
    assert "0 problems" in said
    assert "0 other than the list says" in said


def test_a_decision_that_changed_is_told_with_what_was_said_of_the_old_one(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = listing.LIST.read_text().replace("9083 behind 8000, gRPC 8001", "9083 behind 8000 # right: Triton")
    listing.LIST.write_text(text)
    assert program.main([str(folder)]) == 1
    assert "was injected, port-swap of triton: 9083 behind 8000 (right: Triton)" in capsys.readouterr().out
    assert program.main([str(folder), "--write"]) == 1
    assert listed().judgement == "JUDGED OTHERWISE: right: Triton"
    assert program.main([str(folder)]) == 0


def test_a_clone_that_is_not_there_is_told(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing.LIST.write_text(listing.LIST.read_text().replace("some/models", "some/others"))
    assert program.main([str(folder)]) == 2
    assert "some/others: no clone" in capsys.readouterr().err


def test_a_file_comes_back_to_the_byte_or_is_told_where_it_does_not() -> None:
    assert runs.run("web.yaml", DEPLOYMENT).changed == ""
    noted = DEPLOYMENT.replace(b"args: [tritonserver]", b'args: [tritonserver, "--http-port=8\\x30\\x300"]')
    assert "came back as" in runs.run("web.yaml", noted).changed


@pytest.mark.parametrize("content", [b"\xff", b"a: [", b"a: 1\na: 2\n"])
def test_a_file_that_is_no_manifest_says_why_and_does_not_crash(content: bytes) -> None:
    found = runs.run("f.yaml", content)
    assert found.unreadable
    assert found.entries == found.crashes == []


def test_the_list_is_written_as_it_is_read() -> None:
    text = listing.LIST.read_text()
    assert listing.write(listing.read(text)) == text


def test_a_line_of_the_list_in_the_wrong_place_is_told() -> None:
    with pytest.raises(ValueError, match="line 1 of the list"):
        listing.read("    Deployment/web: injected\n")


def test_the_corpus_is_as_large_as_it_was() -> None:
    """The 1,428 workloads of 21 repositories with which it began were not kept."""
    repositories = listing.read(listing.LIST.read_text())
    entries = [entry for each in repositories for file in each.files for entry in file.entries]
    assert len(repositories) >= 20
    assert len(entries) >= 1_400
    assert sum(bool(entry.judgement) for entry in entries) >= 150
    assert not [entry for entry in entries if entry.judgement.startswith("JUDGED OTHERWISE")]
