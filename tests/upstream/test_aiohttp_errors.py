"""Which error of the HTTP client is which error of this project."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yarl

from carpool_sidecar import errors
from carpool_sidecar.upstream import aiohttp_client
from tests import loopback

KEY: Any = SimpleNamespace(host="h", port=1, ssl=False, is_ssl=False)
REQUEST: Any = SimpleNamespace(real_url="http://h:1/", method="POST", headers={}, url="http://h:1/")
REFUSED = OSError(errno.ECONNREFUSED, "Connection refused")

TABLE = [
    (aiohttp.ConnectionTimeoutError("late"), errors.UpstreamUnreachable),
    (aiohttp.ClientConnectorError(KEY, REFUSED), errors.UpstreamUnreachable),
    (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "Name or service not known")), errors.UpstreamUnreachable),
    (aiohttp.SocketTimeoutError("late"), errors.UpstreamTimeout),
    (aiohttp.ServerTimeoutError("late"), errors.UpstreamTimeout),
    (TimeoutError(), errors.UpstreamTimeout),
    (aiohttp.ServerDisconnectedError(), errors.UpstreamClosed),
    (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), errors.UpstreamClosed),
    (aiohttp.ClientConnectionResetError("closing transport"), errors.UpstreamClosed),
    (ConnectionResetError(), errors.UpstreamClosed),
    (BrokenPipeError(), errors.UpstreamClosed),
    (aiohttp.ClientPayloadError("cut off"), errors.UpstreamBroken),
    (aiohttp.ClientResponseError(REQUEST, (), message="not HTTP"), errors.UpstreamBroken),
    (aiohttp.InvalidURL("x"), errors.UpstreamBroken),
]


@pytest.mark.parametrize(("raised", "told"), TABLE, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_each_error_of_the_client_has_one_meaning(raised: Exception, told: type[errors.UpstreamError]) -> None:
    with pytest.raises(errors.UpstreamError) as caught, aiohttp_client.translated():
        raise raised
    assert type(caught.value) is told
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("other", [ValueError("a bug"), asyncio.CancelledError(), errors.UpstreamStatus(500, b"")])
def test_what_is_not_the_clients_is_left_alone(other: BaseException) -> None:
    with pytest.raises(type(other)) as caught, aiohttp_client.translated():
        raise other
    assert caught.value is other


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port where connections are not accepted, and no more fit into the queue of those that wait for that."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@pytest.mark.both_loops
@pytest.mark.parametrize("is_late", [False, True], ids=["refused", "late"])
async def test_the_body_is_not_kept_when_connecting_fails(deaf: int, is_late: bool) -> None:
    port = deaf if is_late else loopback.free_port()
    url = aiohttp_client.address(yarl.URL(f"http://127.0.0.1:{port}"), "/x")
    async with aiohttp_client.open_session(timeout=aiohttp.ClientTimeout(total=None, sock_connect=0.05)) as session:
        gc.disable()
        try:
            body = aiohttp_client.KnownBody(b"x")
            kept = weakref.ref(body)
            with pytest.raises(errors.UpstreamUnreachable) as caught, aiohttp_client.translated():
                await session.post(url, data=body)
            errors.bare(caught.value)
            del body, caught
            assert kept() is None
        finally:
            gc.enable()
