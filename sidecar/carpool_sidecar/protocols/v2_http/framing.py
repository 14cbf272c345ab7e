"""Where the JSON of a v2 message over HTTP ends and its binary data begin: what headers say of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface

HEADER: Final = "Inference-Header-Content-Length"
HEADER_KEY: Final = b"inference-header-content-length"
JSON: interface.Headers = (("Content-Type", "application/json"),)


def headers(json_size: int | None) -> interface.Headers:
    """Those of a body of JSON, or of one with binary data after so many bytes of JSON."""
    if json_size is None:
        return JSON
    return (("Content-Type", "application/octet-stream"), (HEADER, str(json_size)))


def json_size(headers: Mapping[bytes, bytes], body_size: int) -> int | None:
    """The bytes of JSON in the predictor's answer, by its header; None if all is JSON.

    Raises `errors.UpstreamBroken` for a header that cannot be.
    """
    value = headers.get(HEADER_KEY)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18 or int(value) > body_size:
        raise errors.UpstreamBroken(
            f"the predictor's answer has {body_size} bytes, but {HEADER} says {value.decode('latin-1')!r:.40}"
        )
    return int(value)
