"""A client of the data port that sends exactly the bytes it is told to, and reads answers one by one."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from tests import raw_client
from tests.app.conftest import PREDICT, Bench


def request(body: bytes | str = b'{"instances":[1]}', *lines: str, length: int | None = None) -> bytes:
    """A predict request of the plain kind."""
    content = body.encode() if isinstance(body, str) else body
    head = [
        f"POST {PREDICT} HTTP/1.1",
        "Host: h",
        *lines,
        f"Content-Length: {len(content) if length is None else length}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


def numbered(*numbers: int) -> bytes:
    return b"".join(request(f'{{"instances":[{number}]}}') for number in numbers)


_PATIENCE = 10.0
GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
MORE_THAN_AIOHTTP_QUEUES = 40  # requests of one connection: aiohttp's queue has room for 32


class Client(raw_client.RawClient):
    """A client that reads whole answers."""

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by their names in lower case, and body of the next answer, which has a Content-Length."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines[1:] if line}
        return int(lines[0].split()[1]), headers, await self._reader.readexactly(int(headers["content-length"]))

    async def predictions(self) -> list[Any]:
        status, _, body = await self.answer()
        assert status == 200
        return json.loads(body)["predictions"]

    async def rest(self) -> bytes:
        """All that comes until the connection ends."""
        try:
            return await self._reader.read()
        except ConnectionResetError:
            return b""

    @property
    def is_open(self) -> bool:
        return not self._reader.at_eof()


async def connect(bench: Bench, receive_buffer: int | None = None) -> Client:
    """With a receive buffer, little arrives before the client reads."""
    end = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio sets no TCP_NODELAY
    if receive_buffer is not None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    end.connect(("127.0.0.1", bench.sidecar.settings.port))  # at once: the system answers for who listens
    limit = 1024 if receive_buffer is not None else 2**24
    return Client(*await asyncio.open_connection(sock=end, limit=limit))


async def until(reached: Callable[[], bool]) -> None:
    """Wait for something that the loop alone brings about; fails if that takes long in real time."""
    given_up = time.monotonic() + _PATIENCE
    while not reached():
        assert time.monotonic() < given_up
        await asyncio.sleep(0)


def is_at_rest(bench: Bench) -> bool:
    """Whether nothing is held for anybody."""
    sidecar = bench.sidecar
    held = sidecar.ledger.held, sidecar.ledger.active
    return held == (0, 0) and sidecar.core.idle


def connections(bench: Bench) -> int:
    """How many clients the data port has."""
    return len(bench.sidecar._http._connections)
