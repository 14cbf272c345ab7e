"""Whether header fields make a well-formed request (RFC 9113, section 8), and what it says."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple, NoReturn

from carpool_sidecar.server.http2 import errors, streams

_PSEUDO = {b":method", b":path", b":scheme", b":authority"}
_NEEDED = (b":method", b":path", b":scheme")
# Fields that say something about a connection of HTTP/1.
_FORBIDDEN = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
# What may not be in a name: control characters, space, capitals, a colon, 0x7f and above.
_BAD_NAME = re.compile(rb"[\x00-\x20A-Z:\x7f-\xff]")

_MOST_SHORT = 128
"""Bytes of a name that is worth remembering."""


class Request(NamedTuple):
    """A request's head, and the size its body claims to have, if any."""

    head: streams.Head
    length: int | None


def request(fields: list[tuple[bytes, bytes]]) -> Request:
    """The request that these fields make. Raises `StreamFault`."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[tuple[bytes, bytes]] = []
    length: int | None = None
    for field in fields:
        name, value = field
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                _refuse(f"pseudo-header {name!r} is unknown, a second one, or after other fields")
            _check_value(name, value)
            pseudo[name] = value
            continue
        if not _is_allowed(name):
            _refuse(f"header name {name!r} is not allowed in HTTP/2")
        _check_value(name, value)
        if name == b"te" and value != b"trailers":
            _refuse(f"te is {value!r}; only trailers is allowed")
        if name == b"content-length":
            length = _length(value, length)
        regular.append(field)
    return Request(_head(pseudo, tuple(regular)), length)


def check_trailers(fields: list[tuple[bytes, bytes]]) -> None:
    """Raises `StreamFault` unless these fields may end a request."""
    for name, value in fields:
        if not _is_allowed(name):
            _refuse(f"header name {name!r} is not allowed in trailers")
        _check_value(name, value)


def _head(pseudo: dict[bytes, bytes], regular: streams.Headers) -> streams.Head:
    for name in _NEEDED:
        if not pseudo.get(name):
            _refuse(f"pseudo-header {name!r} is missing or empty")
    try:
        method, path = pseudo[b":method"].decode("ascii"), pseudo[b":path"].decode("ascii")
    except UnicodeDecodeError:
        _refuse("method and path must be ASCII")
    return streams.Head(method, path, pseudo.get(b":authority", b""), regular)


def _is_allowed(name: bytes) -> bool:
    return _is_short_allowed(name) if len(name) <= _MOST_SHORT else _is_well_formed(name)


def _is_well_formed(name: bytes) -> bool:
    return bool(name) and name not in _FORBIDDEN and not _BAD_NAME.search(name)


_is_short_allowed = functools.lru_cache(maxsize=4096)(_is_well_formed)


def _check_value(name: bytes, value: bytes) -> None:
    # A regular expression takes thirty times as long, and a reference of one byte may say 4 kB.
    if b"\0" in value or b"\r" in value or b"\n" in value or value != value.strip(b" \t"):
        _refuse(f"the value of {name!r} has a line break, a NUL, or white space around it")


def _length(value: bytes, before: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or before not in (None, int(value)):
        _refuse(f"content-length {value!r} is not one number")
    return int(value)


def _refuse(reason: str) -> NoReturn:
    raise errors.StreamFault(errors.Code.PROTOCOL_ERROR, reason)
