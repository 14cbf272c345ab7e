"""gRPC's metadata as header fields, and what else it says in them.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
import urllib.parse
from collections.abc import Iterable

from carpool_sidecar import errors

Fields = tuple[tuple[bytes, bytes], ...]
Metadata = tuple[tuple[str, str | bytes], ...]

_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_LONGEST_TIMEOUT = 10.0**8  # seconds: some clocks end before 99999999 hours

# A call's own, or a connection's (RFC 9113, 8.2.2); gRPC's clients and servers write those that they need.
_NOT_METADATA = frozenset((
    b"te", b"content-type", b"content-length", b"user-agent", b"host", b"connection", b"keep-alive",
    b"proxy-connection", b"transfer-encoding", b"upgrade",
))  # fmt: skip
# What servers tell of a status beside its code and words: google.rpc.Status, and when to try again.
_TOLD_BY_SERVERS = frozenset((b"grpc-status-details-bin", b"grpc-retry-pushback-ms"))
_KEY = re.compile(rb"[0-9a-z_.-]+")
_VALUE = re.compile(rb"[\x20-\x7e]*")
_PLAIN = "".join(sorted(set(string.printable) - set(string.whitespace) - {"%"})) + " "


def timeout(value: bytes) -> float:
    """Seconds by a grpc-timeout field; raises `errors.BadRequest`."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise errors.BadRequest(f"grpc-timeout must be 1 to 8 digits and one of H M S m u n; got {value[:40]!r}")
    return min(int(found[1]) * _UNITS[found[2].decode()], _LONGEST_TIMEOUT)


def read(fields: Iterable[tuple[bytes, bytes]]) -> Metadata:
    """The metadata in a request's fields; raises `errors.BadRequest` for what can be none."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _NOT_METADATA or name.startswith(b"grpc-"):
            continue
        if not (_KEY.fullmatch(name) and is_text(value)):
            raise errors.BadRequest(f"{name[:100]!r} cannot be passed on: only printable ASCII is allowed in metadata")
        if name.endswith(b"-bin"):
            found += [(name.decode(), _binary(name, each)) for each in value.split(b",")]
        else:
            found.append((name.decode(), value.decode()))
    return tuple(found)


def is_text(value: bytes) -> bool:
    """Whether this can be a value of metadata that are not binary."""
    return _VALUE.fullmatch(value) is not None


def write(metadata: Iterable[tuple[str, str | bytes]]) -> Fields:
    """Metadata as fields."""
    return tuple([(name.encode(), _written(value, name)) for name, value in metadata if _is_theirs(name.encode())])


def status(code: int, details: str = "") -> Fields:
    """The fields that end a call."""
    ended = ((b"grpc-status", b"%d" % code),)
    return (*ended, (b"grpc-message", urllib.parse.quote(details, safe=_PLAIN).encode())) if details else ended


def _is_theirs(name: bytes) -> bool:
    return name not in _NOT_METADATA and (not name.startswith(b"grpc-") or name in _TOLD_BY_SERVERS)


def _written(value: str | bytes, name: str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return base64.b64encode(data).rstrip(b"=") if name.endswith("-bin") else data


def _binary(name: bytes, value: bytes) -> bytes:
    value = value.strip()
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        raise errors.BadRequest(f"the metadata {name[:100]!r} is not base64") from None
