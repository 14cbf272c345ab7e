"""Finds a local cluster's processes by what they run: a record of their numbers would be wrong after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

PROC = Path("/proc")


def running(proc: Path = PROC) -> Iterator[tuple[int, list[str]]]:
    """Each process that has not ended: its number, and the words of its command."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                # The first words of a zombie are empty.
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            except OSError:
                continue  # it ended meanwhile
            if words:
                yield int(entry.name), words


def of_command(first: str, last: Sequence[str], proc: Path = PROC) -> list[int]:
    """The processes whose command has this first word and these last ones."""
    return [pid for pid, words in running(proc) if words[0] == first and words[-len(last) :] == list(last)]


def beside(first: int, beginning: Sequence[str], proc: Path = PROC) -> list[int]:
    """The processes in the process namespace of `first` whose command begins with these words."""
    inside = namespace(first, proc)
    found = (pid for pid, words in running(proc) if words[: len(beginning)] == list(beginning))
    return [pid for pid in found if inside and namespace(pid, proc) == inside]


def namespace(pid: int, proc: Path = PROC) -> str:
    """The process namespace that a process is in; "" for one that has ended."""
    try:
        return os.readlink(proc / str(pid) / "ns" / "pid")
    except OSError:
        return ""
