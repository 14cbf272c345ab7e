"""What docker and buildah are told, and how it is said when neither can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]
Program = Callable[[str, str], None]


@pytest.fixture(scope="module")
def engines(script: Script) -> ModuleType:
    return script("image_engines")


def recipe(engines: ModuleType, **more: Any) -> Any:
    secrets = {"pip.conf": Path("/private/pip.conf")}
    return engines.Recipe(
        Path("sidecar/Dockerfile"), "carpool-sidecar:1", {"BASE": "python"}, {"version": "1"}, secrets, **more
    )


@pytest.mark.parametrize("name", ["Docker", "Buildah"])
def test_secrets_are_handed_over_as_files_and_labels_by_name(engines: ModuleType, name: str) -> None:
    command = getattr(engines, name)().build_command(recipe(engines), Path("."))
    told = list(itertools.pairwise(command))
    assert ("--secret", "id=pip.conf,src=/private/pip.conf") in told
    assert ("--build-arg", "BASE=python") in told
    assert ("--build-arg", "SOURCE_DATE_EPOCH=0") in told
    assert ("--label", "org.opencontainers.image.version=1") in told
    assert ("--tag", "carpool-sidecar:1") in told
    assert "--no-cache" not in command
    assert command[-1] == "."


@pytest.mark.parametrize("name", ["Docker", "Buildah"])
def test_a_fresh_build_uses_nothing_of_earlier_ones(engines: ModuleType, name: str) -> None:
    assert "--no-cache" in getattr(engines, name)().build_command(recipe(engines, fresh=True), Path("."))


def test_buildah_gives_all_files_one_time(engines: ModuleType) -> None:
    command = engines.Buildah().build_command(recipe(engines, epoch=86400), Path("."))
    assert command[command.index("--timestamp") + 1] == "86400"


def test_the_operators_isolation_wins(engines: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDAH_ISOLATION", "rootless")
    command = engines.Buildah().build_command(recipe(engines), Path("."))
    assert command[command.index("--isolation") + 1] == "rootless"


@pytest.mark.parametrize(
    ("size", "count"), [("86.9 MB", 86_900_000), ("1.2 GB", 1_200_000_000), ("512 B", 512), (7, 7), ("3.5 KB", 3500)]
)
def test_sizes_are_read_as_buildah_writes_them(engines: ModuleType, size: str | int, count: int) -> None:
    assert engines.to_bytes(size) == count


def test_without_an_engine_it_is_said_what_to_install(engines: ModuleType, program: Program) -> None:
    with pytest.raises(engines.Missing, match="docker or buildah, and neither is here; Debian: apt-get install"):
        engines.find("auto")


def test_docker_without_its_daemon_is_told_from_no_docker(engines: ModuleType, program: Program) -> None:
    program("docker", "exit 1")
    with pytest.raises(engines.Missing, match="its daemon does not answer, or its BuildKit"):
        engines.find("auto")


def test_docker_whose_daemon_is_down_leaves_the_work_to_buildah(engines: ModuleType, program: Program) -> None:
    program("docker", "exit 1")
    program("buildah", "echo buildah version 1.28.2")
    assert isinstance(engines.find("auto"), engines.Buildah)
    with pytest.raises(engines.Missing):
        engines.find("docker")


@pytest.mark.parametrize(
    ("client", "buildx", "can"), [("20.10.24", 1, True), ("28.2.2", 1, False), ("28.2.2", 0, True)]
)
def test_docker_builds_where_its_client_has_buildkit(
    engines: ModuleType, program: Program, client: str, buildx: int, can: bool
) -> None:
    program("docker", f'case "$1" in\ninfo) echo id;;\nversion) echo {client};;\nbuildx) exit {buildx};;\nesac')
    assert engines.can_build_with_docker() is can


def test_a_command_that_fails_is_told_with_its_last_words(engines: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(engines.Failed, match=r"(?s)ended with status 3:\n  no such package\n\(all of it: .*log\)"):
        engines.run(["sh", "-c", "echo no such package; exit 3"], log)
    assert log.read_text() == "no such package\n"


def test_each_line_of_a_build_is_told_while_it_runs(engines: ModuleType) -> None:
    told: list[str] = []
    engines.run(["sh", "-c", "echo one; echo two >&2"], tell=told.append)
    assert sorted(told) == ["one", "two"]


def test_what_a_build_leaves_is_removed_from_the_top_down(
    engines: ModuleType, program: Program, tmp_path: Path
) -> None:
    gone = tmp_path / "upper"
    program("buildah", f'case "$2" in\nupper) touch {gone};;\nlower) [ -e {gone} ];;\n*) exit 1;;\nesac')
    engines.Buildah().remove(["lower", "upper", "in-use"])
    assert gone.exists()


@pytest.mark.parametrize("name", ["Docker", "Buildah"])
def test_another_architecture_is_asked_for_by_its_platform(engines: ModuleType, name: str) -> None:
    engine = getattr(engines, name)()
    assert [
        word
        for word in engine.build_command(recipe(engines, architecture="arm64"), Path("."))
        if "arm64" in word or "platform" in word
    ] == ["--platform", "linux/arm64"]
    assert "--platform" not in engine.build_command(recipe(engines), Path("."))
