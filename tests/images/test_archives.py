"""Reading images from files, and telling in what two of them differ."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]
Files = Sequence[tuple[str, bytes, int]]


@pytest.fixture(scope="module")
def archives(script: Script) -> ModuleType:
    return script("image_archives")


def tar(files: Files) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as layer:
        for name, content, mode in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            layer.addfile(member, io.BytesIO(content))
    return made.getvalue()


def save(path: Path, *layers: Files, config: Mapping[str, object] | None = None) -> Path:
    """An archive as `docker save` writes it."""
    unpacked = [tar(files) for files in layers]
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in unpacked]
    told = {"rootfs": {"type": "layers", "diff_ids": digests}, "config": config or {}}
    named = {f"{number}.tar": layer for number, layer in enumerate(unpacked)}
    manifest = [{"Config": "config.json", "Layers": list(named)}]
    texts = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(told).encode()}
    path.write_bytes(tar([(name, content, 0o644) for name, content in {**texts, **named}.items()]))
    return path


def test_images_of_the_same_files_differ_in_nothing(archives: ModuleType, tmp_path: Path) -> None:
    one = save(tmp_path / "one", [("a", b"1", 0o644)], config={"Labels": {"version": "1"}})
    other = save(tmp_path / "other", [("a", b"1", 0o644)], config={"Labels": {"version": "2"}})
    assert archives.differences(one, other) == []


def test_what_differs_is_told_by_layer_path_and_kind(archives: ModuleType, tmp_path: Path) -> None:
    same = [("same", b"1", 0o644)]
    one = save(tmp_path / "one", same, [("a", b"1", 0o644), ("b", b"1", 0o644), ("c", b"", 0o644)])
    other = save(tmp_path / "other", same, [("a", b"2", 0o644), ("b", b"1", 0o755), ("d", b"", 0o644)])
    assert archives.differences(one, other) == [
        "layer 2: c: only in one of them",
        "layer 2: d: only in one of them",
        "layer 2: a: content",
        "layer 2: b: mode",
    ]


def test_another_order_of_the_same_files_is_told_as_such(archives: ModuleType, tmp_path: Path) -> None:
    one = save(tmp_path / "one", [("a", b"", 0o644), ("b", b"", 0o644)])
    other = save(tmp_path / "other", [("b", b"", 0o644), ("a", b"", 0o644)])
    assert archives.differences(one, other) == ["layer 1: the same files in another order or format"]


def test_other_numbers_of_layers_are_told(archives: ModuleType, tmp_path: Path) -> None:
    one, other = save(tmp_path / "one", []), save(tmp_path / "other", [], [])
    assert archives.differences(one, other) == ["1 layers and 2"]


def test_many_differences_are_cut_short_with_their_number(archives: ModuleType, tmp_path: Path) -> None:
    one = save(tmp_path / "one", [(f"{number:02}", b"1", 0o644) for number in range(25)])
    other = save(tmp_path / "other", [(f"{number:02}", b"2", 0o644) for number in range(25)])
    lines = archives.differences(one, other)
    assert len(lines) == archives.DIFFERENCES_SHOWN + 1
    assert lines[-1] == "and 5 more"


def test_layers_are_unpacked_one_over_the_other(archives: ModuleType, tmp_path: Path) -> None:
    file = save(tmp_path / "image", [("a", b"1", 0o644), ("b", b"1", 0o644)], [("b", b"2", 0o755)])
    with archives.opened(file) as archive:
        archive.unpack(tmp_path / "root")
    assert (tmp_path / "root" / "a").read_bytes() == b"1"
    assert (tmp_path / "root" / "b").read_bytes() == b"2"
    assert (tmp_path / "root" / "b").stat().st_mode & 0o777 == 0o755
