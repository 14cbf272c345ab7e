"""Images as files, in the format of `docker save`: reads their contents, and compares two of them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# What of a file has to be the same in two builds, beside its content.
FACTS = ("type", "mode", "uid", "gid", "mtime", "size", "linkname", "uname", "gname")
DIFFERENCES_SHOWN = 20


class Archive:
    """An open archive with one image."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        (manifest,) = json.loads(self._read("manifest.json"))
        self._layers: list[str] = manifest["Layers"]
        self.config: dict[str, Any] = json.loads(self._read(manifest["Config"]))

    @property
    def layers(self) -> list[str]:
        """The digests of the layers as they unpack, lowest first."""
        return list(self.config["rootfs"]["diff_ids"])

    @contextmanager
    def layer(self, number: int) -> Iterator[tarfile.TarFile]:
        """One layer's files, counted from the lowest."""
        with self._open(self._layers[number]) as file, tarfile.open(fileobj=file, mode="r:*") as layer:
            yield layer

    def unpack(self, folder: Path) -> None:
        """Writes the image's files into a folder, as root with their modes. Layers here remove nothing."""
        # Debian 12's Python 3.11.2 has no filters yet; and what is unpacked here was built here.
        careful: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        for number in range(len(self._layers)):
            with self.layer(number) as layer:
                layer.extractall(folder, **careful)

    def _read(self, name: str) -> bytes:
        with self._open(name) as file:
            return file.read()

    def _open(self, name: str) -> IO[bytes]:
        member = self._tar.extractfile(name)  # follows links, as some engines write layers twice
        if member is None:
            raise ValueError(f"the archive has no file {name}")
        return member


@contextmanager
def opened(file: Path) -> Iterator[Archive]:
    """The archive in a file."""
    with tarfile.open(file) as tar:
        yield Archive(tar)


def contents(layer: tarfile.TarFile) -> dict[str, tuple[object, ...]]:
    """Path to what has to be the same: facts, extended attributes, and a digest of the content."""
    found: dict[str, tuple[object, ...]] = {}
    for member in layer:
        file = layer.extractfile(member) if member.isreg() else None
        digest = hashlib.sha256(file.read()).hexdigest() if file else ""
        attributes = tuple(sorted(member.pax_headers.items()))
        found[member.name] = (*(getattr(member, fact) for fact in FACTS), attributes, digest)
    return found


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two images, a line each, at most so many; nothing if all layers have the same digests."""
    lines: list[str] = []
    with opened(one) as first, opened(other) as second:
        if len(first.layers) != len(second.layers):
            return [f"{len(first.layers)} layers and {len(second.layers)}"]
        for number, (left, right) in enumerate(zip(first.layers, second.layers, strict=True)):
            if left == right:
                continue
            with first.layer(number) as a, second.layer(number) as b:
                lines += [f"layer {number + 1}: {line}" for line in in_layers(contents(a), contents(b))]
    hidden = len(lines) - DIFFERENCES_SHOWN
    return lines[:DIFFERENCES_SHOWN] + ([f"and {hidden} more"] if hidden > 0 else [])


def in_layers(one: dict[str, tuple[object, ...]], other: dict[str, tuple[object, ...]]) -> list[str]:
    """What differs between two layers' contents: by path, and if by none of them, in their order."""
    names = (*FACTS, "attributes", "content")
    lines = [f"{path}: only in one of them" for path in sorted(one.keys() ^ other.keys())]
    for path in sorted(one.keys() & other.keys()):
        unlike = [name for name, a, b in zip(names, one[path], other[path], strict=True) if a != b]
        if unlike:
            lines.append(f"{path}: {', '.join(unlike)}")
    return lines or ["the same files in another order or format"]
