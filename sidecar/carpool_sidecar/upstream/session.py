"""How connections that pass requests on to the predictor are made, and how it is addressed."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import yarl

# uvicorn, and so most model servers, closes idle connections after 5 s. Letting go of them first avoids sending a
# request, which may not be repeatable, into a connection that is just being closed.
IDLE_SECONDS = 4.0


class _WaryConnector(aiohttp.TCPConnector):
    """Never hands out a pooled connection that has received something since its last answer.

    A predictor that answers twice would else give one caller's answer to the next.
    """

    async def _get(self, *arguments: Any) -> Any:
        while (connection := await super()._get(*arguments)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


class _Response(aiohttp.ClientResponse):
    """An answer of which nothing waits for the garbage collector if it is not wanted to its end.

    aiohttp's readers of bodies call back their connections, or answers, which have them.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        try:
            return await super().start(connection)
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
        connector=_WaryConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_Response,
        **options,
    )


def address(base: yarl.URL, target: str) -> yarl.URL:
    """The URL of a request target (path and query, or `*`) at `base`, with every byte of the target as it is.

    All of it goes in as a ready-encoded path: taken apart and joined again, an empty query would lose its question
    mark, and a `#` all behind it.
    """
    return yarl.URL.build(scheme=base.scheme, host=base.host or "", port=base.port, path=target, encoded=True)
