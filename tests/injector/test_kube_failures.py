"""The Kubernetes client when a call fails or is odd: the failure names the call and the next step."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from carpool_injector.api import calls, kube
from tests.injector.fake_api_server import status
from tests.injector.kube_clients import HANG_UP, write_kubeconfig


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (status(401, "Unauthorized", "Unauthorized"), calls.Forbidden, "does not accept our credentials"),
        (
            status(403, "Forbidden", "cannot get"),
            calls.Forbidden,
            r'a Role .* \[""\], resources: \["secrets"\], verbs: \["get"\]',
        ),
        (status(429, "TooManyRequests", "slow down"), calls.Unavailable, "slow down.*try again later"),
        (status(500, "InternalError", "etcd is away"), calls.Unavailable, "etcd is away"),
        (web.Response(status=502, text="<html>bad gateway"), calls.Unavailable, "<html>bad gateway"),
        (web.Response(status=422), calls.Rejected, "HTTP status 422"),
        (web.Response(text="<html>a login page"), calls.Unavailable, "no answer from the API server"),
        ("hang up", calls.Unavailable, "no answer from the API server.*check that it runs"),
    ],
)
async def test_failures_name_the_call_and_the_next_step(api, client, answer, failure, words):
    api.instead = list(HANG_UP) if answer == "hang up" else [answer]
    with pytest.raises(failure, match=words) as caught:
        await client.read_secret("carpool-system", "certificates")
    assert str(caught.value).startswith("get secrets carpool-system/certificates: ")
    assert isinstance(caught.value, calls.Failure)


async def test_an_api_server_that_is_not_there_is_unavailable(tmp_path):
    client = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))
    with pytest.raises(calls.Unavailable, match="get version: no answer"):
        await client.server_version()
    await client.close()


@pytest.mark.looptime
async def test_an_api_server_that_does_not_answer_is_given_up_after_ten_seconds(tmp_path, looptime):
    async def hold(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}"))
    with pytest.raises(calls.Unavailable, match="get version"):
        await client.server_version()
    assert 10 <= looptime < 12
    await client.close()
    server.close()
    await server.wait_closed()


async def test_odd_names_stay_inside_their_part_of_the_path(api, client):
    await client.read_config_map("a/../b", "c?d")
    assert api.requests[-1].raw_path == "/api/v1/namespaces/a%2F..%2Fb/configmaps/c%3Fd"
