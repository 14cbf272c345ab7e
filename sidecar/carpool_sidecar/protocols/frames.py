"""Messages whose text was seen before, but for what is in its gaps: rows, and what is counted for all of them.

Clients and servers write the same text around their rows again and again, and one JSON value can stand in the place of
any other. So what was understood of one message holds for each that has the same text before, between and after its
gaps, if in each gap is one value of the kind that was there before; and nothing but the gaps has to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_BETWEEN_ROWS: Final = re.compile(rb"[ \t\r\n,]*+")


def gaps(texts: Sequence[bytes], body: bytes, start: int, stop: int) -> list[tuple[int, int]] | None:
    """Where the gaps between these texts are in a body, which has all of them from `start` to before `stop`; else None.

    What is in a gap has to be looked at: text like that between two gaps may be in the rows as well.
    """
    first, last = texts[0], texts[-1]
    at, end = start + len(first), stop - len(last)
    if not body.startswith(first, start, stop) or not body.endswith(last, start, stop):
        return None
    if len(texts) == 2:
        return [(at, end)] if at <= end else None
    if len(texts) == 1:
        return [] if at == stop else None
    found: list[tuple[int, int]] = []
    # From behind: what is counted mostly stands after the rows, and is small.
    for text in texts[-2:0:-1]:
        edge = body.rfind(text, at, end)
        if edge < 0:
            return None
        found.append((edge + len(text), end))
        end = edge
    if at > end:
        return None
    found.append((at, end))
    found.reverse()
    return found


def next_row(text: bytes, at: int) -> int:
    """Where a row of a list begins, behind the row before it or the opening bracket, which ends at a place."""
    found = _BETWEEN_ROWS.match(text, at)
    return at if found is None else found.end()
