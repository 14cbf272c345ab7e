"""A door that echoes: gRPC calls by method name, for tests with real clients and for h2spec and load generators.

`python -m tests.server.http2.echo PORT [asyncio|uvloop]` serves it.
"""

from __future__ import annotations

import asyncio
import sys

from carpool_sidecar.server.http2 import headers, server, server_stream

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK = ((b"grpc-status", b"0"),)

_A_MOMENT = 0.05
"""Seconds; long enough for many streams to be open at once."""


class Unary:
    """Answers with the body, once it is complete."""

    def __init__(self, stream: server_stream.ServerStream) -> None:
        self._stream = stream
        self._parts: list[bytes] = []

    def data(self, data: bytes) -> None:
        self._parts.append(data)
        self._stream.consumed(len(data))

    def end(self) -> None:
        self._stream.answer(HEAD, b"".join(self._parts), OK)

    def cancelled(self) -> None:
        self._parts.clear()

    def writable(self) -> None:
        pass


class Streaming:
    """Sends back every piece as it comes, no faster than the client reads."""

    def __init__(self, stream: server_stream.ServerStream) -> None:
        self._stream = stream
        self._owed = 0
        stream.start(HEAD)

    def data(self, data: bytes) -> None:
        self._stream.send(data)
        self._owed += len(data)
        self.writable()

    def end(self) -> None:
        self._stream.finish(OK)

    def cancelled(self) -> None:
        self._owed = 0

    def writable(self) -> None:
        if not self._stream.is_blocked:
            owed, self._owed = self._owed, 0
            self._stream.consumed(owed)


class Late(Unary):
    """Answers a moment after the request is complete, and never with nothing."""

    def end(self) -> None:
        asyncio.get_running_loop().call_later(_A_MOMENT, self._stream.answer, HEAD, b"late", OK)


class Echo:
    """A method whose name has Stream in it is echoed piece by piece, any other whole; /late answers late."""

    def open(self, stream: server_stream.ServerStream, head: headers.Head) -> server_stream.Handler:
        if head.path == "/late":
            return Late(stream)
        return Streaming(stream) if "Stream" in head.path else Unary(stream)


async def serve(port: int) -> None:
    """Serve until killed."""
    here = server.Server(Echo())
    await here.listen("127.0.0.1", port)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2:] == ["uvloop"]:
        import uvloop

        uvloop.run(serve(int(sys.argv[1])))
    else:
        asyncio.run(serve(int(sys.argv[1])))
