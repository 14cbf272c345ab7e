"""Where the tensors' `data` are in a JSON body, and what is in that place: a copy if it is small, else a view."""

from __future__ import annotations

import re

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_http import json_lists

Data = bytes | memoryview
Member = dict[str, msgspec.Raw]

_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*')
_WORTH_A_VIEW = 64 * 1024  # from here on a view costs less than a copy


def fit(pieces: tuple[bytes, ...], body: bytes, start: int, stop: int) -> list[Data] | None:
    """The data if all else of the body is these pieces, and the data are JSON lists; None otherwise."""
    at, end = start + len(pieces[0]), stop - len(pieces[-1])
    if not body.startswith(pieces[0], start) or not body.endswith(pieces[-1], start, stop):
        return None
    if len(pieces) == 1:
        return [] if at == stop else None
    found: list[Data] = []
    for piece in pieces[1:-1]:
        edge = body.find(piece, at, end)
        if edge < 0 or not json_lists.is_list(data := data_at(body, at, edge)):
            return None
        found.append(data)
        at = edge + len(piece)
    if not json_lists.is_list(data := data_at(body, at, end)):
        return None
    found.append(data)
    return found


def data_at(body: bytes, start: int, stop: int) -> Data:
    """What is there."""
    return body[start:stop] if stop - start < _WORTH_A_VIEW else memoryview(body)[start:stop]


def find(text: bytes, tensors: list[Member]) -> list[tuple[int, int]]:
    """Where each tensor's data are; all that is known of them is what they are.

    Raises `errors.BadRequest` for data that are no list, and `errors.Unbatchable` for a name written in another way.
    """
    spans, at = [], 0
    for tensor in tensors:
        raw = tensor.get("data")
        if raw is None:
            continue
        data = bytes(raw)
        if not data.startswith(b"["):
            raise errors.BadRequest(f"'data' must be a list, not {data[:40].decode(errors='replace')}")
        while True:
            found = _DATA.search(text, at)
            if found is None:
                raise errors.Unbatchable("members")
            at = found.end()
            if text.startswith(data, at):
                break
        spans.append((at, at + len(data)))
        at += len(data)
    return spans
