"""What counts of the head of a gRPC call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols.v2_grpc import metadata
from carpool_sidecar.server.http2 import streams

_MOST = 256  # heads remembered; long ones, and those with an id or a trace of their own, are not worth it
_LONGEST = 2048

_GRPC = b"application/grpc"
_LONGEST_TYPE = 128  # every answer repeats the content-type of its call


class Head(NamedTuple):
    """The fields of one call, or of many that have the same.

    `shared` are those that belong to the batch key, `timeout` is in seconds, `fields` are all as received. The rest
    is as in `calls.Head`.
    """

    content_type: bytes
    encoding: bytes | None
    timeout: float | None
    shared: calls.Headers
    request_id: str | None
    traceparent: str | None
    tracestate: str | None
    forwarded_for: str | None
    fields: streams.Headers

    @property
    def metadata(self) -> metadata.Metadata:
        """What is passed through; raises `errors.BadRequest`."""
        return metadata.read(self.fields)


def is_grpc(content_type: bytes) -> bool:
    """Whether a call with this content-type is gRPC; gRPC-Web is not, nor anything of more than 128 bytes."""
    if content_type == _GRPC:
        return True
    return len(content_type) <= _LONGEST_TYPE and content_type.startswith((_GRPC + b"+", _GRPC + b";"))


class Reader:
    """Reads heads. `key_headers` are the names, in lower case, of those that belong to the batch key."""

    # State: heads by their fields.
    def __init__(self, key_headers: Sequence[str]) -> None:
        names = [name for name in key_headers if name != "content-type"]
        self._shared = {name.encode(): name.title() for name in names}
        self._known: dict[streams.Headers, Head] = {}

    def read(self, fields: streams.Headers) -> Head:
        """Raises `errors.BadRequest`."""
        head = self._known.get(fields)
        if head is None:
            head = self._read(fields)
            if head.request_id is None and head.traceparent is None and _size(fields) <= _LONGEST:
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[fields] = head
        return head

    def _read(self, fields: streams.Headers) -> Head:
        found: dict[bytes, bytes] = {}
        for name, value in fields:
            found[name] = found[name] + b", " + value if name in found else value
        timeout = found.get(b"grpc-timeout")
        shared = [(title, text) for name, title in self._shared.items() if (text := _text(found, name)) is not None]
        return Head(
            found.get(b"content-type", b""),
            found.get(b"grpc-encoding"),
            None if timeout is None else metadata.timeout(timeout),
            tuple(shared),
            _text(found, b"x-request-id"),
            _text(found, b"traceparent"),
            _text(found, b"tracestate"),
            found.get(b"x-forwarded-for", b"").decode("latin-1") or None,
            fields,
        )


def _size(fields: streams.Headers) -> int:
    return sum([len(name) + len(value) for name, value in fields])


def _text(found: dict[bytes, bytes], name: bytes) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    if not metadata.is_text(value):
        raise errors.BadRequest(f"the metadata {name.decode()!r} must be printable ASCII")
    return value.decode()
