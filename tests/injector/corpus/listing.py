"""The list of the corpus: repositories, commits, files, and what became of each object when it was last looked at.

The files themselves stay where they are. Below a repository and its commit stand its files, and below a file its
objects in their order, each with its decision and, behind ` # `, what a person said of it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LIST = pathlib.Path(__file__).parent / "list.txt"
_JUDGED = " # "


@dataclass(slots=True)
class Entry:
    """An object: `name` as `Deployment/web`, `decision` as `runs` writes it, `judgement` empty where nobody looked."""

    name: str
    decision: str
    judgement: str = ""


@dataclass(slots=True)
class Listed:
    """A file of a repository and its objects."""

    path: str
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Repository:
    """`name` as on GitHub (`kserve/kserve`), `commit` in full."""

    name: str
    commit: str
    files: list[Listed] = field(default_factory=list)


def read(text: str) -> list[Repository]:
    """The list. Raises ValueError for a line that stands in the wrong place."""
    found: list[Repository] = []
    for number, line in enumerate(text.splitlines(), 1):
        depth = (len(line) - len(line.lstrip())) // 2
        try:
            _add(found, depth, line.strip())
        except (IndexError, ValueError):
            raise ValueError(f"line {number} of the list: {line!r}") from None
    return found


def _add(found: list[Repository], depth: int, words: str) -> None:
    if not words or words.startswith("#"):
        return
    if depth == 0:
        name, commit = words.split(" ")
        found.append(Repository(name, commit))
    elif depth == 1:
        found[-1].files.append(Listed(words))
    else:
        said, _, judgement = words.partition(_JUDGED)
        name, _, decision = said.partition(": ")
        found[-1].files[-1].entries.append(Entry(name, decision, judgement))


def write(repositories: Iterable[Repository]) -> str:
    """The list as text, which `read` reads."""
    return "".join(f"{line}\n" for line in _lines(repositories))


def _lines(repositories: Iterable[Repository]) -> Iterator[str]:
    for repository in repositories:
        yield f"{repository.name} {repository.commit}"
        for file in repository.files:
            yield f"  {file.path}"
            for entry in file.entries:
                judged = f"{_JUDGED}{entry.judgement}" if entry.judgement else ""
                yield f"    {entry.name}: {entry.decision}{judged}"
