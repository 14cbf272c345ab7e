"""Whether the predictor is ready, asked over real connections by an HTTP request or by connecting to a port."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yarl

from carpool_sidecar.upstream import probes
from tests.upstream.probed import Predictor, Ready


@pytest.fixture
def predictor(probed_predictor: Predictor) -> Predictor:
    return probed_predictor


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
