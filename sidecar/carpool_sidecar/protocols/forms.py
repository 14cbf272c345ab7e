"""Which rows may be in one call: those of one form.

Many servers make one table or one array of all rows of a call. pandas takes the columns of the first row, in its
order, and leaves gaps where a row lacks one; numpy makes `1` beside `"x"` a text, `true` beside `7` a number, and a
whole number beyond 2**53 beside a fraction another number. Then what a caller gets depends on who is beside it. So
requests meet only if their rows have the same form: the names of members in order, the nesting of lists, and the kinds
of values. If a request has rows of several forms, that is one more form, and the order of its rows matters; a part of
such a request, which may begin with other rows, meets nobody.

Values, white space and the lengths of lists are no part of a form: which servers take only lists of one length shows
when they refuse others. Whole numbers and fractions are one kind, as clients write 1.0 as 1, unless a whole number in
the request may be beyond 2**53: then whole numbers, fractions, signs and sizes are told apart everywhere in it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from carpool_sidecar import errors
from carpool_sidecar.protocols import form_scan

# Names are text of callers, and what they are part of is kept for a while.
_LONG: Final = 256

# Each number is in two lists, of which the outer one has one that is complete: rows of numbers.
_FLAT: Final = 2 | 1 << 6

_PARTS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|.', re.DOTALL)

TEXTS: Final = b"[s]"
"""The form of a list of texts."""

ANY: Final = b""
"""What stands for the form of rows of which any may meet."""


def of(text: bytes | memoryview, nesting: int = -1) -> bytes:
    """The form of rows, by the text of their list; or a digest, if it is long. The `nesting` may be known by
    `number_lists.find`.

    Raises `errors.Unbatchable` for a form of more than 64 KiB, such as that of very many lists or objects that differ.
    """
    if nesting == _FLAT:
        return b"[[n]]"
    if nesting >= 0:
        return short(of_numbers(nesting, 1) + b"]")
    found = form_scan.scan(b"", text, 0, len(text), False)
    if found is None:
        found = form_scan.scan(b"", text, 0, len(text), True)
        if found is None:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
    return found if len(found) <= _LONG else short(found)


def of_numbers(nesting: int, depth: int) -> bytes:
    """The form of a text up to a comma behind lists of numbers, of which `depth` are open; for `nesting` see
    `number_lists.find`."""
    leaf, begun = nesting & 63, nesting >> 6
    form = b""
    for level in range(1, depth + 1):
        inner = leaf - level
        has_values = level == depth or begun >> (level - 1) & 1
        form += b"[" + (b"[" * inner + b"n" + b"]" * inner if has_values else b"")
    return form


def short(form: bytes) -> bytes:
    """A form, or a digest if it is long: nearly everything else about a request is shorter."""
    return form if len(form) <= _LONG else hashlib.blake2b(form, digest_size=16).digest()


def may_be_several(form: bytes) -> bool:
    """Whether rows that have this form together may be of more than one, each by itself; a digest does not tell."""
    depth = count = 0
    for part in _PARTS.findall(form):
        if part in b"]}":
            depth -= 1
        elif not part.startswith(b'"'):
            count += depth == 1
            depth += part in b"[{"
    return count > 1 or depth != 0 or (form != ANY and not form.startswith(b"["))
