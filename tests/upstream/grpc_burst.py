"""Makes many calls over a channel, keeps the event loop busy until all are answered, and tells on stdout how many turns
of the loop it takes then until it has heard so.

A process of its own, as all who use grpc.aio in a process share its thread.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from concurrent import futures
from typing import Any

import grpc

from carpool_sidecar.upstream import grpc_channels

CALLS = 600
"""More than twice what fits into the pair of sockets by which grpc.aio wakes the loop."""

_TURN = 0.001  # seconds that a turn of a busy loop takes


class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with nothing; `all_asked` once that were so many."""

    def __init__(self) -> None:
        self._asked = itertools.count()
        self.all_asked = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, _: bytes, __: Any) -> bytes:
        if next(self._asked) == CALLS:  # there was one alone, before
            self.all_asked.set()
        return b""

    def stop(self) -> None:
        self._server.stop(None).wait()


async def turns_until_heard(port: int, all_asked: threading.Event) -> int:
    """How many turns it takes."""
    async with grpc_channels.open_channel(f"127.0.0.1:{port}", ()) as channel:
        call = channel.unary_unary("/a/b")
        await call(b"")
        waiting = asyncio.gather(*[call(b"") for _ in range(CALLS)])
        while not all_asked.is_set():  # the first ones to be answered may wake the loop once more
            await asyncio.sleep(0)
            all_asked.wait(0.5)
        turns = 0
        while not waiting.done():
            time.sleep(_TURN)  # noqa: ASYNC251
            await asyncio.sleep(0)
            turns += 1
        return turns


if __name__ == "__main__":
    server = Server()
    try:
        sys.stdout.write(f"{asyncio.run(turns_until_heard(server.port, server.all_asked))}\n")
    finally:
        server.stop()
