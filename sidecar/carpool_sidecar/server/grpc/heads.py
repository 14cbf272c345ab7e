"""How gRPC calls begin and how they are answered: header fields in, header fields out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from carpool.program import shared_names
from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols.v2_grpc import metadata, statuses
from carpool_sidecar.server.grpc import arrivals
from carpool_sidecar.server.http2 import headers, server_stream

OK: Final = metadata.status(statuses.OK)

_GRPC: Final = b"application/grpc"
_LONGEST_TYPE: Final = 128  # bytes; every answer repeats the content-type of its call

# Heads that are remembered. Long ones, and those with an id or a trace of their own, are not worth it.
_MOST_BYTES: Final = 256 * 1024
_LONGEST_KNOWN: Final = 2048

_STATUS: Final = (b":status", b"200")
_ACCEPTED: Final = (b"grpc-accept-encoding", arrivals.ACCEPTED)


class CallHead(NamedTuple):
    """The fields of one call, or of many calls that have the same fields.

    `shared` are the fields that belong to the batch key, `timeout` is in seconds, `fields` are all as received. The
    rest is as in `calls.Head`.
    """

    content_type: bytes
    encoding: bytes | None
    timeout: float | None
    shared: calls.Headers
    request_id: str | None
    traceparent: str | None
    tracestate: str | None
    forwarded_for: str | None
    forwarded: Sequence[tuple[shared_names.Forwarded, str]]
    priority: int
    fields: headers.Headers

    @property
    def metadata(self) -> metadata.Metadata:
        """What is passed through; raises `errors.BadRequest`."""
        return metadata.read(self.fields)


def is_grpc(content_type: bytes) -> bool:
    """Whether a call with this content-type is gRPC. gRPC-Web is not, nor is anything of more than 128 bytes."""
    if content_type == _GRPC:
        return True
    return len(content_type) <= _LONGEST_TYPE and content_type.startswith((_GRPC + b"+", _GRPC + b";"))


class HeadReader:
    """Reads the fields of calls. `key_headers` are the names, in lower case, of those that belong to the batch key.

    `forwarded` go along with the batch beside the key; `priority` is the name of the one that tells a call's level.
    """

    # State: heads by their fields; and by what the decoder made of them, of calls that may be answered.
    def __init__(
        self, key_headers: Sequence[str], forwarded: Sequence[shared_names.Forwarded] = (), priority: str = ""
    ) -> None:
        names = [name for name in key_headers if name != "content-type"]
        self._shared = {name.encode(): name.title() for name in names}
        self._forwarded = [(header.name.encode(), header) for header in forwarded]
        self._priority = priority
        self._known: caches.Cache[headers.Headers, CallHead] = caches.Cache("grpc_heads", _MOST_BYTES, _LONGEST_KNOWN)
        self._taken: caches.Cache[int, tuple[headers.Head, CallHead]] = caches.Cache(
            "grpc_heads", _MOST_BYTES, _LONGEST_KNOWN
        )

    def again(self, head: headers.Head) -> CallHead | None:
        """What `head` was `taken` for, if it was.

        The decoder of a connection has one object for heads that repeat themselves: to look at its identity is
        cheaper than to compare fields.
        """
        found = self._taken.get(id(head))
        return found[1] if found is not None and found[0] is head else None

    def taken(self, head: headers.Head, read: CallHead) -> None:
        """A call began with this head, and was taken."""
        if read.request_id is None and read.traceparent is None:
            self._taken.put(id(head), (head, read), caches.text_size(head))

    def read(self, fields: headers.Headers) -> CallHead:
        """Raises `errors.BadRequest`."""
        head = self._known.get(fields)
        if head is None:
            head = self._read(fields)
            if head.request_id is None and head.traceparent is None:
                self._known.put(fields, head, caches.text_size(fields))
        return head

    def _read(self, fields: headers.Headers) -> CallHead:
        found: dict[bytes, bytes] = {}
        for name, value in fields:
            found[name] = found[name] + b", " + value if name in found else value
        timeout = found.get(b"grpc-timeout")
        shared = [(title, text) for name, title in self._shared.items() if (text := _text(found, name)) is not None]
        return CallHead(
            found.get(b"content-type", b""),
            found.get(b"grpc-encoding"),
            None if timeout is None else metadata.timeout(timeout),
            tuple(shared),
            _text(found, b"x-request-id"),
            _text(found, b"traceparent"),
            _text(found, b"tracestate"),
            found.get(b"x-forwarded-for", b"").decode("latin-1") or None,
            [(header, text) for name, header in self._forwarded if (text := _text(found, name)) is not None],
            calls.level(self._priority, _text(found, self._priority.encode())) if self._priority else 0,
            fields,
        )


def _text(found: dict[bytes, bytes], name: bytes) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    if not metadata.is_text(value):
        raise errors.BadRequest(f"the metadata {name.decode()!r} must be printable ASCII")
    return value.decode()


def answer_block(content_type: bytes) -> bytes:
    """`answer_head`, encoded."""
    return _blocks[content_type]


def answer_head(content_type: bytes) -> headers.Headers:
    """The fields that every answer begins with; `content_type` is the caller's own."""
    return (_STATUS, (b"content-type", content_type), _ACCEPTED)


def _write_block(content_type: bytes) -> bytes:
    return headers.block(answer_head(content_type))


_blocks: Final = caches.Cache("grpc_answer_heads", 64 * 1024, make=_write_block)


def refuse(stream: server_stream.ServerStream, content_type: bytes, error: errors.CarpoolError) -> int:
    """Answer with a failure and nothing else; returns its code."""
    code = statuses.code(error)
    fields = metadata.status(code, statuses.details(error))
    if isinstance(error, errors.UpstreamRpcStatus):
        fields += metadata.write(error.metadata)
    elif error.retry_after is not None:
        fields += ((b"grpc-retry-pushback-ms", b"%d" % (error.retry_after * 1000)),)
    stream.finish(answer_head(content_type) + fields)
    return code
