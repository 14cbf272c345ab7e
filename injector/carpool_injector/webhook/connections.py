"""An application on a port, whose connections are bounded in number and in time.

Anyone in the cluster's network can connect, and each connection costs memory long before it says anything. So there is
a bound, and when it is reached the new connection gets the place of one that only waits: idle connections cannot shut
the API server out. A handshake and the head of a request have to arrive in time.

A loop's own server can do none of that, and when it ends it drops connections that it has just accepted. Here they
get their answer first.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

from aiohttp import web

from carpool.program import addresses, allocator, logs

log = logging.getLogger("carpool.injector")

# Seconds: for a handshake; for a request's head; for the first request of a connection that is open at the end.
HANDSHAKE, HEAD, FIRST = 10.0, 10.0, 1.0
# Longer than the 90 seconds after which Go's HTTP client gives up idle connections, so that it closes them, not we:
# else a review could be sent just as we close, and fail.
_KEEP_ALIVE = 120.0
_CUTTING_OFF = 0.1  # seconds for a handler to notice that its time is up
_GOODBYE = 1.0  # seconds for the peer to end TLS as well
_BACKLOG = 1024  # connections that may wait: a rollout opens many at once
_AT_ONCE = 32  # connections that are accepted before others have their turn
_MANY = 64  # connections that ended: their buffers are large enough that memory has to be given back
_REST = 0.1  # seconds after an accept that failed: there is no file descriptor left, for one


class Connection(asyncio.Protocol):
    """One connection; passes everything on to `inner`, which speaks the protocol."""

    def __init__(self, inner: asyncio.Protocol, sock: socket.socket, listener: Listener) -> None:
        self.inner = inner
        self._sock = sock
        self._listener = listener
        # All mutable state: the transport (None before the handshake is over), what it is doing, and since when.
        self._transport: asyncio.Transport | None = None
        self._is_serving = False
        self._head_timer: asyncio.TimerHandle | None = None
        self.has_asked = False
        self.since = listener.loop.time()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered or on its way in."""
        return self._is_serving or self._head_timer is not None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Around the answering of a request, from when its head is complete."""
        self._stop_timer()
        self.has_asked = self._is_serving = True
        try:
            yield
        finally:
            self._is_serving = False
            self.since = self._listener.loop.time()
            self._listener.changed.set()

    def close(self) -> None:
        """Ends it in peace; what was written still arrives."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends it at once, also in the middle of a handshake."""
        self._listener.forget(self)
        if self._transport is not None:
            self._transport.abort()
        else:
            with contextlib.suppress(OSError):  # it may have ended by itself
                self._sock.shutdown(socket.SHUT_RDWR)

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.since = self._listener.loop.time()
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self.is_busy:
            self._head_timer = self._listener.loop.call_later(HEAD, self.abort)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._is_serving = False
        self._transport = None
        self._listener.forget(self)
        self.inner.connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Listener:
    """Serves `app` on a port over `most` connections. `close` waits `grace` seconds for what is being answered."""

    def __init__(self, app: web.Application, grace: float, most: int) -> None:
        app.middlewares.append(self._watched)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, keepalive_timeout=_KEEP_ALIVE, shutdown_timeout=_CUTTING_OFF,
            logger=ServerLog(log), auto_decompress=False,
        )  # fmt: skip
        self._grace = grace
        self._most = most
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self._limited_log = logs.RateLimitedLog(log, interval=1.0)
        self._trimmer = allocator.Trimmer(lambda: 0, give_back)
        # All mutable state: the listening socket and how to encrypt, once it is open; whether it ends; what is open,
        # and the handshakes among that; how many connections have ended.
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._closing = False
        self._open: dict[asyncio.BaseProtocol, Connection] = {}
        self._arriving: set[asyncio.Task[None]] = set()
        self._ended = 0

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens; returns the port, which was free where 0 was asked for. Raises OSError."""
        listening, *others = addresses.bind(host, port)
        for each in others:  # a name of several addresses: the first counts
            each.close()
        await self._runner.setup()
        listening.listen(_BACKLOG)
        self._socket, self._tls = listening, tls
        self._listen()
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Ends it, also when it never opened: first all that was asked is answered, within the grace.

        Connections that have not asked yet get a moment to do so: their callers may have sent it already. Idle ones
        are closed; those at work close with their answers. What is left is cut off after another moment.
        """
        self._closing = True
        self._stop_listening()
        async with at_most(self._grace):
            async with at_most(FIRST):
                await self._until(lambda: all(each.has_asked for each in self._open.values()))
            await asyncio.sleep(0)  # reads what has arrived, so that a connection with a request counts as busy
            for each in [each for each in self._open.values() if not each.is_busy]:
                each.close()
            await self._until(lambda: not any(each.is_busy for each in self._open.values()))
        await self._runner.cleanup()
        async with at_most(_GOODBYE):
            await self._until(lambda: not self._open)
        for each in list(self._open.values()):
            each.abort()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def forget(self, connection: Connection) -> None:
        """It is over."""
        if self._open.pop(connection.inner, None) is not None:
            self._ended += 1
            if self._ended % _MANY == 0:
                self._trimmer.large_body()
        self.changed.set()

    @web.middleware
    async def _watched(self, request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]) -> Any:
        connection = self._open.get(request.protocol)
        if connection is None:
            raise web.HTTPServiceUnavailable  # to nobody: the connection was lost just now
        with connection.serving():
            response = await handler(request)
        if self._closing:
            response.force_close()
        return response

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    # --- arrivals ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._socket is not None:
            self.loop.add_reader(self._socket, self._accept, self._socket, _AT_ONCE)

    def _accept(self, listening: socket.socket, most: int) -> None:
        try:
            for _ in range(most):
                self._take(listening.accept()[0])
        except (BlockingIOError, ConnectionAbortedError):  # nobody waits any more
            return
        except OSError as error:
            self._limited_log.warning("accept", "a connection could not be accepted", error=str(error))
            self.loop.remove_reader(listening)
            self.loop.call_later(_REST, self._listen)

    def _stop_listening(self) -> None:
        if self._socket is not None:
            listening, self._socket = self._socket, None
            self.loop.remove_reader(listening)
            self._accept(listening, _BACKLOG)
            listening.close()

    def _take(self, sock: socket.socket) -> None:
        if len(self._open) >= self._most and not self._make_room():
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(cast(Callable[[], asyncio.Protocol], self._runner.server)(), sock, self)
        self._open[connection.inner] = connection
        task = self.loop.create_task(self._connect(connection, sock))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _connect(self, connection: Connection, sock: socket.socket) -> None:
        times = {"ssl_handshake_timeout": HANDSHAKE, "ssl_shutdown_timeout": _GOODBYE} if self._tls else {}
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock, ssl=self._tls, **times)
        except Exception:  # whose handshake failed is no news
            self.forget(connection)

    def _make_room(self) -> bool:
        """Ends the connection that has waited longest, first of all one that never asked; False when all are busy."""
        waiting = [each for each in self._open.values() if not each.is_busy]
        self._limited_log.warning(
            "full", "all connections are in use; one that only waits is closed for each new one",
            connections=len(self._open), waiting=len(waiting),
        )  # fmt: skip
        if waiting:
            min(waiting, key=lambda each: (each.has_asked, each.since)).abort()
        return bool(waiting)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The `logger` of an aiohttp server, which logs a traceback for each malformed request: at a limited rate here.

    Of exceptions whose text quotes what was sent only the type is logged.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, None)
        self._limited_log = logs.RateLimitedLog(logger, interval=1.0)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        error = kwargs.get("exc_info")
        error = sys.exc_info()[1] if error is True else error
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        is_http = isinstance(error, BaseException) and type(error).__module__.startswith("aiohttp.")
        if is_http:
            self._limited_log.log(logging.WARNING, kind, "what was sent is not HTTP as it should be", error=kind)
        else:
            self._limited_log.log(level, kind, str(msg) % args if args else str(msg), exc_info=error)


@contextlib.asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """Inside is given up after so long, and what follows goes on."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


def give_back() -> None:
    """Give memory back to the system, that of reference cycles included: exceptions that pydantic raises make some."""
    gc.collect()
    allocator.give_back()
