"""OpenAI's embeddings endpoint, as a model server reads and writes it: what clients of embedding models speak.

The sidecar has a reader of its own for the same format, as for v1. A request names its model in its body, so the
server reads that much of it; the texts go to the model's process as they were written.

Format: https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from carpool_predictor import errors, model, v1

PATH = "/v1/embeddings"

_INPUTS = msgspec.json.Decoder(list[model.Input])
_FIRST = re.compile(rb'\[\s*([]\["])')  # of a list of inputs; that of a list of token ids is a number
_ALLOWED = "'input' must be a string, a list of token ids, or a list of such"


class Request(NamedTuple):
    """What a request asks for. `inputs` is a JSON list of strings and of lists of token ids, as they were written."""

    model: str
    inputs: bytes
    is_base64: bool


class Row(NamedTuple):
    """One embedding: as JSON, and how many tokens the model read for it."""

    text: bytes
    tokens: int


def parse(body: bytes | bytearray) -> Request:
    """Read a request. Raises `errors.BadRequest`, which tells what is wrong and what is allowed."""
    members = v1.members_of(body)
    name = _value(members, "model")
    if not isinstance(name, str):
        raise errors.BadRequest("'model' must be there, a string: the name of the model")
    chosen = _value(members, "encoding_format")
    if chosen not in (None, "float", "base64"):
        raise errors.BadRequest('\'encoding_format\' must be "float" or "base64"')
    if _value(members, "dimensions") is not None:
        raise errors.BadRequest("'dimensions' is not supported: embeddings have as many numbers as the model makes")
    return Request(name, _inputs(members.get("input")), chosen == "base64")


def _value(members: dict[str, msgspec.Raw], name: str) -> Any:
    """The decoded member; None if it is not there."""
    try:
        return msgspec.json.decode(members[name]) if name in members else None
    except msgspec.DecodeError as error:
        raise errors.BadRequest(f"{name!r}: {error}") from None


def _inputs(written: msgspec.Raw | None) -> bytes:
    """The inputs of the member as a list. What is in it is left to `decode`."""
    text = b"" if written is None else bytes(written)
    if text.startswith(b'"'):
        return b"[%b]" % text
    if not text.startswith(b"["):
        raise errors.BadRequest(_ALLOWED)
    first = _FIRST.match(text)
    if first is None:  # a number, or nothing that is allowed
        return b"[%b]" % text
    if first[1] == b"]":
        raise errors.BadRequest(f"{_ALLOWED}; this list is empty")
    return text


def decode(inputs: bytes | bytearray) -> list[model.Input]:
    """The inputs as a model takes them. Raises `errors.BadRequest`, with the place of one that is none."""
    try:
        found = _INPUTS.decode(inputs)
    except msgspec.DecodeError as error:
        raise errors.BadRequest(f"{_ALLOWED}: {error}") from None
    for place, each in enumerate(found):
        if each == []:
            raise errors.BadRequest(f"input {place} is an empty list of token ids")
    return found


def render(name: str, rows: Sequence[Row]) -> bytes:
    """The body of an answer with these embeddings."""
    data = b",".join(
        [b'{"object":"embedding","index":%d,"embedding":%b}' % (place, row.text) for place, row in enumerate(rows)]
    )
    tokens = sum(row.tokens for row in rows)
    usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"object":"list","data":[%b],"model":%b,%b}' % (data, msgspec.json.encode(name), usage)


def render_error(error: errors.Refusal) -> bytes:
    """The body of an answer that has no embeddings, in the form that OpenAI's clients read."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": str(error), "type": kind, "param": None, "code": error.code}})
