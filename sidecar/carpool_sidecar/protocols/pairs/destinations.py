"""Where pairs go: what `--rerank-to` may say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from carpool_sidecar.protocols.lists import rules  # which takes long to load

V2: Final = "v2"
KINDS: Final = ("tei-predict", "vllm-score", "v1", V2)
"""Kinds of predictors that take pairs. Requests to those of v1 and v2 name a model."""

_OF_A_MODEL: Final = ("v1", V2)
_WRITTEN: Final = re.compile(r"([a-z0-9-]+)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?")


class Destination(NamedTuple):
    """A kind of predictor, and the model that all requests are for; empty: the one that each names."""

    kind: str
    model: str = ""

    @classmethod
    def parse(cls, text: str, kinds: Sequence[str] = KINDS) -> Destination:
        """One of these kinds; raises `ValueError` that says what is allowed."""
        found = _WRITTEN.fullmatch(text)
        if found is None or found[1] not in kinds or (found[2] and found[1] not in _OF_A_MODEL):
            named = [kind for kind in kinds if kind in _OF_A_MODEL]
            allowed = f"{', '.join(kinds)}, and of {' and '.join(named)} with a model, as in {named[-1]}:MODEL"
            raise ValueError(f"must be one of {allowed}; given: {text!r}")
        return cls(found[1], found[2] or "")

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.kind}:{self.model}" if self.model else self.kind

    def check(self, chosen: Iterable[rules.Rule]) -> None:
        """Raises `ValueError` if no request of any of these rules of `--lists` has a query, of which pairs are made."""
        if not any(rule.query for rule in chosen):
            raise ValueError("--rerank-to needs a rule of --lists with a query, such as rerank or tei-rerank")
