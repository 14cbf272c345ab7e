"""Places of values in JSON text, and text with gaps at such places.

Rows are cut out of a request and put into another, so all that counts is where they begin and end; the text between
stays as it was written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from carpool_sidecar.protocols import incremental_scan, json_members, steps

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

    @property
    def steps(self) -> tuple[str, ...]:
        """The names that lead there, and a star for columns."""
        return (*self.names, _STAR) if self.is_columns else self.names

    @classmethod
    def parse(cls, text: str) -> Place:
        """Raises `ValueError`, which says what is allowed."""
        if not _PLACE.fullmatch(text):
            raise ValueError(f"{text!r} is no place: allowed are $, names like a or a.b, and a.* for every list in a")
        names = () if text == "$" else tuple(text.split("."))
        is_columns = names[-1:] == (_STAR,)
        return cls(text, names[:-1] if is_columns else names, is_columns)


class Span(NamedTuple):
    """A value from `start` to before `stop`, without white space around it. `name` is that of its column, or empty.

    A large list may have been scanned.
    """

    start: int
    stop: int
    name: str = ""
    scan: incremental_scan.IncrementalScan | None = None


class Text:
    """JSON text whose objects are looked into as far as they are asked for."""

    # State: the members of objects that were looked into, by where these begin.
    def __init__(self, text: bytes, max_rows: int = sys.maxsize, with_forms: bool = False) -> None:
        """Raises nothing; the text is looked at when it is asked for.

        Of large lists `max_rows` are noted, and their form if they are to be found `with_forms`.
        """
        self.text = text
        start = len(text) - len(text.lstrip(_SPACE))
        self.whole = Span(start, max(start, len(text.rstrip(_SPACE))))
        self._wanted: dict[str, Any] = {"max_rows": max_rows, "with_form": with_forms}
        self._known: dict[int, dict[str, json_members.Member]] = {}

    def begins(self, span: Span, mark: bytes) -> bool:
        """Whether a value begins so."""
        return self.text.startswith(mark, span.start)

    def members(self, span: Span) -> Mapping[str, json_members.Member]:
        """The members of an object; raises what `json_members.find` does."""
        found = self._known.get(span.start)
        if found is None:
            found = self._known[span.start] = steps.at_once(json_members.find(self.text, span.start, span.stop))
        return found

    def find(self, place: Place) -> steps.Steps[Sequence[Span]]:
        """The value at a place; for columns those of its lists. Empty if there is none.

        Raises `errors.BadRequest` for text that is no JSON on the way to it, and `errors.Unbatchable` for an object of
        more than `json_members.MOST` members there.
        """
        span = self.whole
        for name in place.steps:
            if not self.begins(span, b"{"):
                return ()
            found = self._known.get(span.start)
            if found is None:
                found = yield from json_members.find(self.text, span.start, span.stop, **self._wanted)
                self._known[span.start] = found
            if name == _STAR:
                columns = [Span(at.value, at.stop, column, at.scan) for column, at in found.items()]
                return [column for column in columns if self.begins(column, b"[")]
            member = found.get(name)
            if member is None:
                return ()
            span = Span(member.value, member.stop, "", member.scan)
        return (span,)

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
