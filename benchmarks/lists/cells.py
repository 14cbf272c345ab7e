"""The cells of the benchmark of lists: OpenAI's embeddings against v1 with the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lists import stub, traffic
from benchmarks.v2 import cells

TARGET = 0.8


def _embeddings(name: str, title: str, size: int, mark: bytes) -> cells.Duel:
    return cells.Duel(
        f"embeddings-{name}",
        title,
        lambda: traffic.V1(size, mark),
        lambda: traffic.OpenAI(size, mark),
        TARGET,
        stub=stub.MODULE,
        flags=("--lists", "openai-embeddings"),
    )


DUELS = (
    _embeddings("100B", "100 B, 8 numbers back", 100, traffic.SHORT),
    _embeddings("8kB", "8 kB, 8 kB of base64 back", 8_000, traffic.LONG),
)
NAMES = tuple(duel.name for duel in DUELS)


def select(only: Sequence[str]) -> list[cells.Duel]:
    """What to run, by name; everything when `only` is empty.

    Raises `ValueError` for a name that does not exist.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise ValueError(f"unknown cell {unknown[0]!r}; there are {', '.join(NAMES)}")
    return [duel for duel in DUELS if not only or duel.name in only]
