"""The Kubernetes client finds its way to a cluster, or says why there is none; and what it loads for that."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pytest
from aiohttp import web

from carpool_injector.api import calls, kube
from carpool_injector.certificates import pki, serving_certificate
from tests.injector.fake_api_server import FakeApiServer
from tests.injector.kube_clients import write_kubeconfig


async def test_a_token_and_another_context_of_the_kubeconfig_are_used(api, tmp_path):
    api.token = "t0ken"
    url = str(api.server.make_url("")).rstrip("/")
    path = write_kubeconfig(tmp_path / "config", url, token="t0ken")
    client = await kube.Kube.connect(path)
    assert await client.server_version() == (1, 33)
    await client.close()
    client = await kube.Kube.connect(path, "elsewhere")
    with pytest.raises(calls.Unavailable):
        await client.server_version()
    await client.close()


async def test_in_a_pod_the_service_account_is_used(tmp_path):
    now = datetime.datetime.now(datetime.UTC)
    ca = pki.issue_authority(now)
    tls = serving_certificate.make_context()
    serving_certificate.load_pair(tls, pki.issue_leaf(ca, ("localhost",), now))
    api = FakeApiServer()
    api.token = "from-the-kubelet"
    runner = web.AppRunner(api.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    (tmp_path / "token").write_text("from-the-kubelet")
    (tmp_path / "ca.crt").write_bytes(ca.certificate)
    environment = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(runner.addresses[0][1])}
    client = await kube.Kube.connect(service_account=tmp_path, environment=environment)
    assert await client.server_version() == (1, 33)
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "content", [None, "", "junk: [", "a: b", "current-context: x\ncontexts: []\nclusters: []\nusers: []"]
)
async def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path, content):
    if content is not None:
        (tmp_path / "config").write_text(content)
    with pytest.raises(calls.Unconfigured, match=r"no way to a cluster: .*check --kubeconfig and --context"):
        await kube.Kube.connect(str(tmp_path / "config"))


async def test_no_kubeconfig_and_no_service_account_is_told(tmp_path):
    environment = {"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"}
    with pytest.raises(calls.Unconfigured, match=r"there is no kubeconfig at .*/a:.*/b, and no service account at"):
        await kube.Kube.connect(service_account=tmp_path, environment=environment)


# --- memory --------------------------------------------------------------------------------------------------------


def test_the_synchronous_client_and_its_libraries_are_not_loaded_and_can_be_afterwards():
    program = """if True:
        import sys
        import carpool_injector.api.kube
        assert "kubernetes" not in sys.modules
        unused = {"requests", "urllib3", "oauthlib", "websocket", "kubernetes.client"} & sys.modules.keys()
        assert not unused, unused
        import kubernetes
        assert kubernetes.client.CoreV1Api
        print("fine")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")
