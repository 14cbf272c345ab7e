"""What a head of HTTP/1.1 is made of: its lines, and which of them mean something to whoever asks.

`head_lines.c` has the same functions, which look at 16 bytes at once and make objects of nothing that does not matter.
It is built with the compiled modules, and Python prefers it to this file. All of them take complete heads, with the
empty line at their end, and return None for heads that servers may differ on: with anything but visible ASCII (no tabs,
no obs-fold), or with more lines than aiohttp reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from carpool_sidecar import caches

_MOST_LINES = 128
_MOST_PLACES = 64
# All else becomes zeros.
_VISIBLE = bytes([code if 32 <= code < 127 else 0 for code in range(256)])
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:")  # RFC 9110, section 5.6.2
# Heads are cheap to send: what is remembered of them has to end somewhere.
_MOST_NAMES = 256 * 1024


def lines(text: bytes) -> list[str] | None:
    """The lines of a head, the request line first."""
    if not text.endswith(b"\r\n\r\n") or not text.isascii():
        return None
    found = text.decode("ascii").split("\r\n")
    found.pop(), found.pop()  # what is behind the ends of the last line and of the head
    is_visible = 0 not in "".join(found).encode("ascii").translate(_VISIBLE)
    return found if is_visible and len(found) - 1 <= _MOST_LINES else None


def is_name(name: str) -> bool:
    """Whether this is the name of a header, and its colon."""
    return _NAME.fullmatch(name) is not None


def sorter(kinds: dict[str, int], places: int, others: int = 0) -> Callable[[bytes], list[str | None] | None]:
    """What sorts the lines of a head by the names of headers, which are in lower case here.

    A name of kind -1 matters as it stands, 0 means nothing, and with -2 a head is for somebody else: None. The value of
    a name of a kind above 0 is to be told, and two such lines are one too many: None. Names that are not among these
    are of the kind `others`, -1 or 0.

    What it returns begins with the request line and all lines that matter, as text; then at each place from 1 to
    `places` there is the value of that kind, without the spaces around it, or None. Also None is a line that is no
    header.
    """
    if not 0 <= places <= _MOST_PLACES:
        raise ValueError(f"there are 0 to {_MOST_PLACES} places")
    if not all(-2 <= kind <= places for kind in kinds.values()):
        raise ValueError(f"the kinds of headers are -2 to {places}")
    if others not in (-1, 0):
        raise ValueError("other headers are of the kind -1 or 0")
    known: caches.Cache[str, int] = caches.Cache("header_names", _MOST_NAMES)

    def learn(name: str) -> int:
        kind = kinds.get(name[:-1].lower(), others) if is_name(name) else -2
        known.put(name, kind, len(name))
        return kind

    def sort(text: bytes) -> list[str | None] | None:
        found = lines(text)
        if found is None:
            return None
        matter = [found[0]]
        values: list[str | None] = [None] * (places + 1)
        for line in found[1:]:
            name = line[: line.find(":") + 1]
            kind = known.get(name)
            if kind is None:
                kind = learn(name)
            if kind == 0:
                continue
            if kind > 0:
                if values[kind] is not None:
                    return None
                values[kind] = line[len(name) :].strip(" ")
            elif kind == -1:
                matter.append(line)
            else:
                return None
        values[0] = "\r\n".join(matter)
        return values

    return sort
