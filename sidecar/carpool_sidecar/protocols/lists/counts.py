"""What an answer counts for the whole call, tokens mostly: which of it can be shared out among the callers.

Servers write such numbers in several ways (`147`, `147.0`, `1e2`), and whatever is no whole number cannot be shared.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_members, steps
from carpool_sidecar.protocols.lists import places

Path = tuple[str, ...]
"""The names of the members that lead to a number."""

_WHOLE_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_NUMBER = re.compile(rb"[0-9.eE+-]{1,40}")
_EXACT = 2**53  # a float tells whole numbers apart up to here
_DIGIT = re.compile(rb"[0-9]")


class Counts:
    """What an answer counts for all callers: `totals` can be shared out, and have the `spans` in it.

    A count that cannot be shared out is left out, so that no caller takes the whole call's for its own.
    """

    # State: by the objects that they are in, the members to be left out.
    def __init__(self, text: places.Text, body: bytes, lists: Collection[places.Span]) -> None:
        """`body` is the text, with all that is not JSON in it; the `lists` in it are the rows, and not looked at."""
        self.totals: dict[Path, int] = {}
        self.spans: dict[Path, places.Span] = {}
        self._text = text
        self._body = body
        self._lists = {span.start for span in lists}
        self._refused: dict[places.Span, set[json_members.Member]] = {}

    def find(self, place: places.Place) -> None:
        """Find what is at a place: a count, or an object with counts in it."""
        *way, last = place.names
        for holder in steps.at_once(self._text.find(places.Place(place.text, tuple(way), False))):
            if self._text.begins(holder, b"{"):
                self._look(holder, tuple(way), last)

    def left_out(self) -> list[places.Span]:
        """The text of the members that have to be left out, each with one of the commas beside it."""
        found: list[places.Span] = []
        for holder, refused in self._refused.items():
            members = list(self._text.members(holder).values())
            kept = -1
            for member, after in itertools.zip_longest(members, members[1:]):
                if member not in refused:
                    kept = member.stop
                elif after is not None:
                    found.append(places.Span(member.start, after.start))
                else:
                    found.append(places.Span(member.start if kept < 0 else kept, member.stop))
        return found

    def _look(self, holder: places.Span, way: Path, only: str | None = None) -> None:
        for name, member in self._text.members(holder).items():
            if only not in (None, name) or member.value in self._lists:
                continue
            if not self._take(places.Span(member.value, member.stop), (*way, name)):
                self._refused.setdefault(holder, set()).add(member)

    def _take(self, span: places.Span, name: Path) -> bool:
        """Whether a value may stay where it is."""
        if self._text.begins(span, b"{"):
            try:
                self._look(span, name)
            except errors.BadRequest:  # two members of one name
                return False
            return True
        written = self._body[span.start : span.stop]
        if not _DIGIT.search(written):
            return True  # it counts nothing: null, a word
        total = _total(written)
        if total is None:
            return False
        self.totals[name], self.spans[name] = total, span
        return True


def _total(written: bytes) -> int | None:
    """The whole number that is written so; None for a fraction, a negative or huge number, a text and a list."""
    if _WHOLE_NUMBER.fullmatch(written):
        return int(written)
    number = float(written) if _NUMBER.fullmatch(written) else -1
    return int(number) if 0 <= number < _EXACT and number == int(number) else None
