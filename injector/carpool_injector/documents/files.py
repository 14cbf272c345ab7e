"""Manifest files: found, read as text without losing a byte, and replaced as a whole or not at all."""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files in a directory these are read."""


class Unusable(ValueError):
    """A file that cannot be found, read or written; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class File:
    """A manifest's text, line ends as they are. `path` is None for what was piped in, `bom` what it began with."""

    name: str
    path: Path | None
    text: str
    bom: bool = False


def find(names: Iterable[str]) -> Iterator[str]:
    """Files as named, and the manifests in directories, below them too, in the order of their paths.

    Hidden files and directories inside of directories are left out. Raises Unusable for what is not there.
    """
    for name in names:
        if name == STDIN or not Path(name).is_dir():
            yield name
            continue
        found = [path for path in Path(name).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
        shown = [path for path in found if not any(part.startswith(".") for part in path.relative_to(name).parts)]
        if not shown:
            raise Unusable(f"{name}: no manifest in this directory ({', '.join(SUFFIXES)})")
        yield from (str(path) for path in sorted(shown))


def read(name: str, stdin: BinaryIO) -> File:
    """The file of that name, "-" for what is piped in. Raises Unusable."""
    shown = "stdin" if name == STDIN else name
    try:
        content = stdin.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise Unusable(f"{name}: cannot be read: {error.strerror}") from None
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unusable(f"{shown}:{line}: is not UTF-8; save it as UTF-8") from None
    return File(shown, None if name == STDIN else Path(name), text, content.startswith(codecs.BOM_UTF8))


def encoded(file: File, text: str) -> bytes:
    """The bytes of a file with this text in place of its own."""
    return (codecs.BOM_UTF8 if file.bom else b"") + text.encode()


def write(file: File, text: str) -> None:
    """Replace a file's text: nobody ever sees half of it, its mode stays, and a symbolic link keeps pointing at it.

    Raises Unusable.
    """
    if file.path is None:
        raise Unusable("what is piped in cannot be changed in place; leave --in-place out, or name files")
    path = file.path.resolve()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                os.fchmod(handle, mode)
                out.write(encoded(file, text))
                out.flush()
                os.fsync(handle)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            raise
    except OSError as error:
        raise Unusable(f"{file.name}: cannot be written: {error.strerror}") from None


def joined(texts: Iterable[str]) -> str:
    """Several manifests as one stream of documents."""
    result = ""
    for text in texts:
        if result and not result.endswith("\n"):
            result += "\n"
        divided = not result or text.startswith(("---", "%"))
        result += text if divided else f"---\n{text}"
    return result
