"""Calls of a method of no particular service, as a caller's stream brings them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from carpool_sidecar.server.grpc import arrivals
from carpool_sidecar.server.http2 import headers
from tests.server.grpc.fake_stream import FakeStream
from tests.server.grpc.site import Site

PATH = "/any.Service/Method"
FIELDS = ((b"content-type", b"application/grpc+proto"), (b"te", b"trailers"))


async def echo(messages: AsyncIterator[bytes], context: Any) -> None:
    async for message in messages:
        await context.write(message)


def opened(site: Site, *fields: tuple[bytes, bytes], path: str = PATH) -> tuple[FakeStream, Any]:
    stream = FakeStream()
    handler = site.service.open(stream, headers.Head("POST", path, b"here", FIELDS + fields))
    return stream, handler


def framed(*messages: bytes) -> bytes:
    return b"".join(arrivals.frame((message,)) for message in messages)
