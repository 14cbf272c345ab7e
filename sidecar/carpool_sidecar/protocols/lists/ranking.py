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
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import answers, rules

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = b"null"
_WHOLE = re.compile(rb"[1-9][0-9]{0,8}")


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
    if len(given) > 1 or not _WHOLE.fullmatch(given[0]):
        raise errors.Unbatchable(errors.NotBatched.TOP)
    return Ranked(rule, int(given[0]))


class Ranked:
    """Implements `interface.ResponseFormat`: the best rows first, `top` of them, or all."""

    def __init__(self, rule: rules.Rule, top: int | None) -> None:
        self._rule = rule
        self._top = top

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """A request that travelled whole and alone gets the answer as it came, by the server's own order and number.

        Raises `errors.UpstreamBroken` if rows do not say which document they are of, or have no score.
        """
        return answers.ResponseFormat.LIST.render(shares, self._best_first)

    def _best_first(self, rows: Sequence[bytes], are_numbered: bool) -> Sequence[bytes]:
        if not are_numbered:
            raise self._broken(f"rows have no {self._rule.index!r}")
        scores = [self._score(row) for row in rows]
        order = sorted(range(len(rows)), key=lambda place: -scores[place])  # of equal ones the earlier first
        return [rows[place] for place in order[: self._top]]

    def _score(self, row: bytes) -> float:
        """What a row is ranked by; what is no number comes last."""
        try:
            members = _MEMBERS.decode(row)
            found = [members[name] for name in self._rule.rank_by if name in members]
            score = float(bytes(found[0])) if found else None
        except msgspec.DecodeError:
            score = self._lenient_score(row)
        except ValueError:
            return -math.inf
        if score is None:
            raise self._broken(f"a row has no {' or '.join(self._rule.rank_by)}")
        return -math.inf if math.isnan(score) else score

    def _lenient_score(self, row: bytes) -> float | None:
        """The same of a row with what is no JSON and Python writes all the same, such as NaN."""
        try:
            members = json.loads(row)
            found = [members[name] for name in self._rule.rank_by if name in members]
        except (ValueError, RecursionError, TypeError):
            return None
        return float(found[0]) if found and isinstance(found[0], int | float) else None

    def _broken(self, problem: str) -> errors.UpstreamBroken:
        return errors.UpstreamBroken(f"the predictor's answer is not as rule {self._rule.name!r} says: {problem}")
