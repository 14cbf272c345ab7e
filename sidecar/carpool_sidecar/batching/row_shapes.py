"""Which requests' rows have equal lengths: for predictors that make one array of all rows in a call.

It is asked only once such a predictor has refused rows together, so it may take its time: some microseconds a request.
"""

from __future__ import annotations

from collections.abc import Hashable

from carpool_sidecar.protocols import interface

# A pattern has all of a row up to this size.
_LARGE = 16 * 1024

# Of a pattern, which literals stand in a row says nothing about its lengths.
_LITERALS = b"aefilnrstuyIN"


def of(payload: interface.Payload) -> Hashable | None:
    """Equal for payloads whose rows have equal lengths, also of the lists within them; None if they are of several.

    The first row stands for what is within all of them. If it is large its pattern may end anywhere, so that only the
    first list of lists in it counts, or the first list if there is none.
    """
    lengths = payload.row_lengths(0, payload.row_count)
    if any(length != lengths[0] for length in lengths):
        return None
    pattern = payload.row_pattern
    if not isinstance(pattern, bytes):
        return lengths[0], None  # the batch key tells the rest
    if payload.row_sizes(0, 1)[0] > _LARGE:
        closing = b"]]" if b"]]" in pattern else b"]"
        pattern = pattern[: pattern.find(closing) + len(closing)] if closing in pattern else b""
    return lengths[0], hash(pattern.translate(None, _LITERALS))
