"""Mode policy on a real API server: what it makes of a pod is what the webhook makes of it, or nothing at all."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.charts import releases
from e2e.cluster import client, control_plane, processes
from e2e.injector import manifests, steps
from tests.injector import pods

Object = client.Object
SETTLED_SECONDS = 20.0
ASKS = {"carpool.dev/takeover": "named-port"}
VALUES = {
    "imagePullSecrets": ["registry"], "defaults": {"log-level": "debug", "max-batch-size": "8"},
    # No limit of CPU; in a Guaranteed pod more CPU and less memory than its defaults, which these bound.
    "resources": {"requests": {"cpu": "600m"}, "limits": {"cpu": None, "memory": "256Mi"}},
}  # fmt: skip
# What another installation, or another pod, would have in these places.
_DIFFERS = (("metadata", "name"), ("metadata", "namespace"), *(("metadata", each) for each in manifests.SERVERS_OWN))
_numbers = itertools.count(1)


def app(**members: Any) -> Object:
    """A model server of somebody's own with a port that has a name."""
    ports = [{"name": "http", "containerPort": 8000}]
    return {"name": "app", "image": "ghcr.io/acme/scorer:2.3", "ports": ports, **members}


def probe(action: Object, **members: Any) -> Object:
    return {**action, "periodSeconds": 7, **members}


HTTP = {"httpGet": {"path": "/healthz?full=1&x=a%20b", "port": "http"}}
GUARANTEED = {"limits": {"cpu": "2", "memory": "4Gi"}}
TWO = [app(), {"name": "cache", "image": "redis:7", "ports": [{"name": "redis", "containerPort": 6379}]}]
SETTINGS = {
    "max-batch-size": "64", "max-latency": "2.5", "timeout": "30", "policy": "window", "slo": "100",
    "max-in-flight": "3", "max-batch-bytes": "0", "small-batch-threshold": "4", "priority-ageing": "100",
    "max-queue-instances": "512", "kserve-errors": "true", "server-timing": "false", "keep-alive": "75",
    "head-timeout": "10", "max-connections": "99", "connect-timeout": "3", "unknown-models": "pass",
    "predictor-health-path": "/v2/health/ready", "log-level": "info",
    "log-format": "json",
}  # fmt: skip


def settings(**given: str) -> dict[str, str]:
    return ASKS | {f"carpool.dev/{key.replace('_', '-')}": value for key, value in given.items()}


def asking(*containers: Object, annotations: dict[str, str] = ASKS, **members: Any) -> Object:
    return pods.plain(*(containers or (app(),)), annotations=annotations, **members)


DONE: dict[str, Object] = {
    "plain": asking(),
    "by annotation": asking(labels={}, annotations={**ASKS, **pods.OPT_IN}),
    "with a probe": asking(app(readinessProbe=probe(HTTP), livenessProbe=probe(HTTP), startupProbe=probe(HTTP))),
    "with a probe by number": asking(app(readinessProbe=probe({"tcpSocket": {"port": 8000}}, timeoutSeconds=9))),
    "with a probe of another port": asking(
        app(ports=[{"name": "http", "containerPort": 8000}, {"name": "health", "containerPort": 8001}],
            readinessProbe=probe({"httpGet": {"port": "health"}})),
        annotations=settings(port="http"),
    ),
    "with a command as probe": asking(app(readinessProbe=probe({"exec": {"command": ["true"]}}))),
    "with hooks": asking(app(lifecycle={"postStart": HTTP, "preStop": {"exec": {"command": ["sleep", "5"]}}})),
    "with a hook": asking(app(lifecycle={"postStart": HTTP})),
    "with other init containers": asking(initContainers=[{"name": "fetch", "image": "busybox"}]),
    "with volumes": asking(volumes=[{"name": "models", "emptyDir": {}}]),
    "with pull secrets": asking(imagePullSecrets=[{"name": "own"}]),
    "with the admin's pull secret": asking(imagePullSecrets=[{"name": "registry"}]),
    "with more time": asking(terminationGracePeriodSeconds=300),
    "with little time": asking(terminationGracePeriodSeconds=20),
    "of root": asking(securityContext={"runAsUser": 0}),
    "guaranteed": asking(app(resources=GUARANTEED)),
    "burstable": asking(app(resources={**GUARANTEED, "requests": {"cpu": "1500m", "memory": "4Gi"}})),
    "guaranteed in other words": asking(
        app(resources={**GUARANTEED, "requests": {"cpu": "2000m", "memory": "4096Mi"}})
    ),
    "a job's": asking(restartPolicy="Never"),
    "of two containers": asking(*TWO, annotations=settings(container="app")),
    "by the port's number": asking(annotations=settings(port="8000")),
    "a server with words": asking(app(command=["uvicorn"], args=["main:app", "--host=0.0.0.0", "--port=8000"])),
    "with all settings": asking(annotations=settings(**SETTINGS)),
    "that says native": asking(annotations=settings(sidecar_mode="native")),
    "with a host's port": asking(app(ports=[{"name": "http", "containerPort": 8000, "hostPort": 8000}])),
}  # fmt: skip
# What the webhook decides by more than a policy can know: such a pod is left as it is.
LEFT: dict[str, Object] = {
    "does not ask": asking(labels={"carpool.dev/inject": "false"}),
    "does not say how": asking(annotations={"carpool.dev/max-batch-size": "4"}),
    "is KServe's": pods.kserve(pods.custom(), annotations=ASKS),
    "has a port without a name": asking(app(ports=[{"containerPort": 8000}])),
    "has two ports": asking(app(ports=[{"name": "http", "containerPort": 1}, {"name": "other", "containerPort": 2}])),
    "has no port": asking(app(ports=[])),
    "has two containers": asking(*TWO),
    "speaks gRPC": asking(app(ports=[{"name": "grpc-web", "containerPort": 8000}])),
    "is probed by gRPC": asking(app(readinessProbe=probe({"grpc": {"port": 8000}}))),
    "is probed by a command for gRPC": asking(
        app(readinessProbe=probe({"exec": {"command": ["/bin/grpc_health_probe", "-addr=:8000"]}}))
    ),
    "shares its port's name": asking(
        app(), {"name": "helper", "image": "busybox", "ports": [{"name": "http", "containerPort": 9000}]},
        annotations=settings(container="app"),
    ),
    "has a command with the sidecar's port": asking(
        app(livenessProbe=probe({"exec": {"command": ["curl", "localhost:9081"]}}))
    ),
    "is probed by TLS": asking(app(readinessProbe=probe({"httpGet": {"port": 8000, "scheme": "HTTPS"}}))),
    "is probed with headers": asking(
        app(readinessProbe=probe({"httpGet": {"port": 8000, "httpHeaders": [{"name": "a", "value": "b"}]}}))
    ),
    "listens for itself": asking(app(args=["--host=127.0.0.1"])),
    "has a certificate": asking(app(args=["--ssl-keyfile=/k"])),
    "is Triton": asking(app(command=["tritonserver"])),
    "is on the node's network": asking(
        app(ports=[{"name": "http", "containerPort": 8000, "hostPort": 8000}]), hostNetwork=True
    ),
    "uses the sidecar's port": asking(app(env=[{"name": "METRICS_PORT", "value": "9081"}])),
    "has no time": asking(terminationGracePeriodSeconds=5),
    "has another's setting": asking(annotations=settings(grpc_port="off")),
    "has a setting that is none": asking(annotations=settings(max_batch_size="many")),
    "has a setting that is too long": asking(annotations=settings(max_batch_size="1\n")),
    "has settings that contradict each other": asking(annotations=settings(max_latency="9000", timeout="5")),
    "wants an ordinary container": asking(annotations=settings(sidecar_mode="classic")),
    "has a container of the name": asking(
        app(), {"name": "carpool", "image": "x"}, annotations=settings(container="app")
    ),
    "has a mesh's proxy": asking(
        app(), {"name": "istio-proxy", "image": "x"}, annotations=settings(container="app")
    ),
    "has Kuma's proxy": asking(
        app(), {"name": "kuma-sidecar", "image": "x"}, annotations=settings(container="app")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(
    admin: client.Client, plane: control_plane.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A namespace for each mode, with one configuration; "neither" has no injector at all."""
    if not plane.mutating_policies:
        pytest.skip(f"mode policy needs Kubernetes 1.34, and this is {plane.version}")
    folder = tmp_path_factory.mktemp("policy")
    file = folder / "values.json"
    file.write_text(json.dumps({"config": VALUES}))
    with contextlib.ExitStack() as stack:
        spaces = {"neither": steps.create_namespace(admin, "policy-neither", {})}
        for mode in ("webhook", "policy"):
            release = releases.Release(admin, plane, mode[:3], folder)
            stack.callback(release.uninstall)
            release.install("--values", str(file), "--set", f"mode={mode}")
            spaces[mode] = steps.create_namespace(admin, f"policy-{mode}", release.labels)
            if mode == "webhook":
                stack.callback(release.stop)
                release.call_at(release.start_injector())
        for mode in ("webhook", "policy"):
            processes.eventually(
                lambda mode=mode: manifests.has_sidecar(create(admin, DONE["plain"], spaces[mode])),
                SETTLED_SECONDS, f"mode {mode} is in force",
            )  # fmt: skip
        yield spaces
        for name in spaces.values():
            admin.delete("Namespace", name)


def create(admin: client.Client, pod: Object, namespace: str) -> Object:
    """What the API server would store."""
    made = copy.deepcopy(pod)
    made["metadata"].pop("generateName", None)
    made["metadata"] |= {"name": f"p{next(_numbers)}", "namespace": namespace}
    return admin.create(made, dry_run=True).object


def comparable(stored: Object) -> Object:
    """The pod without what differs from one creation to the next, or between configurations."""
    text = re.sub(r"kube-api-access-\w+", "kube-api-access", json.dumps(stored))
    found: Object = json.loads(text)
    for group, key in _DIFFERS:
        found[group].pop(key, None)
    found.pop("status", None)
    annotations = found["metadata"].get("annotations", {})
    if manifests.STATUS in annotations:
        annotations[manifests.STATUS] = {**json.loads(annotations[manifests.STATUS]), "config": "…"}
    return found


@pytest.mark.parametrize("case", DONE)
def test_the_policy_makes_of_a_pod_what_the_webhook_makes_of_it(
    admin: client.Client, installed: dict[str, str], case: str
) -> None:
    by_webhook, by_policy = (create(admin, DONE[case], installed[mode]) for mode in ("webhook", "policy"))
    assert manifests.has_sidecar(by_webhook)
    assert comparable(by_policy) == comparable(by_webhook)


@pytest.mark.parametrize("case", LEFT)
def test_a_pod_for_which_that_is_not_certain_is_left_as_it_is(
    admin: client.Client, installed: dict[str, str], case: str
) -> None:
    untouched, by_policy = (create(admin, LEFT[case], installed[mode]) for mode in ("neither", "policy"))
    assert comparable(by_policy) == comparable(untouched)


def test_who_applies_a_workload_that_the_policy_cannot_help_is_told(
    admin: client.Client, installed: dict[str, str]
) -> None:
    def warnings(pod: Object, kind: str = "") -> str:
        thing = (
            manifests.workload(kind, installed["policy"], pod)
            if kind
            else manifests.placed(dict(pod), installed["policy"])
        )
        return " ".join(admin.create(copy.deepcopy(thing), dry_run=True).warnings)

    for kind in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"):
        assert "takeover: named-port" in warnings(LEFT["does not say how"], kind)
        assert "no sidecar" not in warnings(DONE["plain"], kind)
        assert "no sidecar" not in warnings(LEFT["does not ask"], kind)
    assert "mode policy does not decide" in warnings(copy.deepcopy(LEFT["is Triton"]))
    assert "no sidecar" not in warnings(copy.deepcopy(DONE["plain"]))


def test_without_its_parameters_the_policy_lets_pods_through_as_they_are(
    admin: client.Client, installed: dict[str, str]
) -> None:
    name, space = "pol-carpool-injector-policy", "pol-system"
    kept = admin.get("ConfigMap", name, space)
    admin.delete("ConfigMap", name, space)
    try:
        processes.eventually(
            lambda: not manifests.has_sidecar(create(admin, DONE["plain"], installed["policy"])),
            SETTLED_SECONDS, "the policy has no parameters",
        )  # fmt: skip
    finally:
        kept["metadata"].pop("resourceVersion")
        admin.create(kept)
    processes.eventually(
        lambda: manifests.has_sidecar(create(admin, DONE["plain"], installed["policy"])), SETTLED_SECONDS, "it has them"
    )


@pytest.mark.parametrize("mode", ["webhook", "policy"])
def test_a_sidecars_resources_are_changed_in_place(admin: client.Client, installed: dict[str, str], mode: str) -> None:
    """Without a resizePolicy a container is not restarted for that (NotRequired is the API's default)."""
    pod = manifests.placed(copy.deepcopy(DONE["burstable"]), installed[mode])
    stored = admin.create(pod).object
    assert "resizePolicy" not in manifests.sidecar(stored)
    more = {"requests": {"cpu": "200m"}, "limits": {"cpu": "2"}}
    change = {"spec": {"initContainers": [{"name": manifests.SIDECAR, "resources": more}]}}
    path = client.path_of("Pod", installed[mode], stored["metadata"]["name"])
    resized = admin.call("PATCH", f"{path}/resize", change, "application/strategic-merge-patch+json").object
    assert manifests.sidecar(resized)["resources"]["limits"]["cpu"] == "2"
    assert manifests.status(resized) == manifests.status(stored)
