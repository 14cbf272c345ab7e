"""Places of values in JSON text, and text with gaps at such places.

Rows are cut out of a request and put into another, so all that counts is where they begin and end; the text between
stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carpool_sidecar.protocols import json_members, steps

_NAME = r"[^.*$\s\"\\\x00-\x1f]+"
_PLACE = re.compile(rf"\$|\*|{_NAME}(?:\.{_NAME})*(?:\.\*)?")
_SPACE = b" \t\r\n"
_STAR = "*"


@dataclass(frozen=True)
class Place:
    """Where a value is: `$` is the whole text, `a.b` the member `b` of the member `a`, `a.*` every list in `a`."""

    text: str
    names: tuple[str, ...]
    is_columns: bool

    @classmethod
    def parse(cls, text: str) -> Place:
        """Raises `ValueError`, which says what is allowed."""
        if not _PLACE.fullmatch(text):
            raise ValueError(f"{text!r} is no place: allowed are $, names like a or a.b, and a.* for every list in a")
        names = () if text == "$" else tuple(text.split("."))
        is_columns = names[-1:] == (_STAR,)
        return cls(text, names[:-1] if is_columns else names, is_columns)


class Span(NamedTuple):
    """A value from `start` to before `stop`, without white space around it. `name` is that of its column, or empty."""

    start: int
    stop: int
    name: str = ""


class Text:
    """JSON text whose objects are looked into as far as they are asked for."""

    # State: the members of objects that were looked into, by where these begin.
    def __init__(self, text: bytes) -> None:
        """Raises nothing; the text is looked at when it is asked for."""
        self.text = text
        start = len(text) - len(text.lstrip(_SPACE))
        self.whole = Span(start, max(start, len(text.rstrip(_SPACE))))
        self._known: dict[int, dict[str, json_members.Member]] = {}

    def begins(self, span: Span, mark: bytes) -> bool:
        """Whether a value begins so."""
        return self.text.startswith(mark, span.start)

    def members(self, span: Span) -> dict[str, json_members.Member]:
        """The members of an object; raises what `json_members.find` does."""
        found = self._known.get(span.start)
        if found is None:
            found = self._known[span.start] = json_members.find(self.text, span.start, span.stop)
        return found

    def find(self, place: Place) -> Sequence[Span]:
        """The value at a place; for columns those of its lists. Empty if there is none.

        Raises `errors.BadRequest` for text that is no JSON on the way to it, and `errors.Unbatchable` for an object of
        more than `json_members.MOST` members there.
        """
        span = self.whole
        for name in place.names:
            if not self.begins(span, b"{"):
                return ()
            member = self.members(span).get(name)
            if member is None:
                return ()
            span = Span(member.value, member.stop)
        if not place.is_columns:
            return (span,)
        if not self.begins(span, b"{"):
            return ()
        columns = [Span(member.value, member.stop, name) for name, member in self.members(span).items()]
        return [column for column in columns if self.begins(column, b"[")]

    def find_in_steps(self, place: Place) -> steps.Steps[Sequence[Span]]:
        """The same in a large text."""
        span = self.whole
        for name in (*place.names, _STAR) if place.is_columns else place.names:
            if not self.begins(span, b"{"):
                break
            members = self._known.get(span.start)
            if members is None:
                members = yield from json_members.find_in_steps(self.text, span.start, span.stop)
                self._known[span.start] = members
            member = members.get(name)
            if member is None:
                break
            span = Span(member.value, member.stop)
        return self.find(place)

    def around(self, spans: Sequence[Span], cuts: Sequence[Span] = ()) -> tuple[bytes, ...]:
        """The text before, between and after these values, which are in order: one piece more than values.

        It is without the `cuts`, which may overlap each other, but none of the values.
        """
        pieces, at = [], 0
        for span in spans:
            pieces.append(self._between(at, span.start, cuts))
            at = span.stop
        return (*pieces, self._between(at, len(self.text), cuts))

    def _between(self, at: int, stop: int, cuts: Sequence[Span]) -> bytes:
        pieces = []
        for cut in sorted(cuts):
            if at <= cut.start < stop:
                pieces.append(self.text[at : cut.start])
            if cut.start < stop:
                at = max(at, cut.stop)
        return b"".join((*pieces, self.text[at:stop])) if pieces else self.text[at:stop]
