"""What callers of an embedding model send, in v1 and as OpenAI has it, and which answer is theirs.

A request carries one text that ends in its mark, `-0.00042` for number 42, or `-1.00042` if the embedding is to be
a long one. The stub finds the marks and answers each with an embedding that has its digits. In both formats a row of
an answer has the same bytes, so that the ways differ in nothing but the format.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.v2 import traffic

MODEL = "embedder"
SHORT, LONG = b"-0.", b"-1."
"""How marks begin, and with them the embeddings: 8 numbers, or 1,536 as FP32 in base64."""
TOKENS = 2
"""Of each text, says the stub."""

_REST = b",0.1234567" * 7
_BASE64 = b"A" * (1536 * 4 * 4 // 3 - 8) + b"000"
_V1_AROUND = b'{"instances":["%b"]}'
_SHORT_AROUND = b'{"input":"%b","model":"embedder"}'
_LONG_AROUND = b'{"input":"%b","model":"embedder","encoding_format":"base64"}'


def row(mark: bytes, place: int) -> bytes:
    """The row of an answer for a mark, the place in the batch counted in it."""
    text = b"[%b%b]" % (mark, _REST) if mark.startswith(SHORT) else b'"%b%b"' % (_BASE64, mark[-5:])
    return b'{"object":"embedding","index":%d,"embedding":%b}' % (place, text)


class V1(traffic.Traffic):
    """A v1 predict request with one instance, a text."""

    name, path = "v1", f"/v1/models/{MODEL}:predict"

    def __init__(self, size: int, mark: bytes = SHORT) -> None:
        super().__init__(size)
        self._mark = mark

    def body(self, number: int) -> bytes:
        return self._filled(_V1_AROUND, number)

    def is_own(self, number: int, answer: bytes) -> bool:
        found = _decoded(answer)
        return found.get("predictions") == [json.loads(row(self._mark_of(number), 0))]

    def _filled(self, around: bytes, number: int) -> bytes:
        """The text around, with a text of such a length in it that the body has its size."""
        mark = self._mark_of(number)
        room = self.size - len(around % mark)
        if room < 0:
            raise ValueError(f"the smallest body has {self.size - room} bytes")
        return around % (b"x" * room + mark)

    def _mark_of(self, number: int) -> bytes:
        return b"%b%05d" % (self._mark, number % traffic.MARKS)


class OpenAI(V1):
    """A request for the embedding of one text, its members as OpenAI's client writes them."""

    name, path = "OpenAI's embeddings", "/v1/embeddings"

    def body(self, number: int) -> bytes:
        return self._filled(_SHORT_AROUND if self._mark == SHORT else _LONG_AROUND, number)

    def is_own(self, number: int, answer: bytes) -> bool:
        found = _decoded(answer)
        usage = {"prompt_tokens": TOKENS, "total_tokens": TOKENS}
        return found.get("data") == [json.loads(row(self._mark_of(number), 0))] and found.get("usage") == usage


def _decoded(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
