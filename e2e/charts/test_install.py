"""Helm installs, upgrades and uninstalls the chart in a real API server, and the rights it gives are enough."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent import futures

import pytest

from carpool_injector.core import model
from e2e.charts import releases
from e2e.cluster import client, control_plane, processes
from e2e.injector import installation, manifests, steps
from tests.charts import helm

NewRelease = Callable[[], releases.Release]
SETTLED_SECONDS = 20.0


def test_helm_install_is_accepted_and_the_injector_gets_ready_with_the_rights_it_has(new_release: NewRelease) -> None:
    release = new_release()
    said = release.install("--set", "networkPolicy.enabled=true,dashboard.enabled=true")
    assert "STATUS: deployed" in said
    assert release.secret() == {}
    assert set(release.ca_bundles()) == {None}
    release.start_injector()
    assert {"tls.crt", "tls.key"} <= release.secret().keys()
    assert None not in release.ca_bundles()


@pytest.mark.may_skip("Helm 3 applies on the client's side alone")
@pytest.mark.parametrize("server_side", [True, False])
def test_an_upgrade_leaves_certificates_where_they_are(new_release: NewRelease, server_side: bool) -> None:
    release = new_release()
    way = [f"--server-side={str(server_side).lower()}"]
    if helm.major() == 3:
        if server_side:
            pytest.skip("Helm 3 applies on the client's side alone")
        way = []
    release.install(*way)
    release.start_injector()
    before = (release.secret(), release.ca_bundles())
    release.upgrade(*way, "--set", "replicas=3,webhook.failurePolicy=Fail,webhook.timeoutSeconds=3")
    assert (release.secret(), release.ca_bundles()) == before
    mutating = next(each for each in release.objects() if each["kind"] == installation.WEBHOOKS[0])
    assert {entry["failurePolicy"] for entry in mutating["webhooks"]} == {"Fail"}


def test_uninstalling_leaves_nothing(new_release: NewRelease) -> None:
    release = new_release()
    release.install("--set", "networkPolicy.enabled=true,dashboard.enabled=true")
    release.start_injector()
    assert len(release.left_over()) >= 12
    release.uninstall()
    processes.eventually(lambda: not release.left_over(), SETTLED_SECONDS, "all objects of the release are gone")
    with pytest.raises(client.Refused, match="not found"):
        release.secret()


def test_pods_get_the_sidecar_and_helm_test_has_the_rights_to_see_it(
    new_release: NewRelease,
    new_namespace: steps.NewNamespace,
    admin: client.Client,
    plane: control_plane.ControlPlane,
) -> None:
    release, another = new_release(), new_release()
    namespace = new_namespace(release.labels)
    another.install()
    release.install("--set", f"check.sampleNamespace={namespace}")
    release.call_at(release.start_injector())
    steps.wait_until_effective(admin, namespace)
    stored = admin.create(manifests.pod(namespace)).object
    assert manifests.sidecar(stored)["image"] == "carpool-sidecar:0.1.0"
    for hook in release.hooks():
        if hook["kind"] != "Pod":
            admin.create(hook)
    checked = release.check()
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "gets the sidecar" in checked.stdout
    assert f"another injector, {another.name}-carpool-injector in namespace {another.namespace}" in checked.stdout
    # Where native sidecars cannot always be had that is told, and is all that is.
    is_able = model.Capabilities.of(plane.release, None) == model.Capabilities()
    assert f" {0 if is_able else 1} warning, 0 failed" in checked.stdout


def test_the_install_manifest_is_accepted_and_taken_back_whole(
    tools: None, plane: control_plane.ControlPlane, admin: client.Client
) -> None:
    if not plane.validating_policies:
        pytest.skip(f"install.yaml guards webhook configurations, from Kubernetes 1.30 on, and this is {plane.version}")
    manifest = str(helm.ROOT / "manifests" / "install.yaml")
    try:
        applied = [kubectl(plane, "apply", "--server-side", "-f", manifest) for _ in range(2)]
        assert applied[0] == applied[1]
        assert admin.get("Deployment", "carpool-injector", helm.NAMESPACE)["spec"]["replicas"] == 2
    finally:
        kubectl(plane, "delete", "-f", manifest, "--wait=false")
    with pytest.raises(client.Refused):
        admin.get("MutatingWebhookConfiguration", "zz-carpool-injector")


@pytest.mark.parametrize(
    "sample",
    ["deployment", "gpu", "gpu-mig", "gpu-two-models", "triton", "hpa", "inferenceservice", "inferenceservice-knative"],
)
def test_a_sample_is_accepted(
    tools: None, plane: control_plane.ControlPlane, inference_services: None, sample: str
) -> None:
    path = helm.ROOT / "manifests" / "samples" / f"{sample}.yaml"
    assert "(server dry run)" in kubectl(plane, "apply", "--dry-run=server", "-f", str(path))


def kubectl(plane: control_plane.ControlPlane, *arguments: str) -> str:
    """What kubectl prints. Raises subprocess.CalledProcessError."""
    command = [str(helm.find("kubectl")), f"--kubeconfig={plane.kubeconfig}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("outcome", ["Succeeded", "Failed"])
def test_helm_test_leaves_no_rights_behind_whatever_comes_of_it(
    new_release: NewRelease, admin: client.Client, outcome: str
) -> None:
    release = new_release()
    release.install()
    with futures.ThreadPoolExecutor() as beside:
        said = beside.submit(release.test)
        pod = f"/api/v1/namespaces/{release.namespace}/pods/{release.name}-carpool-check"
        processes.eventually(lambda: has(admin, pod), SETTLED_SECONDS, "the pod of helm test is there")
        # As a kubelet would that has run it.
        admin.call("PATCH", f"{pod}/status", {"status": {"phase": outcome}}, "application/merge-patch+json")
        assert (said.exception() is None) == (outcome == "Succeeded")
    assert [each for each in release.left_over() if "-check" in each] == []


def has(admin: client.Client, path: str) -> bool:
    try:
        admin.call("GET", path)
    except client.Refused:
        return False
    return True
