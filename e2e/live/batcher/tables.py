"""The table of what was observed on each side: written by the tests that observed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.live.batcher import sides

SAME = "same"
NOT_THERE = "–"
FAILED = "**failed**"
# Characters in a cell: enough to see the kind of an answer.
CELL = 100
Observe = Callable[[str], str]


@dataclasses.dataclass
class Case:
    """A case as a sentence, why the sides may differ, and what was observed on each side, by its key."""

    words: str
    why: str
    observed: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def verdict(self) -> str:
        seen = set(self.observed.values())
        if FAILED in seen:
            return FAILED
        return SAME if len(seen) == 1 else self.why

    @property
    def cells(self) -> list[str]:
        """What was observed, side by side."""
        return [self.observed.get(side.key, NOT_THERE) for side in sides.SIDES]

    @property
    def anywhere(self) -> str:
        """What was observed, where it is the same."""
        return next(iter(self.observed.values()))


class Table:
    """Cases in the order in which they were first observed."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    def observe(self, name: str, why: str, side: sides.Side, text: str) -> None:
        """`name` is the test's, with its parameter in brackets if it has one."""
        case = self._cases.setdefault(name, Case(in_words(name), " ".join(why.split())))
        case.observed[side.key] = text

    def write(self, file: Path) -> None:
        """As Markdown: what is the same on all sides, then what is not."""
        same = [case for case in self._cases.values() if case.verdict == SAME]
        others = [case for case in self._cases.values() if case.verdict != SAME]
        titles = [side.title for side in sides.SIDES]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"The same on all sides ({len(same)}):\n\n"
            + in_markdown([["what", "observed"], *([case.words, case.anywhere] for case in same)])
            + f"\nDifferent on purpose ({len(others)}):\n\n"
            + in_markdown([["what", *titles, "why"], *([case.words, *case.cells, case.verdict] for case in others)])
        )


def in_words(name: str) -> str:
    """A test's name as a sentence without its full stop."""
    return name.removeprefix("test_").replace("_", " ")


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    head, *others = ([in_cell(text) for text in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *others])


def in_cell(text: str) -> str:
    """Text escaped for a table in Markdown, and cut where it is too long."""
    text = text if len(text) <= CELL or "{" not in text else f"{text[: CELL - 1]}…"
    text = text.replace("|", "\\|").replace("\n", " ")
    return f"`{text}`" if set(text) & set('{"<\\') and "`" not in text else text
