"""Reading images from files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.images import archives

Files = Sequence[tuple[str, bytes, int]]


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


def test_layers_are_unpacked_one_over_the_other(tmp_path: Path) -> None:
    file = save(tmp_path / "image", [("a", b"1", 0o644), ("b", b"1", 0o644)], [("b", b"2", 0o755)])
    with archives.opened(file) as archive:
        archive.unpack(tmp_path / "root")
    assert (tmp_path / "root" / "a").read_bytes() == b"1"
    assert (tmp_path / "root" / "b").read_bytes() == b"2"
    assert (tmp_path / "root" / "b").stat().st_mode & 0o777 == 0o755
