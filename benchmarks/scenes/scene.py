"""What a scene is: a model server as its documents advise to run it, and what is asked of it. Data, no code of its own.

One runner (`stage`) plays all of them, so that a server differs from another by nothing but what stands in its scene.
Words in commands and variables may have places in braces, which `Place` fills in.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HERE = pathlib.Path(__file__).parent
SERVERS = HERE / "servers"
REQUIREMENTS = HERE / "requirements"
REPOSITORY = HERE.parents[1]

Rows = Sequence[Any]


class Items(StrEnum):
    """What requests carry: sentences of one to some dozen words, or rows of twelve numbers."""

    SENTENCES = "sentences"
    ROWS = "rows"


@dataclass(frozen=True)
class Question:
    """One kind of request: where it goes, how rows become a body, and where the answer has theirs."""

    path: str
    body: Callable[[Rows], Any]
    answers: Callable[[Any], Rows]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a server runs: a folder of its own, three ports (the first is asked), its environment's programs."""

    folder: pathlib.Path
    ports: tuple[int, int, int]
    programs: pathlib.Path

    def fill(self, text: str) -> str:
        """The text with what stands in braces put in. Raises `KeyError` for a place that there is not."""
        return text.format(
            bin=self.programs,
            python=self.programs / "python",
            packages=next(self.programs.parent.glob("lib/python*/site-packages"), "no-packages"),
            folder=self.folder,
            **dict(zip(("port", "port2", "port3"), self.ports, strict=True)),
            servers=SERVERS,
            repository=REPOSITORY,
        )

    def words(self, command: str) -> list[str]:
        """A command line as words, filled in."""
        return [self.fill(word) for word in command.split()]


@dataclass(frozen=True, eq=False)
class Scene:
    """A server with a model, and how the sidecar stands in front of it.

    `make` is run once, before the server starts, and puts model and settings into the folder. `ready` is a path that
    answers 200 once the server can be asked. `own` is the same question where the server batches by itself, in the same
    process; `always` says that it does so everywhere. Answers may differ by `tolerance` from those to the same row
    alone: adding up in another order costs last digits. `lacks` says what this machine has not that the packages do not
    bring. `disk_mb` is what the environment takes, most of it shared with the other scenes that have torch.
    """

    name: str
    server: str
    model: str
    package: str
    pins: Sequence[pathlib.Path]
    items: Items
    command: str
    ready: str
    question: Question
    sidecar: Sequence[str] = ()
    own: Question | None = None
    always: str = ""
    make: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""
    tolerance: float = 0.0
    disk_mb: int = 0
    memory_mb: int = 0
    lacks: Callable[[], str | None] = lambda: None
    remark: str = ""

    @property
    def key(self) -> str:
        """The folder of its environment: several scenes may share one."""
        return self.environment or self.name


@dataclass(frozen=True)
class Missing:
    """A server of which there is no scene, and what was tried."""

    server: str
    why: str
