"""The token of --admin-token-file: with it a caller of the admin port may change settings and start the drain."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

_SCHEME = "Bearer "
_MOST_BYTES = 4096


def objection(headers: Mapping[str, str], path: str) -> str:
    """Why a request may change nothing, "" if it has the token: `Authorization: Bearer TOKEN` (RFC 6750).

    The file is read each time, as a mounted Secret changes. One that cannot be read, or is empty, lets nobody in.
    """
    try:
        with Path(path).open("rb") as file:
            wanted = file.read(_MOST_BYTES).strip()
    except OSError as error:
        return f"changes take the token in {path}, which cannot be read: {error.strerror}"
    if not wanted:
        return f"changes take the token in {path}, which is empty"
    given = headers.get("Authorization", "")
    token = given.removeprefix(_SCHEME).strip().encode(errors="surrogateescape") if given.startswith(_SCHEME) else b""
    if hmac.compare_digest(token, wanted):
        return ""
    return "changes take the token of --admin-token-file: Authorization: Bearer TOKEN"
