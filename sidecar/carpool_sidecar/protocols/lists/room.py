"""How much of one call a row takes up, by the limits of its rule: what the scheduler adds up where rules have some.

Servers limit bytes, characters or tokens of a call. Rows stay bytes, so characters are counted in the JSON that a
client wrote, and tokens by them: a rule says how many characters a token has at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from carpool_sidecar.protocols import json_rows, steps
from carpool_sidecar.protocols.lists import rules

WHOLE = 2**50
"""One call, in the parts that `taken` counts.

So many that a call of 100,000 rows is full neither too early nor too late: parts are rounded down, and all of them add
up to less than one byte, character or token. A float still tells these sums apart.
"""

_CONTINUED = bytes(range(0x80, 0xC0))  # bytes of a character in UTF-8 behind its first one
_STEP = 64 * 1024  # bytes that are counted in one step, each row counting as so many more
_AS_MUCH_AS_A_ROW = 512


def taken(rule: rules.Rule, rows: Sequence[bytes | memoryview | msgspec.Raw], size: int) -> steps.Steps[list[int]]:
    """Parts of `WHOLE` that each row of a list takes up: by that limit of the rule to which it comes nearest.

    So a call in which other rows come nearer to other limits may be smaller than it had to be, and never larger.
    `size` is that of the whole list, without its brackets, in bytes: what is neither row nor comma in it is white
    space, of which each row takes its part.
    """
    spaces = more = 0
    if rule.max_bytes is not None and rows:
        spaces, more = divmod(size - sum(map(len, rows)) - (len(rows) - 1), len(rows))
    found = [0] * len(rows)
    work = 0
    for place, row in enumerate(rows):
        work += len(row) + _AS_MUCH_AS_A_ROW
        if work >= _STEP:
            work = 0
            yield
        if rule.max_bytes is not None:
            # Each row with a comma behind it, and one comma more in all than there is.
            found[place] = (len(row) + 1 + spaces + (place < more)) * WHOLE // (rule.max_bytes + 1)
        if rule.max_characters is None and rule.max_tokens is None:
            continue
        view = memoryview(row)
        count = yield from _characters(view)
        if rule.max_characters is not None:
            found[place] = max(found[place], count * WHOLE // rule.max_characters)
        if rule.max_tokens is not None and rule.characters_a_token is not None:
            tokens = yield from _token_ids(view)
            if tokens is None:
                tokens = math.ceil(count / rule.characters_a_token)
            found[place] = max(found[place], tokens * WHOLE // rule.max_tokens)
    return found


def characters(row: bytes) -> int:
    """Characters of a text, an escape being one; of any other row those of its JSON."""
    return steps.at_once(_characters(memoryview(row)))


def _characters(row: memoryview) -> steps.Steps[int]:
    count = -2 if bytes(row[:1]) == b'"' else 0
    for number, piece in enumerate(_pieces(row)):
        if number:
            yield
        count += len(piece) if piece.isascii() else len(piece.translate(None, _CONTINUED))
        backslashes = piece.count(b"\\")
        if not backslashes:
            continue
        # Backslashes pair up from left to right, and each that is left begins an escape: of six characters with a u.
        pairs = piece.count(b"\\\\")
        count -= backslashes - pairs
        if b"\\u" in piece:
            count -= 4 * (piece.replace(b"\\\\", b"") if pairs else piece).count(b"\\u")
    return max(count, 0)  # in a text that is no JSON a u may have fewer than four digits behind it


def _token_ids(row: memoryview) -> steps.Steps[int | None]:
    """How many whole numbers a row is a list of; None for any other row."""
    if bytes(row[:1]) != b"[":
        return None
    inside = row[1:-1]
    commas, is_empty = 0, True
    for number, piece in enumerate(_pieces(inside)):
        if number:
            yield
        if not json_rows.are_integers(piece):
            return None
        commas += piece.count(b",")
        is_empty = is_empty and not piece.strip()
    return 0 if is_empty else commas + 1


def _pieces(text: memoryview) -> Iterator[bytes]:
    """A text in pieces that can be counted in one step, none of which ends within the first two bytes of an escape."""
    at = 0
    while at < len(text):
        piece = bytes(text[at : at + _STEP])
        at += len(piece)
        if at < len(text) and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = piece[:-1]
            at -= 1
        yield piece
