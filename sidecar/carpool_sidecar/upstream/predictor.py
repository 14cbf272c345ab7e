"""Kept-alive connections to the predictor beside us, and batches over them.

A client of its own for this job: a general one would take most of the sidecar's CPU time.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import yarl

from carpool.runtime import deadline_timer
from carpool_sidecar import caches, errors, files
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

IDLE_SECONDS: Final = 4.0
"""So long a connection is kept that nobody uses.

uvicorn, and so most model servers, closes idle ones after 5 s. Letting go of them first avoids sending a request, which
may not be repeatable, into a connection that is just being closed.
"""

# What may be sent once more if its connection ends before an answer (RFC 9110, 9.2.2).
_IDEMPOTENT: Final[frozenset[str]] = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

# Large enough that a system call is little beside the copy it makes, small enough to stay in a core's cache.
_SCRATCH: Final = 256 * 1024

# Headers of a refusal that mean something to the caller; the rest speaks of the batch's connection. OpenAI's clients
# look for `retry-after-ms` before they look for Retry-After.
_TELLING = ("Content-Type", "Retry-After", "Retry-After-Ms", "Location", "WWW-Authenticate", "Allow")
_TELLING_KEYS = tuple((name, name.lower().encode()) for name in _TELLING)

Outcome = interface.UpstreamResponse | errors.UpstreamError
"""What becomes of a request: an answer with status 2xx, or why there is none."""

Reply = Callable[[Outcome], None]


def may_ask_again(method: str, error: errors.UpstreamError) -> bool:
    """Whether a request without a body that failed so may be sent once more: a kept connection may have just ended."""
    return method in _IDEMPOTENT and isinstance(error, errors.UpstreamClosed)


class Pool:
    """Connections to the predictor at `base` (`http://HOST:PORT`), of which idle ones are closed after 4 seconds.

    The one used last is handed out first. `connect_timeout` is in seconds. `make_reader` makes what reads the answers
    of one, `on_bug` is called when one cannot be made by a bug, which is in the log.
    """

    # State: all connections; those that are free, the one used last at the end; those that are being made; _gone, set
    # up by `close`.
    def __init__(
        self,
        base: str,
        connect_timeout: float,
        make_reader: Callable[[], connection.AnswerReader],
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        url = yarl.URL(base)
        host = url.host_port_subcomponent
        if url.scheme != "http" or not url.host or not url.port or not host:
            raise ValueError(f"the predictor's address {base!r} must be http://HOST:PORT")
        self.host = host
        """As a Host header has it."""
        self._address = (url.host, url.port)
        self._connect_timeout = connect_timeout
        self._make_reader = make_reader
        self._on_bug = on_bug
        self._scratch = memoryview(bytearray(_SCRATCH))  # all receive in it
        self._all: set[connection.Connection] = set()
        self._free: list[connection.Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._gone: asyncio.Event | None = None
        self._deadlines = deadline_timer.DeadlineTimer(self._close_idle)

    def take(self) -> connection.Connection | None:
        """A connection that nothing came over since its last answer, if there is one."""
        while self._free:
            latest = self._free.pop()
            if not latest.is_closing() and not latest.news(0):
                return latest
            latest.abort()
        return None

    def open(
        self,
        then: Callable[[connection.Connection], None],
        failed: Callable[[errors.UpstreamError], None],
        longest: float = math.inf,
    ) -> asyncio.Task[None]:
        """Make a connection, within `longest` seconds; one of both is called later, unless that is cancelled.

        If connecting might take longer, but for `longest`, that is `errors.LateConnect`. Whoever cancels lets go of the
        task: one that has not begun keeps the frame of who waits.
        """
        work = self._open(then, failed, longest)
        task = asyncio.get_running_loop().create_task(work, name="connect to the predictor")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return task

    async def close(self) -> None:
        """Close all connections, whatever they carry, and return when they are gone. None can be had afterwards."""
        for task in list(self._opening):
            task.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        self._deadlines.stop()
        self._free.clear()
        self._gone = asyncio.Event()
        for each in list(self._all):
            each.close()
        if self._all:
            await self._gone.wait()

    async def _open(
        self,
        then: Callable[[connection.Connection], None],
        failed: Callable[[errors.UpstreamError], None],
        longest: float,
    ) -> None:
        is_own = self._connect_timeout <= longest
        try:
            async with asyncio.timeout(self._connect_timeout if is_own else longest):
                opened = await self._connect()
        except TimeoutError:
            words = "the predictor cannot be reached: connecting timed out"
            failed(errors.UpstreamUnreachable(words) if is_own else errors.LateConnect(words))
        except errors.UpstreamError as error:
            failed(errors.bare(error))
        except Exception:
            self._on_bug()
            log.exception("a connection to the predictor could not be made for a reason that is a bug")
            failed(errors.UpstreamBroken("the predictor could not be called"))
        else:
            then(opened)

    async def _connect(self) -> connection.Connection:
        """A new connection; raises `errors.UpstreamUnreachable`, `errors.OutOfSockets` or `errors.UpstreamClosed`."""
        if self._gone is not None:
            raise errors.UpstreamUnreachable("the predictor cannot be reached: all connections to it were closed")
        opened = connection.Connection(self, self._scratch, self._make_reader())
        try:
            files.check()
            await asyncio.get_running_loop().create_connection(lambda: opened, *self._address)
        except OSError as error:
            raise _translated(error) from None
        except asyncio.CancelledError:
            self.lost(opened)  # uvloop closes a connection that was just made without telling its protocol
            raise
        if opened.is_closing() or opened.news(0):
            opened.abort()
            raise errors.UpstreamClosed
        return opened

    # --- what connections tell ---------------------------------------------------------------------------------

    def made(self, new: connection.Connection) -> None:
        """Implements `connection.Owner`."""
        self._all.add(new)

    def freed(self, idle: connection.Connection) -> None:
        """Keep a connection for the next request."""
        if self._gone is not None:
            idle.abort()
            return
        idle.free_since = asyncio.get_running_loop().time()
        self._free.append(idle)
        if (due := idle.free_since + IDLE_SECONDS) < self._deadlines.due_at:
            self._deadlines.look_by(due)

    def lost(self, old: connection.Connection) -> None:
        """Implements `connection.Owner`."""
        self._all.discard(old)
        if old in self._free:
            self._free.remove(old)
        if self._gone is not None and not self._all:
            self._gone.set()

    def _close_idle(self, now: float) -> float:
        """Close what has been idle for too long; returns when to look again."""
        fresh = 0
        while fresh < len(self._free) and self._free[fresh].free_since + IDLE_SECONDS <= now:
            self._free[fresh].abort()
            fresh += 1
        del self._free[:fresh]
        return self._free[0].free_since + IDLE_SECONDS if self._free else math.inf


def _translated(error: OSError) -> errors.UpstreamError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return errors.OutOfSockets()
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "its address is unknown"
    return errors.UpstreamUnreachable(f"the predictor cannot be reached: {reason}")


class Post:
    """A request that was posted, and its answer so far. Implements `connection.Receiver`.

    `deadline` is when it is given up, in the loop's time.
    """

    # State: the reply until there is an outcome; the connection that is made, then that; the head and the body of the
    # answer.
    __slots__ = ("_client", "_head", "_pieces", "_size", "deadline", "opening", "over", "reply")

    def __init__(
        self, client: HttpPredictor, deadline: float, reply: Reply, over: connection.Connection | None
    ) -> None:
        self._client = client
        self.deadline = deadline
        self.reply: Reply | None = reply
        self.opening: asyncio.Task[None] | None = None
        self.over = over
        self._head: connection.AnswerHead | None = None
        self._pieces: list[bytes] | None = None
        self._size = 0

    def cancel(self) -> None:
        """Break it off, with its connection, without a reply; does nothing once there was one."""
        if self.reply is None:
            return
        self.reply = None
        self._client.out.discard(self)
        opening, self.opening = self.opening, None
        if self.over is not None:
            self.over.abort()
        elif opening is not None:
            opening.cancel()

    def finish(self, outcome: Outcome) -> None:
        """Hand over the outcome; break off what is not over."""
        reply = self.reply
        self.cancel()
        if reply is not None:
            reply(outcome)

    def answer_came(self, part: connection.Part) -> None:
        """Implements `connection.Receiver`: collect it, and hand over the outcome when all is there."""
        head, error = part.head, part.error
        if head is not None:
            self._head = head
            if not 200 <= head.status < 600:
                error = errors.UpstreamBroken(f"the predictor's answer has the status {head.status}")
            elif head.length is not None and head.length > self._client.most:
                error = self._too_large()
            elif b"content-encoding" in head.headers and not self._client.is_lenient and not _is_plain(head):
                error = errors.UpstreamBroken("the predictor's answer has a content-encoding that was not asked for")
        self._size += len(part.body)
        if error is None and self._size > self._client.most:
            error = self._too_large()
        if error is not None:
            self.finish(error)
        elif part.trailers is None:
            self._pieces = self._pieces or []
            self._pieces.append(part.body)
        elif self._head is not None and self.reply is not None:
            reply, self.reply, self.over, head = self.reply, None, None, self._head
            self._client.out.discard(self)
            body = b"".join([*self._pieces, part.body]) if self._pieces else part.body
            if head.status < 300:
                fields = _ordered(head) if len(head.headers) < len(head.fields) else []
                reply(interface.UpstreamResponse(body, head.headers, head.status, b"", fields))
            else:
                reply(errors.UpstreamStatus(head.status, body, _told(head.headers)))

    def broke(self) -> None:
        """Implements `connection.Receiver`."""
        self._client.on_bug()
        log.exception("a call to the predictor failed for a reason that is a bug")
        self.finish(errors.UpstreamBroken("the predictor could not be called"))

    def predictor_full(self, is_full: bool) -> None:
        """Implements `connection.Receiver`: all that is to be sent is here."""

    def _too_large(self) -> errors.UpstreamBroken:
        return errors.UpstreamBroken(f"the predictor's answer is larger than {self._client.most} bytes")


def _is_plain(head: connection.AnswerHead) -> bool:
    """Whether its body is of no coding, as was asked for."""
    return all(value.lower() == b"identity" for name, value in head.fields if name.lower() == b"content-encoding")


def _ordered(head: connection.AnswerHead) -> connection.Fields:
    """All fields, with their names in lower case, if one came twice."""
    return [(name.lower(), value) for name, value in head.fields]


def _told(headers: Mapping[bytes, bytes]) -> tuple[tuple[str, str], ...]:
    found = ((name, headers.get(key, b"")) for name, key in _TELLING_KEYS)
    told = ((name, value.decode(errors="surrogateescape")) for name, value in found)
    return tuple((name, value) for name, value in told if value and value.isprintable())


class HttpPredictor:
    """Posts merged bodies, over kept-alive connections of its own, to the same path the callers used.

    `base` is the predictor's scheme (`http`), host and port, `connect_timeout` is in seconds. An answer of more than
    `max_answer_bytes`, which are the `most`, is broken off. `on_bug` is called when a call fails by a bug, which is in
    the log. If it `is_lenient`, answers are read as `connection.LenientReader` does, and are left in whatever coding
    they came. `out` are the requests that have no answer yet.
    """

    # State: the requests that are out, and the timer for their deadlines; the connections.
    def __init__(
        self,
        base: str,
        connect_timeout: float,
        max_answer_bytes: int = _NO_LIMIT,
        on_bug: Callable[[], None] = lambda: None,
        is_lenient: bool = False,
    ) -> None:
        reader = connection.LenientReader if is_lenient else connection.AnswerReader
        self._pool = Pool(base, connect_timeout, reader, on_bug)
        self.most = max_answer_bytes
        self.on_bug = on_bug
        self.is_lenient = is_lenient
        self.out: set[Post] = set()
        self._deadlines = deadline_timer.DeadlineTimer(self._expire)

    def post(
        self,
        target: str,
        headers: calls.Headers,
        body: calls.Pieces,
        timeout: float,
        reply: Reply,
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
            head = b"%b%d\r\n\r\n" % (_heads[self._pool.host, target, headers], length)
        deadline = asyncio.get_running_loop().time() + timeout
        free = self._pool.take()
        post = Post(self, deadline, reply, free)
        self.out.add(post)
        if free is None:
            post.deadline = math.inf  # connecting has its own
            begin = functools.partial(self._begin, post, deadline, head, body, length)
            post.opening = self._pool.open(begin, post.finish, timeout)
            return post
        free.send(post, head, body, length)
        if deadline < self._deadlines.due_at:
            self._deadlines.look_by(deadline)
        return post

    async def ask(
        self, method: str, target: str, headers: calls.Headers, timeout: float, body: bytes = b""
    ) -> interface.UpstreamResponse:
        """Send a request of any method, with no other headers but those of a body, which is JSON; else as `predict`.

        It is sent once more if it `may_ask_again`.
        """
        head = _written(method, self._pool.host, target, [], headers)
        if body:
            head += b"\r\nContent-Type: application/json\r\nContent-Length: %d" % len(body)
        head += b"\r\n\r\n"
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        try:
            return await self.predict(target, (), [body], timeout, head)
        except errors.UpstreamClosed as error:
            if body or not may_ask_again(method, error):
                raise
        return await self.predict(target, (), [body], deadline - clock(), head)

    async def predict(
        self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float, head: bytes = b""
    ) -> interface.UpstreamResponse:
        """`post` for those who wait: returns the answer, and raises what is none.

        Cancelling it closes the connection.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        post = self.post(target, headers, body, timeout, functools.partial(_resolve, future), head)
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
        for post in list(self.out):
            post.finish(errors.UpstreamClosed())
        await self._pool.close()

    def _begin(
        self, post: Post, deadline: float, head: bytes, body: calls.Pieces, length: int, opened: connection.Connection
    ) -> None:
        post.opening, post.over, post.deadline = None, opened, deadline
        opened.send(post, head, body, length)
        self._deadlines.look_by(deadline)

    def _expire(self, now: float) -> float:
        """Give up what has waited for too long; returns when to look again."""
        for post in [post for post in self.out if post.deadline <= now]:
            post.finish(errors.UpstreamTimeout())
        return min((post.deadline for post in self.out), default=math.inf)


def request_head(asked: tuple[str, str, calls.Headers]) -> bytes:
    """A request's head but for its length, of a host, a target, and headers to come after, or instead of, the usual.

    Raises `errors.BadRequest` for a target, name or value that HTTP does not allow, and for headers that frame or
    address a message. Nothing that callers send can end a line here: whoever could would write requests of their own to
    the predictor.
    """
    host, target, headers = asked
    named = {name.lower() for name, _ in headers}
    usual = [line for name, line in _USUAL.items() if name not in named]
    return _written("POST", host, target, usual, headers) + b"\r\nContent-Length: "


def _written(method: str, host: str, target: str, lines: Sequence[str], headers: calls.Headers) -> bytes:
    """A head up to the last line's end; raises as `request_head`."""
    if not _TARGET.fullmatch(target):
        raise errors.BadRequest("the request target has characters that HTTP does not allow there")
    fields = [_line(name, value) for name, value in headers]
    try:
        # What was read as no UTF-8 (PEP 383) becomes the bytes it was.
        return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, *fields]).encode(
            errors="surrogateescape"
        )
    except UnicodeEncodeError:
        raise errors.BadRequest("the request's head cannot be written as UTF-8") from None


_heads: Final = caches.Cache("request_heads", 256 * 1024, make=request_head)


def _line(name: str, value: str) -> str:
    if not _NAME.fullmatch(name) or name.lower() in _OWN:
        raise errors.BadRequest(f"{name!r} is not a header that a batch can carry")
    if not value.isprintable() and not _VALUE.fullmatch(value):
        raise errors.BadRequest(f"the value of the header {name} has characters that HTTP does not allow")
    return f"{name}: {value}"


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
