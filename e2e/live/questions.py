"""Requests that are all different, and the verdict on the answer to each.

The predictors under test answer each instance with itself. Every instance holds 64 random bits, so an answer that was
meant for somebody else, or was changed on its way, cannot be right by chance.
"""

from __future__ import annotations

import enum
import json
import random
import string
from collections.abc import Collection
from typing import Any, NamedTuple

MOST_INSTANCES = 8
MOST_PADDING = 2000
_USUAL = 0.9  # of all questions have nothing but records
_TEXT = string.ascii_letters + string.digits + ' "\\/\n\t,:[]{}' + "äß€Жあ😀"


class Verdict(enum.StrEnum):
    """What an answer with status 200 is, compared with its question."""

    RIGHT = "right"
    SHORT = "short"  # another number of predictions than instances
    MIXED = "mixed"  # a prediction for an instance of another question, or of another place in this one
    ALTERED = "altered"  # a prediction that is no instance of any request
    UNREADABLE = "unreadable"  # no JSON, or no predictions in it


class Question(NamedTuple):
    """The body to send, and what each of its instances is as canonical JSON text."""

    body: bytes
    texts: tuple[str, ...]


def canonical(value: Any) -> str:
    """JSON text that tells 1 from 1.0 and true, and keeps the order of members."""
    return json.dumps(value)


def ask(chance: random.Random) -> Question:
    """A new question with 1 to MOST_INSTANCES instances of all sizes, and mostly of one form: others share no call."""
    shapes = (_record,) if chance.random() < _USUAL else (_text, _number, _row, _record)
    instances = [chance.choice(shapes)(chance) for _ in range(chance.randint(1, MOST_INSTANCES))]
    return Question(json.dumps({"instances": instances}).encode(), tuple(map(canonical, instances)))


def judge(question: Question, body: bytes, all_texts: Collection[str]) -> Verdict:
    """The verdict on the body of an answer. `all_texts` are the instances of all questions asked lately."""
    try:
        predictions = json.loads(body)["predictions"]
        answered = [canonical(each) for each in predictions]
    except (ValueError, KeyError, TypeError):
        return Verdict.UNREADABLE
    if len(answered) != len(question.texts):
        return Verdict.SHORT
    strange = [text for text, own in zip(answered, question.texts, strict=True) if text != own]
    if not strange:
        return Verdict.RIGHT
    return Verdict.MIXED if any(text in all_texts for text in strange) else Verdict.ALTERED


def _text(chance: random.Random) -> str:
    padding = "".join(chance.choices(_TEXT, k=int(MOST_PADDING ** chance.random())))
    return f"{chance.getrandbits(64):016x} {padding}"


def _number(chance: random.Random) -> int:
    return chance.getrandbits(64) | 1 << 64  # beyond 2**64: a conversion to a float changes it


def _row(chance: random.Random) -> list[Any]:
    return [_number(chance), *(chance.uniform(-1e6, 1e6) for _ in range(chance.randint(1, 16)))]


def _record(chance: random.Random) -> dict[str, Any]:
    return {
        "id": _text(chance),
        "inner": {"row": _row(chance), "flag": chance.random() < 0.5, "none": None},
        "empty": {},
    }
