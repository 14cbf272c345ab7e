"""aiohttp's client, for what is passed on to the predictor and for questions about its models.

How its connections are made, how the predictor is addressed, how a body that is known is sent; and the one place where
errors of this client become errors of this project.
"""

from __future__ import annotations

import asyncio
import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import yarl
from aiohttp import abc, payload

from carpool_sidecar import errors, files
from carpool_sidecar.upstream import connection

# Larger writes go out in slices, so that a slow predictor pushes back before all of it sits in the socket's buffer.
_SLICE = 256 * 1024


class _WaryConnector(aiohttp.TCPConnector):
    """Never hands out a pooled connection that has received something since its last answer.

    A predictor that answers twice would else give one caller's answer to the next.
    """

    async def _get(self, *arguments: Any) -> Any:
        while (found := await super()._get(*arguments)) is not None:
            if found.protocol is not None and not found.protocol.should_close:
                break
            found.close()
        return found


class _Response(aiohttp.ClientResponse):
    """An answer of which nothing waits for the garbage collector if it is not wanted to its end.

    aiohttp's readers of bodies call back their connections, or answers, which have them.
    """

    async def start(self, used: Any) -> aiohttp.ClientResponse:
        protocol = used.protocol
        try:
            return await super().start(used)
        except asyncio.CancelledError:
            while len(protocol):  # the answer came in the same moment
                _, content = await protocol.read()
                content.set_exception(aiohttp.ClientConnectionError("the answer is not wanted any more"))
            raise


def open_session(**options: Any) -> aiohttp.ClientSession:
    """A session of `aiohttp.ClientSession`'s other options, to be made inside a running event loop.

    As many connections as needed: a limit here would make requests wait unseen, and the core limits what is in
    flight. No cookies: what the predictor sets for one caller is not another's.
    """
    return aiohttp.ClientSession(
        connector=_WaryConnector(limit=0, keepalive_timeout=connection.IDLE_SECONDS, socket_factory=files.make_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_Response,
        **options,
    )


def address(base: yarl.URL, target: str) -> yarl.URL:
    """The URL of a request target (path and query, or `*`) at `base`, with every byte of the target as it is.

    All of it goes in as a ready-encoded path: taken apart and joined again, an empty query would lose its question
    mark, and a `#` all behind it.
    """
    return yarl.URL.build(
        scheme=base.scheme, host=base.host_subcomponent or "", port=base.port, path=target, encoded=True
    )


class KnownBody(payload.Payload):
    """Bytes that are written without a copy of large ones, and without aiohttp's warning about those."""

    _autoclose = True

    def __init__(self, body: bytes) -> None:
        # The type applies where the request names none.
        super().__init__(body, content_type="application/json")
        self._body = body
        self._size = len(body)

    async def write(self, writer: abc.AbstractStreamWriter) -> None:
        view = memoryview(self._body)
        for start in range(0, len(view), _SLICE):
            await writer.write(view[start : start + _SLICE])

    async def write_with_length(self, writer: abc.AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)


@contextmanager
def translated() -> Iterator[None]:
    """Turn what aiohttp's client raises into an `errors.UpstreamError`.

    Connecting failed or took too long: `UpstreamUnreachable`. The connection ended before an answer began:
    `UpstreamClosed`. The answer broke off or was not HTTP: `UpstreamBroken`. A time limit passed: `UpstreamTimeout`.
    """
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        _clear(error)
        raise errors.UpstreamUnreachable("the predictor cannot be reached: connecting timed out") from error
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise errors.UpstreamTimeout from error
    except aiohttp.ClientConnectorError as error:
        _clear(error, error.os_error)
        if error.os_error.errno in (errno.EMFILE, errno.ENFILE):
            raise errors.OutOfSockets from error
        raise errors.UpstreamUnreachable(f"the predictor cannot be reached: {error.os_error.strerror}") from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
        raise errors.UpstreamClosed from error
    except aiohttp.ClientError as error:
        # Not its text: that quotes the predictor's address and raw bytes.
        raise errors.UpstreamBroken(f"the predictor's answer is not usable ({type(error).__name__})") from error


def _clear(*raised: BaseException) -> None:
    """Empty the frames that errors went through: who tried to connect has kept these there, and others the body."""
    found = list(raised)
    for each in found:  # more are found meanwhile
        traceback.clear_frames(each.__traceback__)
        found += [one for one in (each.__cause__, each.__context__) if one is not None and one not in found]
