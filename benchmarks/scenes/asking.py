"""The requests of a scene, and whether each was answered as its rows are alone."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import client, processes
from benchmarks.scenes import scene

SENTENCES = pathlib.Path(__file__).parents[1] / "sentences.txt"
DISTINCT = 64  # rows that are told apart; each is asked alone first
COLUMNS = 12  # of a row of numbers


def items(kind: scene.Items, count: int = DISTINCT) -> list[Any]:
    """So many different rows of a kind, always the same ones."""
    if kind is scene.Items.SENTENCES:
        return list(dict.fromkeys(SENTENCES.read_text().splitlines()))[:count]
    source = random.Random(1)
    return [[round(source.uniform(-2, 2), 4) for _ in range(COLUMNS)] for _ in range(count)]


def difference(one: Any, other: Any) -> float:
    """The largest difference of any number in two answers; infinite if they differ in anything else."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(map(difference, one, other), default=0.0)
    if _is_number(one) and _is_number(other):
        return 0.0 if one == other else abs(one - other)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    return 0.0 if one == other and type(one) is type(other) else math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Requests:
    """The requests of a question, over and over, and the check of their answers.

    Answers are kept as bytes while a round runs, and read after it: reading them would take the server's time.
    """

    def __init__(self, question: scene.Question, rows: Sequence[Any], each: int = 1) -> None:
        self._question = question
        self._groups = [
            [(start + place) % len(rows) for place in range(each)] for start in range(0, len(rows) * each, each)
        ]
        headers = {**client.JSON, **question.headers}
        bodies = (question.body([rows[at] for at in group]) for group in self._groups)
        self._requests = [
            client.post(processes.HOST, question.path, json.dumps(body).encode(), headers) for body in bodies
        ]
        self._kept: list[tuple[int, bytes]] = []
        self.refusal = b""  # the last answer with an error status

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[bytes]:
        return itertools.cycle(self._requests)

    def once(self) -> list[bytes]:
        """Each once."""
        return list(self._requests)

    def keep(self, number: int, status: int, body: bytes) -> None:
        """To be called with each answer. Those with an error status are counted elsewhere."""
        if 200 <= status < 300:
            self._kept.append((number % len(self._requests), body))
        else:
            self.refusal = body

    def answers(self) -> list[list[Any]]:
        """The rows of the answers that were kept, one list for each request in turn.

        Raises `ValueError` for an answer that is not what the question promises.
        """
        by_number = dict(self._kept)
        self._kept.clear()
        return [self._read(by_number.get(number, b""), number) for number in range(len(self._requests))]

    def check(self, expected: Sequence[Any], tolerance: float) -> tuple[int, float]:
        """How many answers that were kept are not those of their rows, and the largest difference of the rest."""
        wrong, largest = 0, 0.0
        for number, body in self._kept:
            try:
                found = difference(self._read(body, number), [expected[at] for at in self._groups[number]])
            except ValueError:
                found = math.inf
            wrong += found > tolerance
            largest = max(largest, found if found <= tolerance else 0.0)
        self._kept.clear()
        return wrong, largest

    def _read(self, body: bytes, number: int) -> list[Any]:
        wanted = len(self._groups[number])
        try:
            found = list(self._question.answers(json.loads(body)))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"unexpected answer: {body[:200]!r} ({type(error).__name__}: {error})") from None
        if len(found) != wanted:
            raise ValueError(f"{len(found)} rows answered to {wanted}: {body[:200]!r}")
        return found
