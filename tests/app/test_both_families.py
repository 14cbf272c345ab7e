"""Callers over IPv4 and over IPv6 find every port of a sidecar, and so they do where there is no IPv4 outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests import loopback
from tests.app.fake_predictor import FakePredictor

URLS = ("127.0.0.1", "[::1]")
PREDICT = "/v1/models/m:predict"

# A network of its own with an address of IPv6 and none of IPv4, but for the loopback interface's, as in a pod of a
# cluster with IPv6 only.
_NETWORK = "ip link set lo up && ip -6 addr add fd00::9/128 dev lo nodad"
_CALLS = """
import json, subprocess, sys, time, urllib.request
sidecar = ["carpool_sidecar", "--component-port=18080", "--port=18081", "--admin-port=18082"]
modules = [["carpool_predictor", "--models=echo", "--port=18080"], sidecar]
programs = [subprocess.Popen([sys.executable, "-m", *words]) for words in modules]
try:
    for _ in range(300):
        try:
            for address in ("[fd00::9]:18080/healthz", "[fd00::9]:18082/readyz"):  # the model, then the sidecar
                urllib.request.urlopen(f"http://{address}", timeout=5).read()
            break
        except OSError:
            time.sleep(0.1)
    body = json.dumps({"instances": [[1, 2]]}).encode()
    with urllib.request.urlopen("http://[fd00::9]:18081/v1/models/echo:predict", body, timeout=10) as answer:
        print(answer.status, json.loads(answer.read())["predictions"])
finally:
    for each in programs:
        each.terminate()
    for each in programs:
        each.wait()
"""


@pytest.fixture(autouse=True)
def ipv6() -> None:
    if not loopback.has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address")


async def test_the_data_port_and_the_admin_port_answer_callers_of_both_families(
    sidecar_of: Callable[..., Awaitable[Any]],
) -> None:
    bench = await sidecar_of(host="::", admin_host="::", max_latency=1)
    for host in URLS:
        url = f"http://{host}:{bench.sidecar.settings.port}{PREDICT}"
        async with bench.client.post(url, data=b'{"instances": [1]}') as response:
            assert response.status == 200
        async with bench.client.get(f"http://{host}:{bench.sidecar.settings.admin_port}/livez") as response:
            assert response.status == 200


async def test_callers_from_within_the_pod_may_change_settings_over_both_families(
    sidecar_of: Callable[..., Awaitable[Any]],
) -> None:
    bench = await sidecar_of(host="::", admin_host="::")
    for host in URLS:
        url = f"http://{host}:{bench.sidecar.settings.admin_port}/config"
        async with bench.client.patch(url, json={"max_batch_size": 3}) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", ["/v1/models/m", "/passed/through"])
@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")])
async def test_the_predictor_is_told_a_callers_address_as_the_caller_knows_it(
    sidecar_of: Callable[..., Awaitable[Any]], predictor: FakePredictor, path: str, host: str, told: str
) -> None:
    bench = await sidecar_of(host="::")
    async with bench.client.get(f"http://{host}:{bench.sidecar.settings.port}{path}") as response:
        await response.read()
    assert predictor.seen[-1].headers["X-Forwarded-For"] == told


async def test_a_predictor_that_listens_over_ipv6_only_is_reached_at_its_address(
    sidecar_of: Callable[..., Awaitable[Any]], predictor: FakePredictor
) -> None:
    server = web.ServerRunner(web.Server(predictor.handle), shutdown_timeout=0.1)
    await server.setup()
    port = loopback.free_port()
    await web.TCPSite(server, "::1", port).start()
    bench = await sidecar_of(component_host="::1", component_port=port, max_latency=1)
    for path in (PREDICT, "/passed/through"):
        async with bench.client.post(
            f"http://127.0.0.1:{bench.sidecar.settings.port}{path}", data=b'{"instances": [1]}'
        ) as response:
            assert response.status == 200
    await server.cleanup()


def test_a_sidecar_and_its_predictor_answer_in_a_network_of_ipv6_only() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "sh", "-c", _NETWORK], capture_output=True).returncode:
        pytest.skip("this user may make no network namespace with an address of IPv6")
    command = [unshare, "-rn", "sh", "-c", f'{_NETWORK} && exec "$0" -c "$1"', sys.executable, _CALLS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.stdout == "200 [[1, 2]]\n", done.stderr[-2000:]
