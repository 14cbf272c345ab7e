"""What stub predictors have in common: a connection that reads requests, and a process that serves until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from typing import cast

import httptools
import uvloop

from benchmarks import processes


class Connection(asyncio.Protocol):
    """One connection from the sidecar. Subclasses have the parser's callbacks."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()


def command(python: str, module: str, port: int) -> list[str]:
    """What starts the stub of a module on a port."""
    return [python, "-m", module, "--port", str(port)]


def main(connect: Callable[[], Connection], description: str, *, shared: bool = False) -> None:
    """Serve on the port that the command line names; with `shared` others may listen there, too."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(connect, parser.parse_args().port, shared))


async def _serve(connect: Callable[[], Connection], port: int, shared: bool) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(connect, processes.HOST, port, reuse_port=shared or None)
    await stopped.wait()
    server.close()
