"""Images of one program: what a container runtime finds in the archive, and that it finds the same each time."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import archives


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "tool-v1"
    file.write_bytes(b"\x7fELF and more")
    return file


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "carpool" / "e2e"


def image(program: Path, **more: Any) -> archives.Image:
    return archives.Image("tool:v1", program, "/ko-app/tool", **more)


def written(image: archives.Image, folder: Path) -> Path:
    target = folder / "image.tar"
    archives.write(image, target)
    return target


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {each.name: opened.extractfile(each).read() for each in opened if each.isfile()}  # type: ignore[union-attr]


def test_the_manifest_names_the_tag_the_config_and_the_layer(program: Path, tmp_path: Path) -> None:
    files = members(written(image(program), tmp_path))
    (manifest,) = json.loads(files["manifest.json"])
    assert manifest["RepoTags"] == ["tool:v1"]
    assert set(files) == {"manifest.json", manifest["Config"], *manifest["Layers"]}


def test_config_and_layer_are_named_by_their_digests(program: Path, tmp_path: Path) -> None:
    files = members(written(image(program), tmp_path))
    (manifest,) = json.loads(files["manifest.json"])
    (layer,) = manifest["Layers"]
    config = json.loads(files[manifest["Config"]])
    assert manifest["Config"] == f"{hashlib.sha256(files[manifest['Config']]).hexdigest()}.json"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(files[layer]).hexdigest()}"]


def test_the_program_is_what_starts_and_its_user_is_a_number(program: Path) -> None:
    config = image(program).config
    assert config["config"]["Entrypoint"] == ["/ko-app/tool"]
    assert config["config"]["User"] == "65532:65532"
    assert config["os"] == "linux"


def layer_of(image: archives.Image, folder: Path) -> dict[str, tarfile.TarInfo]:
    files = members(written(image, folder))
    (name,) = json.loads(files["manifest.json"])[0]["Layers"]
    (folder / "layer.tar").write_bytes(files[name])
    with tarfile.open(folder / "layer.tar") as layer:
        return {each.name: each for each in layer}


def test_the_layer_holds_the_program_that_everybody_may_run(program: Path, tmp_path: Path) -> None:
    layer = layer_of(image(program), tmp_path)
    assert list(layer) == ["ko-app", "ko-app/tool"]
    assert layer["ko-app/tool"].mode == 0o755
    assert layer["ko-app/tool"].size == program.stat().st_size


def test_a_temporary_folder_is_there_for_everybody_when_it_is_asked_for(program: Path, tmp_path: Path) -> None:
    layer = layer_of(image(program, temporary_folder=True), tmp_path)
    assert layer["tmp"].isdir()
    assert layer["tmp"].mode == 0o1777


def test_the_same_image_is_written_in_the_same_bytes(program: Path, tmp_path: Path) -> None:
    first = written(image(program), tmp_path).read_bytes()
    program.touch()
    assert written(image(program), tmp_path).read_bytes() == first


def test_nothing_but_the_archive_is_left_behind(program: Path, tmp_path: Path) -> None:
    written(image(program), tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {program.name, "image.tar"}


def test_an_archive_is_written_once(program: Path, cache: Path) -> None:
    first = archives.provide(image(program))
    written_at = first.stat().st_mtime_ns
    assert archives.provide(image(program)) == first
    assert first.stat().st_mtime_ns == written_at
    assert first.parent.parent == cache


def test_another_program_or_setting_gives_another_archive(program: Path, cache: Path) -> None:
    newer = program.with_name("tool-v2")
    newer.write_bytes(program.read_bytes())
    asked = [image(program), image(newer), image(program, temporary_folder=True), image(program)._replace(path="/tool")]
    assert len({archives.provide(each) for each in asked}) == len(asked)
    assert (cache / "images").is_dir()
