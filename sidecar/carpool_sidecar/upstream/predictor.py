"""Batches over HTTP/1.1 to the predictor beside us.

A client of its own for this one job: a general one would take most of the sidecar's CPU time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import sys
from collections.abc import Callable

import yarl

from carpool.runtime import deadline_timer
from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface
from carpool_sidecar.upstream import answers, connection, pool, requests

log = logging.getLogger("carpool.sidecar.upstream")

_NO_LIMIT = sys.maxsize


class Exchange:
    """A request that was posted; `deadline` is when it is given up, in the loop's time."""

    # State: _reply until there is an outcome; the task that opens a connection, then the connection.
    __slots__ = ("_connection", "_out", "_reply", "deadline", "opening")

    def __init__(self, out: set[Exchange], reply: connection.Reply) -> None:
        self._out = out
        self._reply: connection.Reply | None = reply
        self._connection: connection.Connection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.deadline = math.inf
        out.add(self)

    def cancel(self) -> None:
        """Break it off, with its connection, without a reply; does nothing once there was one."""
        if self._reply is None:
            return
        self._reply = None
        self._out.discard(self)
        if self._connection is not None:
            self._connection.abort()
        elif self.opening is not None:
            self.opening.cancel()
            self.opening = None  # if it has not begun, it keeps the frame that has this

    def break_off(self, error: errors.UpstreamError) -> None:
        """Break it off, with its connection; `error` is its outcome."""
        reply = self._reply
        self.cancel()
        if reply is not None:
            reply(error)

    def expire(self) -> None:
        """Its time is up."""
        if self._connection is not None:
            self.break_off(errors.UpstreamTimeout())
        else:
            self.break_off(errors.UpstreamUnreachable("the predictor cannot be reached: connecting timed out"))

    def send(self, over: connection.Connection, top: bytes, body: calls.Pieces, length: int) -> None:
        """Send the request over a connection that is free."""
        self._connection = over
        over.send(top, body, length, self.settle)

    def settle(self, outcome: answers.Outcome) -> None:
        """Hand over the outcome."""
        reply, self._reply = self._reply, None
        self._connection = None
        self._out.discard(self)
        if reply is not None:
            reply(outcome)


class HttpPredictor:
    """Posts merged bodies, over kept-alive connections of its own, to the same path the callers used.

    `base` is the predictor's scheme (`http`), host and port, `connect_timeout` is in seconds. An answer of more than
    `max_answer_bytes` is broken off. `on_bug` is called when a call fails by a bug, which is in the log.
    """

    # State: the exchanges that are out; the connections; the timer for the exchanges' deadlines.
    def __init__(
        self,
        base: str,
        connect_timeout: float,
        max_answer_bytes: int = _NO_LIMIT,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        url = yarl.URL(base)
        host = url.host_port_subcomponent
        if url.scheme != "http" or not url.host or not url.port or not host:
            raise ValueError(f"the predictor's address {base!r} must be http://HOST:PORT")
        self._heads = requests.HeadWriter(host)
        self._pool = pool.Pool(url.host, url.port, max_answer_bytes)
        self._connect_timeout = connect_timeout
        self._on_bug = on_bug
        self._out: set[Exchange] = set()
        self._deadlines = deadline_timer.DeadlineTimer(self._expire)

    def post(
        self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float, reply: connection.Reply
    ) -> Exchange:
        """Post a body to `target`, a path with its query. The exchange is for `cancel`.

        `reply` is called once, after this has returned, from the event loop: with an answer of status
        2xx, `errors.UpstreamStatus` for any other, or another `errors.UpstreamError` if the predictor cannot be
        reached, breaks off, or takes more than `timeout` seconds. Raises `errors.BadRequest` for a target or headers
        that cannot be written.
        """
        length = sum(map(len, body))
        top = self._heads.write(target, headers, length)
        loop = asyncio.get_running_loop()
        exchange = Exchange(self._out, reply)
        free = self._pool.take()
        if free is not None:
            exchange.deadline = loop.time() + timeout
            exchange.send(free, top, body, length)
        else:
            exchange.deadline = loop.time() + min(timeout, self._connect_timeout)
            opening = self._open_and_send(exchange, top, body, length, loop.time() + timeout)
            exchange.opening = loop.create_task(opening, name="connect to the predictor")
        self._deadlines.look_by(exchange.deadline)
        return exchange

    def limit_answers(self, max_bytes: int) -> None:
        """Break answers of more than so many bytes off from now on, those under way too."""
        self._pool.limit_answers(max_bytes)

    async def predict(
        self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float
    ) -> interface.UpstreamResponse:
        """`post` for those who wait: returns the answer, and raises what is none.

        Cancelling it closes the connection.
        """
        future: asyncio.Future[answers.Outcome] = asyncio.get_running_loop().create_future()
        exchange = self.post(target, headers, body, timeout, functools.partial(_resolve, future))
        try:
            outcome = await future
        finally:
            exchange.cancel()
        if isinstance(outcome, errors.UpstreamError):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Close all connections; exchanges that are out fail."""
        self._deadlines.stop()
        opening = [exchange.opening for exchange in self._out if exchange.opening is not None]
        for exchange in list(self._out):
            exchange.break_off(errors.UpstreamClosed())
        await asyncio.gather(*opening, return_exceptions=True)
        await self._pool.close()

    async def _open_and_send(
        self, exchange: Exchange, top: bytes, body: calls.Pieces, length: int, deadline: float
    ) -> None:
        try:
            opened = await self._pool.open()
        except errors.UpstreamError as error:
            errors.bare(error)
            exchange.settle(error)
        except Exception:
            self._on_bug()
            log.exception("a call to the predictor failed for a reason that is a bug")
            exchange.settle(errors.UpstreamBroken("the predictor could not be called"))
        else:
            exchange.deadline = deadline
            exchange.send(opened, top, body, length)
        finally:
            exchange.opening = None

    def _expire(self, now: float) -> float:
        """Give up what has waited for too long; returns when to look again."""
        for exchange in [exchange for exchange in self._out if exchange.deadline <= now]:
            exchange.expire()
        return min((exchange.deadline for exchange in self._out), default=math.inf)


def _resolve(future: asyncio.Future[answers.Outcome], outcome: answers.Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
