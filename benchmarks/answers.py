"""What the demo's callers got: their embeddings compared, and two that travelled together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks import load


class Embeddings(Protocol):
    """The embeddings that requests were answered with, by number."""

    def __len__(self) -> int: ...

    def embedding(self, number: int) -> list[float]:
        """Raises `ValueError` if there is none."""
        ...


@dataclass
class Run:
    """One pass of the load, and what it was answered."""

    measured: load.Measurement
    embeddings: Embeddings


@dataclass
class Shared:
    """Two requests of one batch: their numbers, and the batch's id."""

    batch_id: str
    first: int
    second: int


class Recorder:
    """Keeps every answer by the number of its request."""

    def __init__(self, expected: int) -> None:
        self._bodies: list[bytes | None] = [None] * expected

    def keep(self, number: int, status: int, body: bytes) -> None:
        """To be called with each answer; those with an error status are not kept."""
        if status == 200:
            self._bodies[number] = body

    def embedding(self, number: int) -> list[float]:
        """The embedding that request `number` was answered with.

        Raises `ValueError` if there is no answer, or not exactly one embedding in it.
        """
        predictions = self._decoded(number).get("predictions")
        if not isinstance(predictions, list) or len(predictions) != 1 or not isinstance(predictions[0], list):
            raise ValueError(f"request {number} was not answered with exactly one embedding")
        return predictions[0]

    def batch_id(self, number: int) -> str:
        """The batch that request `number` travelled in; empty when it did not travel in one."""
        return str(self._decoded(number).get("batchId", ""))

    def _decoded(self, number: int) -> dict[str, object]:
        body = self._bodies[number]
        if body is None:
            raise ValueError(f"request {number} was not answered")
        decoded = json.loads(body)
        if not isinstance(decoded, dict):
            raise ValueError(f"request {number} was answered with something that is no JSON object")
        return decoded

    def __len__(self) -> int:
        return len(self._bodies)


class Vectors:
    """Keeps embeddings that a client has decoded, and how many tokens each was said to have."""

    def __init__(self, expected: int) -> None:
        self._vectors: list[list[float] | None] = [None] * expected
        self._tokens = [0] * expected

    def keep(self, number: int, embeddings: Sequence[list[float]], tokens: int) -> None:
        """To be called with each answer; one without exactly one embedding is not kept."""
        if len(embeddings) == 1:
            self._vectors[number] = embeddings[0]
            self._tokens[number] = tokens

    def embedding(self, number: int) -> list[float]:
        """The embedding that request `number` was answered with. Raises `ValueError` if there is none."""
        vector = self._vectors[number]
        if vector is None:
            raise ValueError(f"request {number} was not answered with exactly one embedding")
        return vector

    @property
    def tokens(self) -> int:
        """Those of all answers."""
        return sum(self._tokens)

    def __len__(self) -> int:
        return len(self._vectors)


def largest_difference(one: Embeddings, other: Embeddings) -> float:
    """The largest absolute difference of any number in any embedding, request by request.

    Raises `ValueError` when an answer is missing or two embeddings differ in length.
    """
    largest = 0.0
    for number in range(len(one)):
        pairs = zip(one.embedding(number), other.embedding(number), strict=True)
        largest = max(largest, max((abs(a - b) for a, b in pairs), default=0.0))
    return largest


def find_shared(recorder: Recorder, sentences: Sequence[str]) -> Shared | None:
    """Two different sentences that shared a batch, from the middle of the run; None if there are none."""
    seen: dict[str, int] = {}
    for number in range(len(recorder) // 2, len(recorder)):
        batch_id = recorder.batch_id(number)
        first = seen.setdefault(batch_id, number)
        if batch_id and sentences[first] != sentences[number]:
            return Shared(batch_id, first, number)
    return None
