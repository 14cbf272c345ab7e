"""The predictor's readiness, asked over real connections."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yarl
from aiohttp import web

from sidecar.upstream import probes, readiness


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Predictor:
    """Answers every GET with `status`, once `gate` is open; remembers what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests: list[web.BaseRequest] = []
        self.connections: set[Any] = set()
        self.asked = asyncio.Event()
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(request)
        self.connections.add(request.transport)
        self.asked.set()
        await self.gate.wait()
        return web.Response(status=self.status, headers={"Location": "/elsewhere"}, text="x" * 100_000)

    def probe(self, path: str = "/ready", timeout: float = 1.0, **options: Any) -> probes.HttpGet:
        return probes.HttpGet(yarl.URL(f"http://127.0.0.1:{self.port}{path}"), timeout=timeout, **options)


Ready = Callable[..., readiness.Readiness]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def predictor(aiohttp_raw_server: Any) -> AsyncIterator[Predictor]:
    predictor = Predictor()
    server = await aiohttp_raw_server(predictor.handle)
    predictor.port = server.port
    yield predictor
    predictor.gate.set()


@pytest.fixture
async def ready_if(clock: Clock) -> AsyncIterator[Ready]:
    made = []

    def make(*wanted: probes.Probe) -> readiness.Readiness:
        made.append(readiness.Readiness(wanted, clock))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


# --- httpGet ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 204, 302, 399])
async def test_statuses_from_200_to_399_mean_ready(predictor: Predictor, ready_if: Ready, status: int) -> None:
    predictor.status = status
    check = ready_if(predictor.probe())
    assert await check.check()
    assert check.last_error == ""
    assert len(predictor.requests) == 1  # a redirect is not followed


@pytest.mark.parametrize("status", [400, 404, 503])
async def test_other_statuses_mean_not_ready(predictor: Predictor, ready_if: Ready, status: int) -> None:
    predictor.status = status
    check = ready_if(predictor.probe())
    assert not await check.check()
    assert check.last_error == f"httpGet http://127.0.0.1:{predictor.port}/ready: answered {status}"


async def test_the_request_carries_the_path_and_headers_of_the_probe(predictor: Predictor, ready_if: Ready) -> None:
    headers = (("Host", "model.example"), ("X-Twice", "1"), ("X-Twice", "2"))
    assert await ready_if(predictor.probe("/a%2Fb?x=1", headers=headers)).check()
    (request,) = predictor.requests
    assert request.method == "GET"
    assert request.raw_path == "/a%2Fb?x=1"
    assert request.headers["Host"] == "model.example"
    assert request.headers["User-Agent"] == "carpool-probe"
    assert request.headers.getall("X-Twice") == ["1", "2"]


async def test_a_probe_may_name_its_own_user_agent(predictor: Predictor, ready_if: Ready) -> None:
    await ready_if(predictor.probe(headers=(("user-agent", "mine"),))).check()
    assert predictor.requests[0].headers.getall("User-Agent") == ["mine"]


async def test_certificates_are_not_verified(ready_if: Ready, aiohttp_raw_server: Any, tmp_path: Path) -> None:
    predictor = Predictor()
    server = await aiohttp_raw_server(predictor.handle, ssl=self_signed(tmp_path))
    assert await ready_if(probes.HttpGet(yarl.URL(f"https://127.0.0.1:{server.port}/"))).check()


def self_signed(folder: Path) -> ssl.SSLContext:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the program openssl is needed to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-subj", "/CN=nobody", "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.looptime
async def test_a_predictor_that_hangs_is_not_ready_after_the_timeout(
    predictor: Predictor, ready_if: Ready, looptime: float
) -> None:
    predictor.gate.clear()
    check = ready_if(predictor.probe(timeout=7.0))
    assert not await check.check()
    assert 7 <= looptime < 8
    assert check.last_error.endswith("/ready: no answer within 7 s")


async def test_a_refused_connection_means_not_ready(ready_if: Ready, closed_port: int) -> None:
    check = ready_if(probes.HttpGet(yarl.URL(f"http://127.0.0.1:{closed_port}/")))
    assert not await check.check()
    assert "Cannot connect" in check.last_error


async def test_an_answer_that_is_not_http_means_not_ready(ready_if: Ready) -> None:
    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        check = ready_if(probes.HttpGet(yarl.URL(f"http://127.0.0.1:{port_of(server)}/")))
        assert not await check.check()
        assert check.last_error


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello there\r\n\r\n")
    await hang_up(reader, writer)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


# --- tcpSocket -------------------------------------------------------------------------------------------------


async def test_a_port_that_accepts_connections_is_ready(ready_if: Ready) -> None:
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        assert await ready_if(probes.TcpSocket("127.0.0.1", port_of(server))).check()


async def test_a_port_nobody_listens_on_is_not_ready(ready_if: Ready, closed_port: int) -> None:
    check = ready_if(probes.tcp_probe(closed_port))
    assert not await check.check()
    assert check.last_error.startswith(f"tcpSocket 127.0.0.1:{closed_port}: ")


# --- grpc ------------------------------------------------------------------------------------------------------

Health = Callable[[bytes, Any], Awaitable[bytes]]


@pytest.fixture
async def serve_health() -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """Serve `grpc.health.v1.Health/Check` by the given function from request to response bytes; gives the port."""
    pytest.importorskip("grpc", reason="grpc probes need the extra: pip install 'carpool[grpc]'")
    import grpc.aio

    servers = []

    async def serve(check: Health, port: int = 0) -> int:
        server = grpc.aio.server()
        methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        handler = grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)
        server.add_generic_rpc_handlers((handler,))
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
        return int(bound)

    yield serve
    for server in servers:
        await server.stop(None)


@pytest.mark.parametrize("service", ["", "model", "m" * 200])
async def test_a_grpc_service_that_serves_is_ready(serve_health: Any, ready_if: Ready, service: str) -> None:
    asked = []

    async def check(request: bytes, context: Any) -> bytes:
        asked.append(request)
        return b"\x08\x01"

    assert await ready_if(probes.Grpc("127.0.0.1", await serve_health(check), service)).check()
    (request,) = asked
    assert request.endswith(service.encode())
    heads = {0: b"", 5: b"\x0a\x05", 200: b"\x0a\xc8\x01"}
    assert request.removesuffix(service.encode()) == heads[len(service)]


@pytest.mark.parametrize("answer", [b"", b"\x08\x00", b"\x08\x02"])
async def test_a_grpc_service_that_does_not_serve_is_not_ready(
    serve_health: Any, ready_if: Ready, answer: bytes
) -> None:
    async def check(request: bytes, context: Any) -> bytes:
        return answer

    checked = ready_if(probes.Grpc("127.0.0.1", await serve_health(check)))
    assert not await checked.check()
    assert checked.last_error.endswith("answered that it is not serving")


async def test_an_unknown_grpc_service_is_not_ready(serve_health: Any, ready_if: Ready) -> None:
    import grpc

    async def check(request: bytes, context: Any) -> bytes:
        return bytes(await context.abort(grpc.StatusCode.NOT_FOUND, "no such service"))

    checked = ready_if(probes.Grpc("127.0.0.1", await serve_health(check), "m"))
    assert not await checked.check()
    assert checked.last_error.endswith("service m: NOT_FOUND: no such service")


async def test_a_grpc_service_that_hangs_is_not_ready(serve_health: Any, ready_if: Ready) -> None:
    async def check(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    checked = ready_if(probes.Grpc("127.0.0.1", await serve_health(check), timeout=0.1))
    assert not await checked.check()
    assert checked.last_error.endswith("no answer within 0.1 s")


async def test_a_refused_grpc_connection_means_not_ready_and_leaves_no_back_off(
    serve_health: Any, ready_if: Ready, clock: Clock, closed_port: int
) -> None:
    checked = ready_if(probes.Grpc("127.0.0.1", closed_port))
    assert not await checked.check()
    assert "UNAVAILABLE" in checked.last_error

    async def check(request: bytes, context: Any) -> bytes:
        return b"\x08\x01"

    await serve_health(check, closed_port)
    clock.now += 1
    assert await checked.check()


# --- together --------------------------------------------------------------------------------------------------


async def test_a_list_is_ready_when_all_of_it_is(predictor: Predictor, ready_if: Ready, closed_port: int) -> None:
    assert await ready_if(predictor.probe(), probes.tcp_probe(predictor.port)).check()
    checked = ready_if(predictor.probe(), probes.tcp_probe(closed_port))
    assert not await checked.check()
    assert checked.last_error.startswith("tcpSocket")
    assert "httpGet" not in checked.last_error


async def test_every_failure_of_a_list_is_named(predictor: Predictor, ready_if: Ready) -> None:
    predictor.status = 503
    checked = ready_if(predictor.probe("/a"), predictor.probe("/b"))
    assert not await checked.check()
    assert "/a: answered 503; httpGet" in checked.last_error
    assert checked.last_error.endswith("/b: answered 503")


@pytest.mark.looptime
async def test_probes_of_a_list_run_side_by_side(predictor: Predictor, ready_if: Ready, looptime: float) -> None:
    predictor.gate.clear()
    await ready_if(predictor.probe(timeout=5.0), predictor.probe(timeout=5.0)).check()
    assert 5 <= looptime < 6


async def test_before_the_first_check_it_says_that_nobody_asked(ready_if: Ready) -> None:
    assert ready_if().last_error == "the predictor was not asked yet"


async def test_nothing_is_asked_unless_somebody_asks(predictor: Predictor, ready_if: Ready) -> None:
    before = asyncio.all_tasks()
    ready_if(predictor.probe())
    assert asyncio.all_tasks() == before
    assert predictor.requests == []


async def test_callers_that_come_together_share_one_check(predictor: Predictor, ready_if: Ready) -> None:
    checked = ready_if(predictor.probe())
    assert await asyncio.gather(*(checked.check() for _ in range(20))) == [True] * 20
    assert len(predictor.requests) == 1


@pytest.mark.parametrize("status", [200, 503])
async def test_a_result_is_reused_for_a_second(
    predictor: Predictor, ready_if: Ready, clock: Clock, status: int
) -> None:
    predictor.status = status
    checked = ready_if(predictor.probe())
    first = await checked.check()
    predictor.status = 703 - status
    clock.now += 0.99
    assert await checked.check() is first
    assert len(predictor.requests) == 1
    clock.now += 0.01
    assert await checked.check() is not first
    assert len(predictor.requests) == 2


async def test_a_caller_that_leaves_does_not_disturb_the_others(predictor: Predictor, ready_if: Ready) -> None:
    predictor.gate.clear()
    checked = ready_if(predictor.probe())
    leaver, stayer = asyncio.create_task(checked.check()), asyncio.create_task(checked.check())
    await predictor.asked.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    predictor.gate.set()
    assert await stayer


@pytest.mark.looptime
async def test_closing_ends_a_check_that_is_under_way_at_once(
    predictor: Predictor, ready_if: Ready, looptime: float
) -> None:
    predictor.gate.clear()
    checked = ready_if(predictor.probe(timeout=60.0))
    waiting = asyncio.create_task(checked.check())
    await predictor.asked.wait()
    await checked.close()
    assert not await waiting
    assert looptime < 1


async def test_each_probe_has_a_connection_of_its_own(predictor: Predictor, ready_if: Ready, clock: Clock) -> None:
    checked = ready_if(predictor.probe())
    for _ in range(3):
        assert await checked.check()
        clock.now += 1
    assert len(predictor.requests) == len(predictor.connections) == 3


async def test_each_change_is_told_once(
    predictor: Predictor, ready_if: Ready, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidecar.upstream.readiness")
    checked = ready_if(predictor.probe())
    for status in (503, 503, 200, 200, 503, 404, 503, 200):
        predictor.status = status
        await checked.check()
        clock.now += 1
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("sidecar")]
    ready = ("INFO", "the predictor is ready")
    assert told == [ready, ("WARNING", "the predictor is not ready any more"), ready]
