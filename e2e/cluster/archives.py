"""Images of one static program each, written as docker archives: no engine, no base image, no registry.

A docker archive is what `ctr image import`, `docker load` and `kind load image-archive` take. The same program and
settings give the same bytes, so an image that is loaded already is not loaded again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster import binaries

USER = 65532  # "nonroot" elsewhere; a number, since the kubelet cannot tell whether a name is root
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
PAUSE_TAG = "carpool-pause:1"
CHUNK = 1 << 20


class Image(NamedTuple):
    """The content of an image and the program that it starts."""

    tag: str  # NAME:TAG
    program: Path
    path: str  # of the program in the image, and what it starts: "/manager"
    temporary_folder: bool = False  # a /tmp that everybody may write to

    @property
    def config(self) -> dict[str, Any]:
        started = {"Entrypoint": [self.path], "User": f"{USER}:{USER}", "WorkingDir": "/", "Env": ["PATH=/"]}
        return {"architecture": architecture(), "os": "linux", "config": started}


def architecture() -> str:
    """This machine's architecture by its name in images, which is also Go's."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def pause_archive() -> Path:
    """The archive of the sandbox container's image, PAUSE_TAG. Raises as binaries.provide does."""
    return provide(Image(PAUSE_TAG, binaries.provide(binaries.PAUSE), "/pause"))


def provide(image: Image) -> Path:
    """The archive of `image`, written now if it is not there. A program's file name must contain its version."""
    folder = binaries.cache_folder() / "images"
    folder.mkdir(exist_ok=True)
    target = folder / f"{image.tag.replace(':', '-').replace('/', '-')}-{key(image)}.tar"
    if not target.exists():
        with binaries.one_at_a_time(folder / ".lock"):
            if not target.exists():
                write(image, target)
    return target


def key(image: Image) -> str:
    """A digest of all that is in the image; of the program only its name and size, not 100 MB of content."""
    described = [*image[:1], image.program.name, image.program.stat().st_size, *image[2:], image.config]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def write(image: Image, target: Path) -> None:
    """Writes the archive; it is complete or not there."""
    layer = target.with_name(f".{target.name}.layer.{os.getpid()}")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _write_layer(image, layer)
        digest = _sha256(layer)
        config = json.dumps({**image.config, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}})
        config_file = f"{hashlib.sha256(config.encode()).hexdigest()}.json"
        layer_file = f"{digest}.tar"
        manifest = json.dumps([{"Config": config_file, "RepoTags": [image.tag], "Layers": [layer_file]}])
        with tarfile.open(partial, "w") as archive:
            _add_text(archive, "manifest.json", manifest)
            _add_text(archive, config_file, config)
            _add_file(archive, layer_file, layer, 0o644)
        partial.replace(target)
    finally:
        layer.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def _write_layer(image: Image, target: Path) -> None:
    path = image.path.lstrip("/")
    with tarfile.open(target, "w") as layer:
        for folder in sorted(str(parent) for parent in Path(path).parents if parent.name):
            _add_folder(layer, folder, 0o755)
        if image.temporary_folder:
            _add_folder(layer, "tmp", 0o1777)
        _add_file(layer, path, image.program, 0o755)


def _add_folder(archive: tarfile.TarFile, name: str, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = mode
    archive.addfile(member)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    archive.addfile(member, io.BytesIO(text.encode()))


def _add_file(archive: tarfile.TarFile, name: str, source: Path, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = source.stat().st_size
    member.mode = mode
    with source.open("rb") as content:
        archive.addfile(member, content)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
