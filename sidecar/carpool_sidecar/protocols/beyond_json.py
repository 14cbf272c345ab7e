"""What most parsers and writers of JSON take and write, and a strict one refuses: NaN, infinities, half characters.

Python's json writes `NaN`, `Infinity` and `-Infinity` as bare words, and half of a surrogate pair (`"\\ud83d"`, a text
that was cut within an emoji) as any other escape; RapidJSON takes `Inf` as well. Nothing here reads values, so all that
is wanted of such a text is where its values begin and end: those are the places of the same values in a text of the
same size that is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from carpool_sidecar.protocols import frames, steps

_STEP = 64 * 1024  # bytes that are looked at in one step: a millisecond, if all of them are escapes

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
# An escaped backslash begins no escape, and of two halves in order neither stands alone.
_HALVES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD]([89a-fA-F])([0-9a-fA-F]{2})"
)
_NOT_FINITE = re.compile(rb"NaN|Inf")
# Objects: what stood beside the word as part of it makes the text malformed still, and where a list has to be is none.
_WORDS = tuple(
    (word, b"{%b}" % (b" " * (len(word) - 2)))
    for word in (b"-Infinity", b"Infinity", b"-NaN", b"NaN", b"-Inf", b"Inf")  # each before what is part of it
)


def has_halves(text: bytes) -> bool:
    """Whether half of a surrogate pair may be in it."""
    return _HALF.search(text) is not None


def masked(text: bytes, with_words: bool = True) -> steps.Steps[bytes | None]:
    """A text of the same size with JSON for what is none; None if nothing in it is such.

    Values are where they were, and a name with a half character is still another than all others. The words for what
    is not finite are left alone unless `with_words`.
    """
    halves = has_halves(text)
    words = with_words and _NOT_FINITE.search(text) is not None
    if not halves and not words:
        return None
    pieces: list[bytes] = []
    at, is_in_string = 0, False
    while at < len(text):
        # No word, escape or pair has a comma in it.
        stop = text.find(b",", at + _STEP)
        piece = text[at:stop] if stop >= 0 else text[at:]
        at += len(piece)
        if halves:
            piece = _HALVES.sub(_whole, piece)
        if words:
            piece, is_in_string = _finite(piece, is_in_string)
        pieces.append(piece)
        yield
    found = b"".join(pieces)
    return None if found == text else found


def sliced(text: bytes, at: int, mask: bytes, rows: Sequence[bytes | msgspec.Raw]) -> list[bytes]:
    """Out of a text the rows of the list that begins at a place, as they were found in its mask."""
    found = []
    at += 1
    for row in rows:
        at = frames.next_row(mask, at)
        found.append(text[at : at + len(row)])
        at += len(row)
    return found


def _whole(found: re.Match[bytes]) -> bytes:
    """For each half one character of its own, which nobody uses (U+E000 to U+E7FF)."""
    return found[0] if found[1] is None else b"\\ue%x%b" % (int(found[1], 16) - 8, found[2])


def _finite(piece: bytes, is_in_string: bool) -> tuple[bytes, bool]:
    """A piece without the words outside of its strings, and whether it ends within one."""
    plain = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in piece else piece
    texts: list[bytes] = []
    at = 0
    for part in plain.split(b'"'):
        text = piece[at : at + len(part)]
        if not is_in_string and _NOT_FINITE.search(text):
            for word, instead in _WORDS:
                text = text.replace(word, instead)
        texts.append(text)
        at += len(part) + 1
        is_in_string = not is_in_string
    return b'"'.join(texts), not is_in_string
