"""A client that sends exactly the bytes it is told to, over a socket."""

from __future__ import annotations

import asyncio
import contextlib


class RawClient:
    """One connection; what is read of it is for the tests that use it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
