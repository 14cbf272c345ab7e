"""How gRPC calls are answered on their streams."""

from __future__ import annotations

import functools

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import metadata, statuses
from carpool_sidecar.server.grpc import framing
from carpool_sidecar.server.http2 import streams

_STATUS = (b":status", b"200")
_ACCEPTED = (b"grpc-accept-encoding", framing.ACCEPTED)

OK = metadata.status(statuses.OK)


@functools.lru_cache(maxsize=64)
def head(content_type: bytes) -> streams.Headers:
    """What every answer begins with; `content_type` is the caller's own."""
    return (_STATUS, (b"content-type", content_type), _ACCEPTED)


def refuse(stream: streams.Stream, content_type: bytes, error: errors.CarpoolError) -> int:
    """Answer with a failure and nothing else; returns its code."""
    code = statuses.code(error)
    fields = metadata.status(code, statuses.details(error))
    if isinstance(error, errors.UpstreamRpcStatus):
        fields += metadata.write(error.metadata)
    elif error.retry_after is not None:
        fields += ((b"grpc-retry-pushback-ms", b"%d" % (error.retry_after * 1000)),)
    stream.finish(head(content_type) + fields)
    return code


def refuse_as_http(stream: streams.Stream, status: int, allowed: streams.Headers = ()) -> None:
    """Answer what is no gRPC at all."""
    stream.finish(((b":status", b"%d" % status), *allowed))
