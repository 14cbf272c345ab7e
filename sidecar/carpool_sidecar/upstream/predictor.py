"""Batches over HTTP/1.1 to the predictor beside us, on kept-alive connections.

A client of its own for this one job: a general one would take most of the sidecar's CPU time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import re
import sys
from collections.abc import Callable
from typing import Final, cast

import yarl

from carpool.runtime import deadline_timer
from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface
from carpool_sidecar.upstream import connection

log = logging.getLogger("carpool.sidecar.upstream")

# RFC 9112, section 3.2.1, read generously: any byte that neither ends a line nor parts the line's words.
_TARGET = re.compile(r"/[^\x00-\x20\x7f]*")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")  # RFC 9110, section 5.5
# These say where a message ends and who it is for, which is decided here alone.
_OWN = frozenset({"host", "connection", "content-length", "transfer-encoding"})

_USUAL = {
    "accept": "Accept: application/json",
    "accept-encoding": "Accept-Encoding: identity",
    "content-type": "Content-Type: application/json",
}

_NO_LIMIT = sys.maxsize


class Post:
    """A request that was posted and is in `out`; `deadline` is when it is given up, in the loop's time."""

    # State: deadline, which begins anew with a connection; the reply until there is an outcome; the task that opens a
    # connection, then that.
    __slots__ = ("deadline", "opening", "out", "over", "reply")

    def __init__(
        self, out: set[Post], deadline: float, reply: connection.Reply, over: connection.Connection | None
    ) -> None:
        self.out = out
        self.deadline = deadline
        self.reply: connection.Reply | None = reply
        self.opening: asyncio.Task[None] | None = None
        self.over = over

    def cancel(self) -> None:
        """Break it off, with its connection, without a reply; does nothing once there was one."""
        if self.reply is None:
            return
        self.reply = None
        self.out.discard(self)
        if self.over is not None:
            self.over.abort()
        elif self.opening is not None:
            self.opening.cancel()
            self.opening = None  # if it has not begun, it keeps the frame that has this

    def break_off(self, error: errors.UpstreamError) -> None:
        """Break it off, with its connection; `error` is its outcome."""
        reply = self.reply
        self.cancel()
        if reply is not None:
            reply(error)

    def expire(self) -> None:
        """Its time is up."""
        if self.over is not None:
            self.break_off(errors.UpstreamTimeout())
        else:
            self.break_off(errors.UpstreamUnreachable("the predictor cannot be reached: connecting timed out"))

    def finish(self, outcome: connection.Outcome) -> None:
        """Hand over the outcome."""
        reply, self.reply = self.reply, None
        self.over = None
        self.out.discard(self)
        if reply is not None:
            reply(outcome)


class HttpPredictor:
    """Posts merged bodies, over kept-alive connections of its own, to the same path the callers used.

    `base` is the predictor's scheme (`http`), host and port, `connect_timeout` is in seconds. An answer of more than
    `max_answer_bytes` is broken off. `on_bug` is called when a call fails by a bug, which is in the log. `make_reader`
    makes what reads the answers of a connection.
    """

    # State: the requests that are out, and the timer for their deadlines; the connections.
    def __init__(
        self,
        base: str,
        connect_timeout: float,
        max_answer_bytes: int = _NO_LIMIT,
        on_bug: Callable[[], None] = lambda: None,
        make_reader: Callable[[int], connection.AnswerReader] = connection.AnswerReader,
    ) -> None:
        url = yarl.URL(base)
        host = url.host_port_subcomponent
        if url.scheme != "http" or not url.host or not url.port or not host:
            raise ValueError(f"the predictor's address {base!r} must be http://HOST:PORT")
        self._host = host
        self._pool = connection.Pool(
            url.host,
            url.port,
            lambda owner, scratch: connection.Connection(owner, scratch, make_reader(max_answer_bytes)),
        )
        self._connect_timeout = connect_timeout
        self._on_bug = on_bug
        self._out: set[Post] = set()
        self._deadlines = deadline_timer.DeadlineTimer(self._expire)

    def post(
        self,
        target: str,
        headers: calls.Headers,
        body: calls.Pieces,
        timeout: float,
        reply: connection.Reply,
        head: bytes = b"",
    ) -> Post:
        """Post a body to `target`, a path with its query, or send the request of a `head` that is complete.

        Returns a handle to cancel it. `reply` is called once, after this has returned, from the event loop: with an
        answer of status 2xx, `errors.UpstreamStatus` for any other, or another `errors.UpstreamError` if the predictor
        cannot be reached, breaks off, or takes more than `timeout` seconds. Raises `errors.BadRequest` for a target or
        headers that cannot be written.
        """
        length = sum(map(len, body))
        if not head:
            head = b"%b%d\r\n\r\n" % (_heads[self._host, target, headers], length)
        loop = asyncio.get_running_loop()
        free = cast(connection.Connection | None, self._pool.take())
        post = Post(self._out, loop.time() + timeout, reply, free)
        self._out.add(post)
        if free is not None:
            free.send(head, body, length, post.finish)
        else:
            post.deadline = loop.time() + min(timeout, self._connect_timeout)
            opening = self._open_and_send(post, head, body, length, loop.time() + timeout)
            post.opening = loop.create_task(opening, name="connect to the predictor")
        if post.deadline < self._deadlines.due_at:
            self._deadlines.look_by(post.deadline)
        return post

    async def predict(
        self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float
    ) -> interface.UpstreamResponse:
        """`post` for those who wait: returns the answer, and raises what is none.

        Cancelling it closes the connection.
        """
        future: asyncio.Future[connection.Outcome] = asyncio.get_running_loop().create_future()
        post = self.post(target, headers, body, timeout, functools.partial(_resolve, future))
        try:
            outcome = await future
        finally:
            post.cancel()
        if isinstance(outcome, errors.UpstreamError):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Close all connections; requests that are out fail."""
        self._deadlines.stop()
        opening = [post.opening for post in self._out if post.opening is not None]
        for post in list(self._out):
            post.break_off(errors.UpstreamClosed())
        await asyncio.gather(*opening, return_exceptions=True)
        await self._pool.close()

    async def _open_and_send(self, post: Post, head: bytes, body: calls.Pieces, length: int, deadline: float) -> None:
        try:
            opened = cast(connection.Connection, await self._pool.open())
        except errors.UpstreamError as error:
            errors.bare(error)
            post.finish(error)
        except Exception:
            self._on_bug()
            log.exception("a call to the predictor failed for a reason that is a bug")
            post.finish(errors.UpstreamBroken("the predictor could not be called"))
        else:
            post.deadline = deadline
            post.over = opened
            opened.send(head, body, length, post.finish)
        finally:
            post.opening = None

    def _expire(self, now: float) -> float:
        """Give up what has waited for too long; returns when to look again."""
        for post in [post for post in self._out if post.deadline <= now]:
            post.expire()
        return min((post.deadline for post in self._out), default=math.inf)


def request_head(asked: tuple[str, str, calls.Headers]) -> bytes:
    """A request's head but for its length, of a host, a target, and headers to come after, or instead of, the usual.

    Raises `errors.BadRequest` for a target, name or value that HTTP does not allow, and for headers that frame or
    address a message. Nothing that callers send can end a line here: whoever could would write requests of their own to
    the predictor.
    """
    host, target, headers = asked
    if not _TARGET.fullmatch(target):
        raise errors.BadRequest("the request target has characters that HTTP does not allow there")
    named = {name.lower() for name, _ in headers}
    lines = [f"POST {target} HTTP/1.1", f"Host: {host}"]
    lines += [line for name, line in _USUAL.items() if name not in named]
    lines += [_line(name, value) for name, value in headers]
    lines.append("Content-Length: ")
    try:
        # What was read as no UTF-8 (PEP 383) becomes the bytes it was.
        return "\r\n".join(lines).encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise errors.BadRequest("the request's head cannot be written as UTF-8") from None


_heads: Final = caches.Cache("request_heads", 256 * 1024, make=request_head)


def _line(name: str, value: str) -> str:
    if not _NAME.fullmatch(name) or name.lower() in _OWN:
        raise errors.BadRequest(f"{name!r} is not a header that a batch can carry")
    if not value.isprintable() and not _VALUE.fullmatch(value):
        raise errors.BadRequest(f"the value of the header {name} has characters that HTTP does not allow")
    return f"{name}: {value}"


def _resolve(future: asyncio.Future[connection.Outcome], outcome: connection.Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
