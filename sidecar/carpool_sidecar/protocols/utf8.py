"""Whether bytes are UTF-8: JSON has to be, and msgspec does not look inside strings that it is told to skip."""

from __future__ import annotations

import codecs

from carpool_sidecar import errors

# What is decoded at once: as fast as the whole, and never a large string.
_STEP = 256 * 1024


def check(body: bytes | memoryview) -> None:
    """Raises `errors.BadRequest`, with the place, for bytes that are not UTF-8."""
    view, at = memoryview(body), 0
    while at < len(view):
        try:
            _, used = codecs.utf_8_decode(view[at : at + _STEP], "strict", at + _STEP >= len(view))
        except UnicodeDecodeError as error:
            raise errors.BadRequest(f"the body is not valid UTF-8 (byte {at + error.start})") from None
        at += used
