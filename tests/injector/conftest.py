"""The injector's command run in this process, and a Kubernetes client with the API server on loopback it talks to."""

from __future__ import annotations

import pytest

from carpool_injector.api import kube
from tests.injector import command_runs
from tests.injector.fake_api_server import FakeApiServer
from tests.injector.kube_clients import no_pause, write_kubeconfig


@pytest.fixture
def run() -> command_runs.Run:
    return command_runs.run


@pytest.fixture
async def api(aiohttp_server):
    made = FakeApiServer()
    made.server = await aiohttp_server(made.app)
    return made


@pytest.fixture
async def client(api, tmp_path):
    url = str(api.server.make_url("")).rstrip("/")
    made = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", url), sleep=no_pause)
    yield made
    await made.close()
