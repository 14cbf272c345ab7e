"""Errors as OpenAI's clients know them: the sidecar's own, and the predictor's, which speaks of v2 in other words."""

from __future__ import annotations

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import refusal_texts


def render_error(error: errors.CarpoolError, status: int) -> bytes:
    """The body of an error with this status."""
    told = {
        "message": refusal_texts.text_of(error),
        "type": _kind(status),
        "param": _parameter(error),
        "code": _code(error, status),
    }
    return msgspec.json.encode({"error": told})


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if 400 <= status < 500 else "server_error"


def _parameter(error: errors.CarpoolError) -> str | None:
    return error.name if isinstance(error, errors.BadMember) else None


def _code(error: errors.CarpoolError, status: int) -> str | None:
    """OpenAI's own for a model that is not there; what a bad request did wrong is told by its member."""
    if status == 404:
        return errors.ModelNotFound.reason
    return None if isinstance(error, errors.BadRequest | errors.UpstreamStatus) else error.reason
