"""A pod's certificate by way of the API server: the handshake goes through a WebSocket, as the kubelet has it."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from carpool_injector.api import calls, forwarding, kube
from carpool_injector.certificates import pki, serving_certificate
from tests.injector import kube_clients

NOW = datetime.datetime.now(datetime.UTC)
HOST = "carpool-injector.carpool-system.svc"
LEAF = pki.issue_leaf(pki.issue_authority(NOW), (HOST,), NOW)
PORT = (9443).to_bytes(2, "little")
Behaviour = Callable[[web.WebSocketResponse], Awaitable[None]]


@contextlib.asynccontextmanager
async def forwarding_by(behaviour: Behaviour, folder: Path) -> AsyncIterator[tuple[kube.Kube, list[web.Request]]]:
    """A client of an API server whose kubelet behaves so once the port is open, and what it was asked."""
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.WebSocketResponse:
        asked.append(request)
        socket = web.WebSocketResponse(protocols=(forwarding.PROTOCOL,))
        await socket.prepare(request)
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + PORT)
        await behaviour(socket)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/portforward", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = await kube.Kube.connect(kube_clients.write_kubeconfig(folder / "kubeconfig", url, token="t"))
    try:
        yield client, asked
    finally:
        await client.close()
        await runner.cleanup()


async def serve_tls(socket: web.WebSocketResponse) -> None:
    context = serving_certificate.make_context()
    serving_certificate.load_pair(context, LEAF)
    arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(arriving, leaving, server_side=True)
    async for message in socket:
        assert message.data[0] == 0
        arriving.write(message.data[1:])
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        for piece in iter(lambda: leaving.read(700), b""):  # in several messages
            await socket.send_bytes(b"\0" + piece)


async def refuse(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\1" + b"error forwarding port 9443 to pod: connection refused")


async def speak_http(socket: web.WebSocketResponse) -> None:
    await socket.receive()
    await socket.send_bytes(b"\0" + b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def leave(socket: web.WebSocketResponse) -> None:
    await socket.receive()


async def test_the_certificate_comes_through_the_api_server(tmp_path: Path) -> None:
    async with forwarding_by(serve_tls, tmp_path) as (client, asked):
        shown = await client.forwarded_certificate("carpool-system", "injector-0", 9443, HOST)
    assert shown is not None
    assert pki.read_certificates(shown) == pki.read_certificates(LEAF.certificate)[:1]
    (request,) = asked
    assert request.path == "/api/v1/namespaces/carpool-system/pods/injector-0/portforward"
    assert (request.query["ports"], request.headers["Authorization"]) == ("9443", "Bearer t")


@pytest.mark.parametrize("behaviour", [refuse, speak_http, leave])
async def test_a_port_that_shows_none_has_none(tmp_path: Path, behaviour: Behaviour) -> None:
    async with forwarding_by(behaviour, tmp_path) as (client, _):
        assert await client.forwarded_certificate("carpool-system", "injector-0", 9443, HOST) is None


async def test_an_api_server_that_forwards_nothing_is_a_failure_in_words(tmp_path: Path) -> None:
    async with forwarding_by(leave, tmp_path):
        elsewhere = await kube.Kube.connect(str(tmp_path / "kubeconfig"), "elsewhere")
        with pytest.raises(calls.Unavailable, match="get pods/portforward carpool-system/a: no answer"):
            await elsewhere.forwarded_certificate("carpool-system", "a", 9443, HOST)
        await elsewhere.close()
