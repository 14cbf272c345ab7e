"""`make images`: what it builds, and what the Dockerfiles promise."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]
Program = Callable[[str, str], None]

ROOT = Path(__file__).parent.parent.parent
PARTS = ["sidecar", "injector", "predictor"]
DOCKERFILES = {part: (ROOT / part / "Dockerfile").read_text() for part in PARTS}


class Engine:
    """An engine that has some images, and from whose registry some can be pulled."""

    def __init__(self, engines: ModuleType, here: set[str], there: set[str]) -> None:
        self._engines = engines
        self.here = dict.fromkeys(here, "amd64")
        self._there = there

    def image(self, name: str) -> Any:
        return self._engines.Image("id", (), 0, self.here[name]) if name in self.here else None

    def pull(self, name: str, *, plain_http: bool, architecture: str = "") -> None:
        if name not in self._there:
            raise self._engines.Failed("`pull …` ended with status 1:\n  no such host")
        self.here[name] = architecture or "amd64"


@pytest.fixture(scope="module")
def images(script: Script) -> ModuleType:
    return script("images")


def wanted(**more: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{"base": "", "refresh_base": False, "debian_mirror": "", "plain_http": False, "arch": "", **more}
    )


@pytest.mark.parametrize("part", PARTS)
def test_an_image_starts_from_nothing_as_a_numeric_user_and_needs_no_shell(part: str) -> None:
    final = DOCKERFILES[part].partition("FROM scratch\n")[2]
    assert "\nUSER 65532:65532\n" in final
    assert f'\nENTRYPOINT ["carpool-{part}"]\n' in final
    assert "\nSTOPSIGNAL SIGTERM\n" in final
    assert "RUN" not in final


@pytest.mark.parametrize("part", PARTS)
def test_packages_are_installed_by_hash_and_never_built(part: str) -> None:
    installs = re.findall(r"-m pip (?:.*\\\n)*.*--requirement requirements\.txt", DOCKERFILES[part])
    assert len(installs) == 1
    assert "--require-hashes" in installs[0]
    assert "--only-binary :all:" in installs[0]


@pytest.mark.parametrize("part", PARTS)
def test_all_that_a_dockerfile_copies_is_there(part: str) -> None:
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILES[part])
    assert [source for line in copied for source in line.split() if not (ROOT / source).exists()] == []


@pytest.mark.parametrize("part", PARTS)
def test_dockerfiles_name_no_registry_or_index_but_the_public_ones(part: str) -> None:
    hosts = set(re.findall(r"\b(?:[a-z0-9-]+\.)+(?:io|org|com|net|dev)\b(?=/)", DOCKERFILES[part]))
    assert hosts <= {"docker.io", "download.pytorch.org"}


def test_the_images_are_built_on_the_same_base(script: Script) -> None:
    bases = {script("image_base").named_in(text) for text in DOCKERFILES.values()}
    assert bases == {"docker.io/library/python:3.13-slim-trixie"}
    assert script("image_base").SUITE in next(iter(bases))


@pytest.mark.parametrize(
    ("part", "torch", "tag"),
    [
        ("sidecar", "cuda", "1.0"),
        ("predictor", "cpu", "1.0"),
        ("predictor", "cuda", "1.0-cuda"),
        ("predictor", "none", "1.0-echo"),
    ],
)
def test_the_tag_tells_which_models_a_predictor_has(images: ModuleType, part: str, torch: str, tag: str) -> None:
    assert images.tag_of(part, "1.0", torch) == tag


def test_the_public_base_is_pulled_where_it_can_be(images: ModuleType, script: Script) -> None:
    public = script("image_base").named_in(DOCKERFILES["sidecar"])
    engine = Engine(script("image_engines"), set(), {public})
    assert images.choose_base(engine, wanted()) == public
    assert set(engine.here) == {public}


def test_a_base_that_was_asked_for_is_never_replaced_by_another(images: ModuleType, script: Script) -> None:
    engine = Engine(script("image_engines"), set(), set())
    with pytest.raises(images.Problem, match=r"the base mine:1 cannot be had: no such host"):
        images.choose_base(engine, wanted(base="mine:1"))


def test_a_base_that_is_here_needs_no_registry(images: ModuleType, script: Script) -> None:
    assert images.choose_base(Engine(script("image_engines"), {"mine:1"}, set()), wanted(base="mine:1")) == "mine:1"


def test_one_image_goes_to_a_file_and_several_to_a_folder(images: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "sidecar.tar"
    assert images.target_of(file, "sidecar", ["sidecar"]) == file
    assert images.target_of(tmp_path, "sidecar", PARTS) == tmp_path / "carpool-sidecar.tar"
    with pytest.raises(images.Problem, match="several images need a folder that is there; or choose one with --only"):
        images.target_of(file, "sidecar", PARTS)
    with pytest.raises(images.Problem, match=r"there is no folder .*missing; make it"):
        images.target_of(tmp_path / "missing" / "sidecar.tar", "sidecar", ["sidecar"])


def test_without_an_engine_the_status_says_that_it_cannot_be_done_here(
    images: ModuleType, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert images.main(["--only", "sidecar"]) == 2
    assert "images: error: images are built with docker or buildah" in capsys.readouterr().err


NO_COMPILER = """
case "$*" in
  *" --build-arg COMPILED=yes "*) echo 'RUN … || { echo "the tools to compile with cannot be had here"; exit 1; }'
    echo "#9 1.2 $FAULT" >&2; exit 1 ;;
  build*) exit 0 ;;
  inspect*) echo '{"FromImageID": "0123456789abcdef", "OCIv1":'
    echo '{"architecture": "amd64", "rootfs": {"diff_ids": ["sha256:a"]}}}' ;;
  images*) echo '[{"size": "1 MB"}]' ;;
  *) exit 1 ;;
esac"""


def build_sidecar(images: ModuleType, program: Program, tmp_path: Path, fault: str, *flags: str) -> None:
    """The sidecar's build by an engine that fails with this message where something is to be compiled."""
    program("git", "exit 1")
    program("buildah", f"FAULT='{fault}'\n{NO_COMPILER}")
    asked = images.arguments(["--only", "sidecar", *flags])
    images.Builder(images.image_engines.Buildah(), "base:1", "none", asked, tmp_path).build("sidecar")


@pytest.fixture
def logs(images: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LOGS", tmp_path / "logs")


@pytest.mark.usefixtures("logs")
def test_without_a_compiler_the_sidecar_is_built_as_python_and_it_is_said(
    images: ModuleType, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_sidecar(images, program, tmp_path, images.NO_COMPILER)
    told = capsys.readouterr().out
    assert "the tools to compile with cannot be had here" in told
    assert "built as plain Python" in told
    assert "image 0123456789ab" in told


@pytest.mark.usefixtures("logs")
def test_a_pure_image_is_built_without_trying_to_compile(
    images: ModuleType, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_sidecar(images, program, tmp_path, "not asked for", "--pure")
    assert "compile" not in capsys.readouterr().out


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("flags", [[], ["--compiled"]])
def test_a_sidecar_that_does_not_compile_is_not_built_as_python(
    images: ModuleType, program: Program, tmp_path: Path, flags: list[str]
) -> None:
    with pytest.raises(images.image_engines.Failed, match="error: carpool could not be compiled"):
        build_sidecar(images, program, tmp_path, "error: carpool could not be compiled", *flags)


@pytest.mark.usefixtures("logs")
def test_who_asks_for_a_compiled_image_gets_no_other(images: ModuleType, program: Program, tmp_path: Path) -> None:
    with pytest.raises(images.image_engines.Failed):
        build_sidecar(images, program, tmp_path, images.NO_COMPILER, "--compiled")


def test_the_dockerfile_compiles_unless_told_not_to_and_says_when_it_cannot(images: ModuleType) -> None:
    assert "\nARG COMPILED=yes\n" in DOCKERFILES["sidecar"]
    assert f'echo "{images.NO_COMPILER}"' in DOCKERFILES["sidecar"]


def test_labels_name_the_version_and_the_commit(images: ModuleType) -> None:
    labels = images.labels()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", labels["version"])
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", labels["revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])


def test_another_architecture_takes_no_base_that_is_here_for_this_one(images: ModuleType, script: Script) -> None:
    public = script("image_base").named_in(DOCKERFILES["sidecar"])
    engine = Engine(script("image_engines"), {public}, {public})
    assert images.choose_base(engine, wanted(arch="arm64")) == public
    assert engine.here == {public: "arm64"}


SAVING = """
case "$*" in
  build*) if [ -e {first} ]; then echo {second} > {now}; else echo a > {now}; touch {first}; fi ;;
  inspect*) printf '{{"FromImageID": "0123456789abcdef", "OCIv1":'
    printf '{{"architecture": "amd64", "rootfs": {{"diff_ids": ["sha256:%s"]}}}}}}' "$(cat {now})" ;;
  "images --all"*) echo '[]' ;;
  images*) echo '[{{"size": "1 MB"}}]' ;;
  push*) file=${{4#docker-archive:}}; : > "${{file%%:*}}" ;;
  *) exit 1 ;;
esac"""


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("second", ["a", "b"], ids=["the same", "another"])
def test_an_image_is_built_twice_and_both_are_kept_where_they_differ(
    images: ModuleType, program: Program, tmp_path: Path, second: str
) -> None:
    program("git", "exit 1")
    program("buildah", SAVING.format(first=tmp_path / "first", now=tmp_path / "now", second=second))
    builder = images.Builder(images.image_engines.Buildah(), "base:1", "none", images.arguments([]), tmp_path)
    found = builder.check("injector")
    assert [path.name for path in found] == ([] if second == "a" else ["injector-1.tar", "injector-2.tar"])
    assert sorted(path.name for path in images.LOGS.glob("*.tar")) == [path.name for path in found]
