"""Where a Service sends its callers once the sidecar is in the pod, as the cluster's own controller computes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from carpool_injector.diagnosis import callers
from e2e.cluster import client, processes
from e2e.injector import manifests
from tests.injector import pods, test_diagnosis

SECONDS = 30.0
NODE = "somewhere"


@pytest.fixture(scope="module", autouse=True)
def _node(admin: client.Client) -> Iterator[None]:
    """A node in name only: pods without one are in nobody's endpoints."""
    admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    yield
    admin.delete("Node", NODE)


def running_pod(admin: client.Client, namespace: str, *servers: client.Object, **annotations: str) -> client.Object:
    """A pod that runs, is ready and has an address, as a kubelet would tell."""
    stored = admin.create(manifests.pod(namespace, *servers, annotations=annotations, nodeName=NODE)).object
    status = {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    path = client.path_of("Pod", namespace, stored["metadata"]["name"]) + "/status"
    return admin.call("PATCH", path, {"status": status}, "application/merge-patch+json").object


def endpoints_port(admin: client.Client, stored: client.Object, target: str | int) -> int:
    """The port that callers of a new Service with this targetPort reach on the pod."""
    namespace = stored["metadata"]["namespace"]
    spec = {"selector": {"app": stored["metadata"]["labels"]["app"]}, "ports": [{"port": 80, "targetPort": target}]}
    metadata = {"name": "scorer", "namespace": namespace}
    admin.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})

    def ports() -> list[int]:
        slices = admin.list("EndpointSlice", namespace)
        return [port["port"] for each in slices if each.get("endpoints") for port in each.get("ports") or ()]

    processes.eventually(ports, SECONDS, f"the Service finds its targetPort {target!r}")
    [found] = set(ports())
    return found


@pytest.mark.parametrize("target", [8080, "http1"])
def test_callers_of_a_recognised_server_reach_the_sidecar_by_number_and_by_name(
    admin: client.Client, namespace: str, target: str | int
) -> None:
    server = pods.sklearn(ports=[{"name": "http1", "containerPort": 8080}])
    stored = running_pod(admin, namespace, server)
    assert manifests.sidecar_flags(stored)["--port"] == "8080"
    assert endpoints_port(admin, stored, target) == 8080


def test_callers_by_name_reach_the_sidecar_that_took_the_name_over(admin: client.Client, namespace: str) -> None:
    server = pods.custom(ports=[{"name": "http", "containerPort": 7000}])
    stored = running_pod(admin, namespace, server, **{"carpool.dev/takeover": "named-port"})
    assert endpoints_port(admin, stored, "http") == int(manifests.sidecar_flags(stored)["--port"]) != 7000


def test_callers_of_another_port_of_the_pod_go_on_reaching_it(admin: client.Client, namespace: str) -> None:
    server = pods.triton(ports=[{"name": "http", "containerPort": 8080}, {"name": "grpc", "containerPort": 9000}])
    stored = running_pod(admin, namespace, server)
    assert manifests.has_sidecar(stored)
    assert endpoints_port(admin, stored, "grpc") == 9000


def test_a_port_name_of_two_containers_goes_on_meaning_the_first_as_the_pod_gets_no_sidecar(
    admin: client.Client, namespace: str
) -> None:
    """With the sidecar in the pod the name would mean the other container's port: native sidecars come last."""
    server = pods.sklearn(ports=[{"name": "http1", "containerPort": 8080}])
    helper = {"name": "helper", "image": "acme/helper:1", "ports": [{"name": "http1", "containerPort": 7000}]}
    stored = running_pod(admin, namespace, server, helper)
    assert not manifests.has_sidecar(stored)
    assert "port-name-shared" in stored["metadata"]["annotations"]["carpool.dev/status"]
    assert endpoints_port(admin, stored, "http1") == 8080


def test_a_container_before_the_app_that_has_the_name_has_it_still(admin: client.Client, namespace: str) -> None:
    helper = {"name": "helper", "image": "acme/helper:1", "ports": [{"name": "http1", "containerPort": 7000}]}
    server = pods.sklearn(ports=[{"name": "http1", "containerPort": 8080}])
    stored = running_pod(admin, namespace, helper, server)
    assert manifests.has_sidecar(stored)
    assert endpoints_port(admin, stored, "http1") == 7000


@pytest.mark.parametrize(("target", "verdict"), [(7000, "warning"), ("http", "ok")])
def test_check_tells_of_a_service_that_goes_past_the_sidecar(
    admin: client.Client, namespace: str, target: str | int, verdict: str
) -> None:
    server = pods.custom(ports=[{"name": "http", "containerPort": 7000}])
    stored = running_pod(admin, namespace, server, **{"carpool.dev/takeover": "named-port"})
    endpoints_port(admin, stored, target)
    known = dataclasses.replace(
        test_diagnosis.HEALTHY, pods=admin.list("Pod", namespace), slices=admin.list("EndpointSlice", namespace)
    )
    assert [finding.verdict for finding in callers.reached(known)] == [verdict]
