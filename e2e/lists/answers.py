"""Whether an answer through the sidecar is the one that the server gives by itself.

Numbers of embeddings may differ by 1e-6, since a model rounds differently in another batch; `id` and `created` are new
in each answer; counts of tokens may be shares of the batch's, if the sidecar says so. All else has to be the same
bytes, but for white space after commas: the sidecar writes none between rows.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any, NamedTuple

import pytest

TOLERANCE = 1e-6
BATCH_ID, USAGE = "carpool-batch-id", "carpool-usage"

_NUMBER = rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
# A vector has eight numbers at least; shorter lists are compared as bytes.
_VECTOR = re.compile(rb"\[\s*" + _NUMBER + rb"(?:\s*,\s*" + _NUMBER + rb"){7,}\s*\]")
_BASE64 = re.compile(rb'("embedding"\s*:\s*)"([A-Za-z0-9+/]+=*)"')
_NEW = re.compile(rb'("(?:id|created)"\s*:\s*)(?:"(?:embd|chatcmpl|cmpl)-[^"]*"|\d{10})')
_AFTER_COMMA = re.compile(rb",[ \t\r\n]+")
_COUNTS = re.compile(rb'("(?:prompt|total)_tokens"\s*:\s*)\d+')


class Answer(NamedTuple):
    """What came over HTTP; names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def batch(self) -> str | None:
        """The batch that it was part of, if any."""
        return self.headers.get(BATCH_ID)

    @property
    def is_prorated(self) -> bool:
        """Whether its counts are shares."""
        return self.headers.get(USAGE) == "prorated"

    @property
    def tokens(self) -> int:
        """The prompt's tokens, as OpenAI's usage tells them."""
        return int(json.loads(self.body)["usage"]["prompt_tokens"])


def assert_same(found: Answer, alone: Answer, what: object = "") -> None:
    """`found` came through the sidecar; `alone` from the server, for the same request."""
    assert found.status == alone.status, f"{what}: {found} instead of {alone}"
    assert found.headers.get("content-type") == alone.headers.get("content-type"), what
    if alone.status != 200:
        assert found.body == alone.body, what
        return
    text, vectors = _parts(found.body, without_counts=found.is_prorated)
    expected, expected_vectors = _parts(alone.body, without_counts=found.is_prorated)
    assert text == expected, f"{what}: {text!r} instead of {expected!r}"
    assert_close(vectors, expected_vectors, what)


def assert_close(found: Any, expected: Any, what: object = "") -> None:
    """Vectors, or lists of them, of the same shape and within the tolerance."""
    assert len(found) == len(expected), what
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, list):
            assert_close(one, other, what)
        else:
            assert one == pytest.approx(other, rel=0, abs=TOLERANCE), what


def _parts(body: bytes, *, without_counts: bool) -> tuple[bytes, list[list[float]]]:
    """The body without what may differ, and its vectors in their order."""
    vectors: list[list[float]] = []

    def take(found: re.Match[bytes]) -> bytes:
        vectors.append([float(number) for number in json.loads(found[0])])
        return b"[...]"

    def take_base64(found: re.Match[bytes]) -> bytes:
        content = base64.b64decode(found[2], validate=True)
        vectors.append(list(struct.unpack(f"<{len(content) // 4}f", content)))
        return found[1] + b'"..."'

    body = _AFTER_COMMA.sub(b",", _BASE64.sub(take_base64, _VECTOR.sub(take, body)))
    body = _NEW.sub(rb"\1...", body)
    return _COUNTS.sub(rb"\1...", body) if without_counts else body, vectors
