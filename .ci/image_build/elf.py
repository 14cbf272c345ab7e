"""Programs and shared libraries as Linux loads them: which need which, and what of them is never loaded."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path


def elf_files(folder: Path) -> Iterator[Path]:
    """Programs and shared libraries below a folder, in a fixed order."""
    for path in sorted(folder.rglob("*")):
        if (
            path.is_file()
            and not path.is_symlink()
            and (path.suffix == ".so" or ".so." in path.name or not path.suffix)
        ):
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def without_symbols(elf: bytes) -> bytes:
    """The same library without what only debuggers read: all sections that no segment loads, and their table.

    The loader goes by segments alone. Wheels of several packages carry five to ten times their code in such sections.
    Anything but 64-bit little-endian ELF is given back as it is.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        return elf
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    end = table + size * count
    for at in range(table, table + size * count, size):
        (offset,), (length,) = struct.unpack_from("<Q", elf, at + 8), struct.unpack_from("<Q", elf, at + 32)
        end = max(end, offset + length)
    head = bytearray(elf[:end])
    struct.pack_into("<Q", head, 40, 0)  # where the table of sections begins, and how many there are
    struct.pack_into("<HHH", head, 58, 0, 0, 0)
    return bytes(head)


def libraries(file: Path) -> tuple[list[Path], list[str]]:
    """The shared libraries that a file needs, with theirs: where they lie, and the names of those not found."""
    listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True).stdout
    found = re.findall(r"(?m)^\s*(?:\S+ => )?(/\S+) \(0x", listed)
    return [Path(path) for path in found], re.findall(r"(?m)^\s*(\S+) => not found", listed)
