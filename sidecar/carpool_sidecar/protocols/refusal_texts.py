"""What a predictor says in a refusal, for callers who speak another protocol than it does."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from carpool_sidecar import errors

_NAMES = ("error", "message", "detail")
_REFUSAL = msgspec.json.Decoder(dict[str, Any])


def text_of(error: errors.CarpoolError) -> str:
    """What an error says. Of a predictor's it is the text in its body: v1's and v2's `error`, OpenAI's, FastAPI's."""
    if not isinstance(error, errors.UpstreamStatus):
        return str(error)
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found: Any = _REFUSAL.decode(error.body)
        while isinstance(found, dict):
            found = next((found[name] for name in _NAMES if found.get(name)), None)
        if isinstance(found, list):  # FastAPI's, one for each fault
            faults = [each["msg"] for each in found if isinstance(each, dict) and isinstance(each.get("msg"), str)]
            found = "; ".join(faults) or None
        if isinstance(found, str):
            return found
    return error.body.decode(errors="replace") or str(error)
