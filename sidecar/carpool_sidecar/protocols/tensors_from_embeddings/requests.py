"""Bodies of OpenAI's embeddings: the model that they name, and their texts or token ids, not yet decoded.

A member that is not known here is refused, as what it asks for cannot be told to the model; `user` changes no answer.
`dimensions` is refused for the same reason. A member that is `null` counts as not given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_members, json_rows, models, steps, v2
from carpool_sidecar.protocols.tensors_from_v1 import columns

_LARGE = 256 * 1024  # bytes of a body: from here on others have their turn between looking at it in one way and another

_ALLOWED = "'input' must be a string, a list of strings, a list of token ids, or a list of such lists"
_FORMATS = {None: False, "float": False, "base64": True}
_NOT_GIVEN = msgspec.Raw(b"null")
_FIRST = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
_SPACE = b" \t\r\n"
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    model: msgspec.Raw = _NOT_GIVEN
    input: msgspec.Raw = _NOT_GIVEN
    encoding_format: msgspec.Raw = _NOT_GIVEN
    dimensions: msgspec.Raw = _NOT_GIVEN
    user: msgspec.Raw = _NOT_GIVEN


_BODY = msgspec.json.Decoder(_Body)


class Request(NamedTuple):
    """What a body asks for: `rows` are its texts, or lists of token ids, as JSON, and `text` is the list of them."""

    model: str
    rows: Sequence[v2.Data]
    text: v2.Data
    are_tokens: bool
    is_base64: bool


class Items(columns.Values):
    """The values of `input`, whose mistakes are told in its own words."""

    __slots__ = ()

    def refuse(self, row: int, what: str) -> errors.BadRequest:
        """See `columns.Values`."""
        return errors.BadMember(f"item {row} of 'input' {what}", "input")

    def misshapen(
        self, row: int, given: columns.Shape | None, expected: columns.Shape | None = None
    ) -> errors.BadRequest:
        """See `columns.Values`."""
        if given is None or len(given) != 1:
            return self.refuse(row, "is no list of token ids")
        if self.shape == expected or expected is None:
            return self.refuse(row, f"has {given[0]} token ids; the model takes {self.shape[0]}")
        return self.refuse(
            row, f"has {given[0]} token ids; the model takes lists of one length, and item 0 has {expected[0]}"
        )


def read_model(body: bytes) -> str:
    """The name of the model that a body asks for.

    Raises `errors.BadRequest` if it names none or asks for anything that cannot be had, and `errors.ModelNotFound` for
    a name that no model has.
    """
    return _name(_members(body))


def _name(found: _Body) -> str:
    name = _value(found.model, "model")
    if name is None:
        raise errors.BadMember("the member 'model' is missing: it names the model", "model")
    if not isinstance(name, str) or not name:
        raise errors.BadMember("'model' must be a string that is not empty", "model")
    return models.check_name(name)


def read(body: bytes, max_rows: int) -> steps.Steps[Request]:
    """The parts of a request.

    Raises as `read_model` does, `errors.BadRequest` also for duplicate members, and `errors.PayloadTooLarge` for more
    than `max_rows` texts.
    """
    found = _members(body)
    name = _name(found)
    is_large = len(body) >= _LARGE
    if is_large:
        yield
    yield from json_rows.check_utf8(body)
    if is_large:
        yield
    yield from json_members.find(body)  # refuses duplicates; there are few members, as unknown ones were refused
    chosen = _value(found.encoding_format, "encoding_format")
    if not (chosen is None or isinstance(chosen, str)) or chosen not in _FORMATS:
        raise errors.BadMember('\'encoding_format\' must be "float" or "base64"', "encoding_format")
    if is_large:
        yield
    rows, text, are_tokens = _read_input(bytes(found.input), max_rows)
    return Request(name, rows, text, are_tokens, _FORMATS[chosen])


def _members(body: bytes) -> _Body:
    try:
        found = _BODY.decode(body)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            raise errors.BadRequest("the body must be a JSON object") from None
        name = columns.shorten(unknown[1])
        raise errors.BadMember(f"the member {name!r} cannot be passed on to a predictor that speaks v2", name) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_rows.no_json(body, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise errors.BadRequest("the body is nested too deeply") from None
    if bytes(found.dimensions) != b"null":
        raise errors.BadMember(
            "'dimensions' cannot be passed on to a predictor that speaks v2: embeddings have as many numbers as the "
            "model makes",
            "dimensions",
        )
    return found


def _value(written: msgspec.Raw, name: str) -> Any:
    try:
        value = msgspec.json.decode(written)
        if isinstance(value, str):
            value.encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise errors.BadMember(f"{name!r} cannot be read", name) from None
    return value


def _read_input(text: bytes, max_rows: int) -> tuple[Sequence[v2.Data], v2.Data, bool]:
    """The rows, the list of them, and whether they are token ids."""
    if text == b"null":
        raise errors.BadMember(f"the member 'input' is missing; {_ALLOWED}", "input")
    if text.startswith(b'"'):
        return [text], b"[%b]" % text, False
    match = _FIRST.match(text)
    if match is None:
        raise errors.BadMember(_ALLOWED, "input")
    first = match[1]
    if first == b"]":
        raise errors.BadMember(f"{_ALLOWED}; this list is empty", "input")
    if first == b"-" or first.isdigit():
        return [text], b"[%b]" % text, True
    rows = json_rows.find(text, max_rows)
    begins = [memoryview(row)[0] for row in rows]
    if begins.count(first[0]) < len(rows) or first not in b'"[':
        place = next((place for place, begin in enumerate(begins) if begin != first[0]), 0)
        raise errors.BadMember(f"{_ALLOWED}; item {place} does not go with that", "input")
    if first == b"[":
        for place, row in enumerate(rows):
            if not bytes(memoryview(row)[1:-1]).strip(_SPACE):
                raise errors.BadMember(f"item {place} of 'input' is an empty list of token ids", "input")
    return rows, text, first == b"["
