"""Predict bodies of an exact size, and the proof that each caller got its own answer back.

A body carries one instance, a list of numbers. The smallest is a row of four measurements; larger ones repeat a
number of nine characters in front of it, about as long as the numbers in real inputs are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_HEAD, _TAIL = b'{"instances":[[', b"]]}"
SMALLEST = 37
_NUMBER = b"0.1234567"
_MARKS = 100_000


def exact(size: int, number: int = 0) -> bytes:
    """A body of exactly `size` bytes with one instance; different `number`s below 100,000 give different bodies.

    Raises `ValueError` when `size` is below 37 bytes.
    """
    if size < SMALLEST:
        raise ValueError(f"the smallest body has {SMALLEST} bytes")
    row = b"5.1,3.5,1.4,0.%05d" % (number % _MARKS)
    room = size - len(_HEAD) - len(row) - len(_TAIL)
    return b"".join((_HEAD, _filler(room), row, _TAIL))


def distinct(size: int, number: int) -> bytes:
    """A body of about `size` bytes whose instance differs from those of other numbers, in length too."""
    return exact(size + number * (len(_NUMBER) + 1), number)


def several(size: int, count: int) -> bytes:
    """A body of exactly `size` bytes with so many instances of about the same size; their marks count from 0.

    Raises `ValueError` when `size` is too small for that.
    """
    around = len(_HEAD) - 1 + len(_TAIL) - 1
    each, rest = divmod(size - around - (count - 1), count)
    instances = [
        exact(each + around + (rest if number == 0 else 0), number)[len(_HEAD) - 1 : 1 - len(_TAIL)]
        for number in range(count)
    ]
    return b"".join((_HEAD[:-1], b",".join(instances), _TAIL[1:]))


def mark(number: int) -> float:
    """The last number in the instance of the body with this number."""
    return number % _MARKS / _MARKS


def check_count(size: int) -> int:
    """How many distinct bodies to check with: eight rounds of 64 for small ones, one for large ones."""
    return 512 if size <= 10_000 else 64


def prediction_of(answer: bytes) -> Any:
    """The decoded prediction of an answer with one.

    Raises `ValueError` for anything else.
    """
    try:
        predictions = json.loads(answer)["predictions"]
    except (KeyError, TypeError) as error:
        raise ValueError("not a predict answer") from error
    if not isinstance(predictions, list) or len(predictions) != 1:
        raise ValueError(f"not one prediction for one instance: {predictions!r:.100}")
    return predictions[0]


class Check:
    """Counts requests that did not get their own instance (or its length in bytes) back. Unanswered ones count too."""

    def __init__(self, answer: str, sent: Sequence[bytes]) -> None:
        self._answer = answer
        self._sent = sent
        self._right: set[int] = set()

    @property
    def count(self) -> int:
        return len(self._sent) - len(self._right)

    def look_at(self, number: int, status: int, body: bytes) -> None:
        """To be called with each answer; `number` is the position of its request."""
        if status == 200 and _is_own(self._answer, self._sent[number], body):
            self._right.add(number)


def _is_own(answer: str, request: bytes, body: bytes) -> bool:
    try:
        prediction = prediction_of(body)
    except ValueError:
        return False
    instance = request[len(_HEAD) - 1 : 1 - len(_TAIL)]
    return bool(prediction == (json.loads(instance) if answer == "instance" else len(instance)))


def _filler(room: int) -> bytes:
    """`room` bytes of numbers, each followed by a comma; a single byte left over is a space."""
    count, rest = divmod(room, len(_NUMBER) + 1)
    text = (_NUMBER + b",") * count
    if rest >= 2:
        return text + b"1" * (rest - 1) + b","
    return text + b" " * rest
