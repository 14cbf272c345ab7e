"""Images written as docker archives, most of them of one static program: no engine, no base image, no registry.

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
from collections.abc import Iterable, Mapping
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
    files = [File(image.path.lstrip("/"), image.program)]
    if image.temporary_folder:
        files.insert(0, File("tmp", None, 0o1777))
    layer = target.with_name(f".{target.name}.layer.{os.getpid()}")
    try:
        write_layer(files, layer)
        pack([Packed((image.tag,), image.config, (layer,))], target)
    finally:
        layer.unlink(missing_ok=True)


# --- Images of any content --------------------------------------------------------------------------------------------


class File(NamedTuple):
    """A member of a layer. Its owner is root, its time 1970."""

    path: str  # in the image, without a slash before it
    content: Path | bytes | None  # a file with the content, the content, or None for a folder
    mode: int = 0o755
    link: str = ""  # what a symbolic link leads to; it has no content


class Packed(NamedTuple):
    """An image as it stands in an archive: its names, its settings less the layers, and its layers in their order."""

    tags: tuple[str, ...]
    config: Mapping[str, Any]
    layers: tuple[Path, ...]


def write_layer(files: Iterable[File], target: Path) -> None:
    """Writes the files as a layer, with the folders above them."""
    made: set[str] = set()
    with tarfile.open(target, "w") as layer:
        for file in files:
            for folder in sorted(str(parent) for parent in Path(file.path).parents if parent.name):
                if folder not in made:
                    _add(layer, File(folder, None))
                    made.add(folder)
            if file.path not in made:
                _add(layer, file)
                made.add(file.path)


def pack(images: Iterable[Packed], target: Path) -> None:
    """Writes an archive with these images; it is complete or not there. A layer that several have is in it once."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    digests: dict[Path, str] = {}
    manifest = []
    try:
        with tarfile.open(partial, "w") as archive:
            for image in images:
                for layer in image.layers:
                    if layer not in digests:
                        digests[layer] = _sha256(layer)
                        _add(archive, File(f"{digests[layer]}.tar", layer, 0o644))
                found = [digests[layer] for layer in image.layers]
                differences = {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in found]}
                config = json.dumps({**image.config, "rootfs": differences}).encode()
                file = f"{hashlib.sha256(config).hexdigest()}.json"
                _add(archive, File(file, config, 0o644))
                layers = [f"{digest}.tar" for digest in found]
                manifest.append({"Config": file, "RepoTags": list(image.tags), "Layers": layers})
            _add(archive, File("manifest.json", json.dumps(manifest).encode(), 0o644))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, file: File) -> None:
    member = tarfile.TarInfo(file.path)
    member.mode = file.mode
    if file.link:
        member.type, member.linkname = tarfile.SYMTYPE, file.link
        archive.addfile(member)
    elif file.content is None:
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif isinstance(file.content, bytes):
        member.size = len(file.content)
        archive.addfile(member, io.BytesIO(file.content))
    else:
        member.size = file.content.stat().st_size
        with file.content.open("rb") as content:
            archive.addfile(member, content)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
