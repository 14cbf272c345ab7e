"""The v1 protocol's predict request and errors, as a model server reads and writes them.

The sidecar has a reader of its own for the same protocol. The two share no code on purpose: tests hold the sidecar
against this server, and a mistake in a shared reader would hide itself.

Format: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from carpool_predictor import errors

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])

_HEAD, _TAIL = b'{"instances":[', b"]}"
_LEAST = b'"instances":[],'


class _OneMember(msgspec.Struct, forbid_unknown_fields=True):
    instances: list[msgspec.Raw]


_ONE_MEMBER = msgspec.json.Decoder(_OneMember)


class Request(NamedTuple):
    """The instances of a request: `text` is their JSON list, `rows` its elements, both as they were written."""

    text: msgspec.Raw
    rows: list[msgspec.Raw]


def parse(body: bytes | bytearray) -> Request:
    """Find the instances. Raises `errors.BadRequest`, which tells what is wrong and where, if there are none."""
    return _usual(body) or _any(body)


def _usual(body: bytes | bytearray) -> Request | None:
    """The instances of a body as batchers write it, one member without spaces: read once, which counts if it is large.

    None for any other body, also for one that is wrong.
    """
    is_ascii = body.isascii()  # else it may not be UTF-8
    if not (is_ascii and body.startswith(_HEAD) and body.endswith(_TAIL)):
        return None
    try:
        rows = _ONE_MEMBER.decode(body).instances
    except (msgspec.DecodeError, RecursionError):
        return None
    between = len(body) - sum(memoryview(row).nbytes for row in rows) - len(rows) + 1
    if not rows or between >= len(_HEAD) + len(_TAIL) + len(_LEAST):  # a second member of that name would find room
        return None
    return Request(msgspec.Raw(memoryview(body)[len(_HEAD) - 1 : -len(_TAIL) + 1]), rows)


def _any(body: bytes | bytearray) -> Request:
    members = members_of(body)
    names = members.keys() & {"instances", "inputs"}
    if len(names) > 1:
        raise errors.BadRequest("both 'instances' and 'inputs' are present; send one of them")
    for name in names:
        try:
            rows = _LIST.decode(members[name])
        except msgspec.ValidationError:
            raise errors.BadRequest(f"{name!r} must be a list of instances") from None
        if rows:
            return Request(members[name], rows)
    raise errors.BadRequest('the body has no instances: send {"instances": [...]} with at least one element')


def members_of(body: bytes | bytearray) -> dict[str, msgspec.Raw]:
    """The members of a body that is a JSON object, as they were written. Raises `errors.BadRequest`."""
    try:
        body.decode()  # msgspec does not look inside what it leaves as it is
        members = _OBJECT.decode(body)
    except UnicodeDecodeError as error:
        raise errors.BadRequest(f"the body is not valid UTF-8 at byte {error.start}") from None
    except msgspec.ValidationError:
        raise errors.BadRequest("the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise errors.BadRequest(str(error)) from None
    except RecursionError:
        raise errors.BadRequest("the body must be a JSON object, and is nested too deeply") from None
    _check_that_each_is_there_once(body, members)
    return members


def _check_that_each_is_there_once(body: bytes | bytearray, members: Iterable[str]) -> None:
    """msgspec keeps the last of several members of one name, so bodies that name one again are read with `json`."""
    if all(body.count(b'"%b"' % name.encode()) == 1 for name in members):
        return
    top: list[str] = []  # the names of the object that was closed last: the body's own

    def closed(pairs: list[tuple[str, object]]) -> None:
        top[:] = [name for name, _ in pairs]

    try:
        json.loads(body, object_pairs_hook=closed, parse_int=str, parse_float=str)
    except RecursionError:
        raise errors.BadRequest("the body is nested too deeply") from None
    for name in top:
        if top.count(name) > 1:
            raise errors.BadRequest(f"duplicate member {name!r}")


def rows_of_request(body: bytes | bytearray) -> list[bytes]:
    """The instances of a request, as they were written. Raises `errors.BadRequest`."""
    return [bytes(row) for row in parse(body).rows]


def rows_of(text: bytes) -> list[bytes]:
    """The elements of a JSON list, as they were written."""
    return [bytes(row) for row in _LIST.decode(text)]


def render_predictions(joined: bytes) -> bytes:
    """The body of an answer with these predictions, which are JSON joined by commas."""
    return b'{"predictions":[%b]}' % joined


def render_error(message: str) -> bytes:
    """The body of an answer that is no prediction."""
    return msgspec.json.encode({"error": message})
