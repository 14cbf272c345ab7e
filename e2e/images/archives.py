"""Images as files, in the format of `docker save`: reads and unpacks them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class Archive:
    """An open archive with one image."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        (manifest,) = json.loads(self._read("manifest.json"))
        self._layers: list[str] = manifest["Layers"]
        self.config: dict[str, Any] = json.loads(self._read(manifest["Config"]))

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
