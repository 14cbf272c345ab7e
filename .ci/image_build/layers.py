"""Copies files into one layer of an image, with times and owners that are the same in each build."""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
from collections.abc import Iterable
from pathlib import Path


class Layer:
    """Files on their way into one layer, below `folder`, which stands for the root of the image."""

    def __init__(self, folder: Path, lower: Path | None = None) -> None:
        """`lower` is the folder of the layers below: files that lie there are not taken again."""
        self.folder = folder
        self.lower = lower
        self.taken: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)

    def at(self, path: Path | str) -> Path:
        """Where a path of the image lies while it is built."""
        return self.folder / str(path).lstrip("/")

    def has(self, path: Path) -> bool:
        below = self.lower / str(path).lstrip("/") if self.lower else None
        return any(place is not None and (place.exists() or place.is_symlink()) for place in (self.at(path), below))

    def take(self, path: Path) -> None:
        """Takes a file of the base to the same place, and what it links to."""
        real = path.parent.resolve() / path.name  # /lib is a link to /usr/lib in most bases
        if self.has(real):
            return
        self.at(real).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(real, self.at(real), follow_symlinks=False)
        self.taken.append(real)
        if real.is_symlink():
            self.take(real.parent / real.readlink())

    def take_tree(self, source: Path, target: Path, is_left_out: re.Pattern[str] | None = None) -> None:
        """Takes a folder to `target`, less the entries in it, and in its lib-dynload, whose names match."""

        def ignored(folder: str, names: list[str]) -> Iterable[str]:
            top = is_left_out is not None and Path(folder) in (source, source / "lib-dynload")
            return [
                name for name in names if name == "__pycache__" or (top and is_left_out and is_left_out.match(name))
            ]

        shutil.copytree(source, self.at(target), symlinks=True, ignore=ignored, dirs_exist_ok=True)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).write_text(text)
        self.at(path).chmod(mode)


def compile_all(layer: Layer, folder: Path) -> None:
    """Compiles everything below a folder of the layer, so that a read-only image starts as fast as any.

    Unchecked: Python takes the compiled file without a look at the source, which cannot change in an image. So the
    compiled files hold no times either, and are the same in each build.
    """
    compileall.compile_dir(
        layer.at(folder),
        quiet=2,  # packages carry templates that are no valid Python
        stripdir=str(layer.folder),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def settle(layer: Layer) -> None:
    """Modes and times that depend on nothing of the build."""
    then = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    for path in sorted(layer.folder.rglob("*")):
        if not path.is_symlink():
            is_open = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o1777 if path == layer.at("/tmp") else 0o755 if is_open else 0o644)
        os.utime(path, (then, then), follow_symlinks=False)
