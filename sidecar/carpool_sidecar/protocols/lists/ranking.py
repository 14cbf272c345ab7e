"""Answers in the order of their scores, as servers of `/rerank` give them.

A request has one query and many documents, and its answer names each document by its place, the best first. Each score
depends on the query and one document alone, so a long list goes in parts, side by side, and all parts are put into one
order here. How many results a caller wants is taken off the calls, and applied to the whole.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, steps
from carpool_sidecar.protocols.lists import answers, rules

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = b"null"
_WHOLE = re.compile(rb"[1-9][0-9]{0,8}")
_ROWS_A_STEP = 1000


def wanted(rule: rules.Rule, around: Sequence[bytes]) -> Ranked | None:
    """How requests with this text around their lists are answered; None if their rule ranks nothing.

    Raises `errors.Unbatchable` if what says how many results are wanted is no whole number from 1 on: servers differ in
    what they make of that.
    """
    if not rule.rank_by:
        return None
    others = _MEMBERS.decode(b"[]".join(around)) if rule.top else {}
    given = [text for name in rule.top if (text := bytes(others.get(name, _NULL))) != _NULL]
    if not given:
        return Ranked(rule, None)
    top = whole(given[0])
    if len(given) > 1 or top is None:
        raise errors.Unbatchable(errors.NotBatched.TOP)
    return Ranked(rule, top)


def whole(text: bytes) -> int | None:
    """How many results are wanted; None for what is no whole number from 1 on."""
    return int(text) if _WHOLE.fullmatch(text) else None


def best_first(scores: Sequence[float | None]) -> list[int]:
    """Places in the order of their scores, of equal ones the earlier first; None and NaN come last."""
    ranks = [math.inf if score is None or math.isnan(score) else -score for score in scores]
    return sorted(range(len(ranks)), key=ranks.__getitem__)


class Ranked:
    """Implements `interface.ResponseFormat`: the best rows first, `top` of them, or all."""

    def __init__(self, rule: rules.Rule, top: int | None) -> None:
        self._rule = rule
        self._top = top

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """A request that travelled whole and alone gets the answer as it came, by the server's own order and number."""
        return answers.ResponseFormat.LIST.render(shares, self._best_first)

    def _best_first(self, rows: Sequence[bytes]) -> Sequence[bytes]:
        scores = [_score(self._rule, row) for row in rows]
        return [rows[place] for place in best_first(scores)[: self._top]]


def check(rule: rules.Rule, result: answers.Result) -> steps.Steps[None]:
    """Raises `errors.Uneven` unless each row says which document it is of, and what it is ranked by.

    Some may be null or NaN, which come last. That all of several rows are null is no order.
    """
    if not result.is_numbered:
        raise _uneven(rule, f"rows have no {rule.index!r}")
    for rows in result.rows.values():
        is_ranked = len(result) == 1
        for place, row in enumerate(answers.texts(rows), 1):
            is_ranked = _score(rule, row) is not None or is_ranked
            if not place % _ROWS_A_STEP:
                yield
        if not is_ranked:
            raise _uneven(rule, f"no row has a number as its {' or '.join(rule.rank_by)}")


def _score(rule: rules.Rule, row: bytes) -> float | None:
    """What a row is ranked by, None for null; raises `errors.Uneven` for all that is no number."""
    names = " or ".join(rule.rank_by)
    try:
        members = json.loads(row, parse_int=float)  # NaN and whole numbers of any length are read, too
    except (ValueError, RecursionError):
        members = None
    found = [members[name] for name in rule.rank_by if name in members] if isinstance(members, dict) else []
    if not found:
        raise _uneven(rule, f"a row has no {names}")
    score = found[0]
    if score is not None and not isinstance(score, float):
        raise _uneven(rule, f"a row has no number as its {names}")
    return score


def _uneven(rule: rules.Rule, problem: str) -> errors.Uneven:
    return errors.Uneven(f"the predictor's answer is not as rule {rule.name!r} says: {problem}")
