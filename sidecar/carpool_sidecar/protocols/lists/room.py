"""How much of one call a row takes up, by the limits of its rule: what the scheduler adds up where rules have some.

Servers limit bytes, characters or tokens of a call. Rows stay bytes, so characters are counted in the JSON that a
client wrote, and tokens by them: a rule says how many characters a token has at least.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from carpool_sidecar.protocols import json_rows
from carpool_sidecar.protocols.lists import rules

WHOLE = 2**50
"""One call, in the parts that `taken` counts.

So many that a call of 100,000 rows is full neither too early nor too late: parts are rounded down, and all of them add
up to less than one byte, character or token. A float still tells these sums apart.
"""

_CONTINUED = bytes(range(0x80, 0xC0))  # bytes of a character in UTF-8 behind its first one
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)


def taken(rule: rules.Rule, rows: Sequence[bytes | msgspec.Raw], are_tokens: bool) -> list[int]:
    """Parts of `WHOLE` that each row takes up: by that limit of the rule to which it comes nearest.

    So a call in which other rows come nearer to other limits may be smaller than it had to be, and never larger.
    """
    found = [0] * len(rows)
    for place, row in enumerate(rows):
        if rule.max_bytes is not None:
            found[place] = len(row) * WHOLE // rule.max_bytes
        if rule.max_characters is None and rule.max_tokens is None:
            continue
        text = bytes(row)
        count = characters(text)
        if rule.max_characters is not None:
            found[place] = max(found[place], count * WHOLE // rule.max_characters)
        if rule.max_tokens is not None and rule.characters_a_token is not None:
            tokens = json_rows.length(text) if are_tokens else math.ceil(count / rule.characters_a_token)
            found[place] = max(found[place], tokens * WHOLE // rule.max_tokens)
    return found


def characters(row: bytes) -> int:
    """Characters of a text, an escape being one; of any other row those of its JSON."""
    count = len(row.translate(None, _CONTINUED))
    if b"\\" in row:
        count -= sum(len(escape) - 1 for escape in _ESCAPE.findall(row))
    return count - 2 if row.startswith(b'"') else count
