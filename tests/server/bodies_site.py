"""A server that does nothing but read request bodies, a client that sends raw bytes, and requests without either."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from carpool.scheduling import ledger
from carpool_sidecar import errors
from carpool_sidecar.server import responses
from carpool_sidecar.server.http1 import bodies, exchange, handler, messages
from tests import raw_client

Send = Callable[[str, bytes], Awaitable["Connection"]]


CHUNKED = "Transfer-Encoding: chunked"


class Site(handler.Handler):
    """Answers requests by reading their bodies, and keeps what came of it."""

    def __init__(self) -> None:
        self.memory = ledger.Ledger(4_000_000)
        self.limits = bodies.Limits(1_000_000, self.memory, 30.0)
        self.started = asyncio.Event()
        self.outcomes: asyncio.Queue[bytes | BaseException] = asyncio.Queue()

    def read_head(self, text: bytes) -> messages.RequestHead:
        return messages.read_head(text)

    def begin(self, asked: exchange.Exchange) -> None:
        if asked.head.method == "GET":
            asked.respond(responses.Response(200, (), b"got"))
            return
        asked.cancel = asyncio.get_running_loop().create_task(self._read(asked)).cancel

    async def _read(self, asked: exchange.Exchange) -> None:
        self.started.set()
        try:
            body = await handler.read_body(asked, self.limits)
        except BaseException as error:
            self.outcomes.put_nowait(error)
            if not isinstance(error, errors.CarpoolError):
                raise
            asked.respond(responses.Response(errors.status_of(error), (), str(error).encode(), close=True))
        else:
            self.outcomes.put_nowait(body)
            asked.respond(responses.Response(200, (), str(len(body)).encode()))


class Connection(raw_client.RawClient):
    """A client that reads as little of its answer as a test wants."""

    async def status(self) -> int:
        return int((await self._reader.readline()).split()[1])

    async def line(self) -> bytes:
        """The next line, without its end."""
        return (await self._reader.readline()).rstrip()

    async def read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)


def sized(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Arriving:
    """A request of which only the head is there. Implements `exchange.Connection`, and `exchange.Writer`.

    `asked` is its exchange.
    """

    def __init__(self, site: Site, length: int, **headers: str) -> None:
        fields = {"Content-Length": str(length), **{name.replace("_", "-"): each for name, each in headers.items()}}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = messages.read_head(f"POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())
        self.asked = exchange.Exchange(self, head, 0.0)
        self._limits = site.limits
        self._held = site.memory.reserve()
        self.answers = self

    def feed(self, part: bytes) -> None:
        self.asked.feed(part)

    async def read(self) -> bytes:
        return await handler.read_body(self.asked, self._limits)

    def hold(self, asked: exchange.Exchange, size: int) -> bool:
        self._held.add(size)
        return True

    def look_what_to_read(self) -> None:
        """All is read."""


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - a counter, not an event
        await asyncio.sleep(0)
