"""The rules that injected pods are held to find what they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.injector import api_defaults, pod_rules, pods

Object = dict[str, Any]


def _sidecar(**members: Any) -> Object:
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"name": "sidecar", "image": "x:1", "securityContext": context, **members}


FAULTS: dict[str, Callable[[Object], Any]] = {
    "duplicate container name": lambda pod: pod["spec"].update(initContainers=[_sidecar(name="model")]),
    "duplicate port name": lambda pod: pod["spec"]["containers"][0].update(
        ports=[{"name": "http", "containerPort": 1}, {"name": "http", "containerPort": 2}]
    ),
    "port name 'far-too-long-a-name'": lambda pod: pod["spec"]["containers"][0].update(
        ports=[{"name": "far-too-long-a-name", "containerPort": 1}]
    ),
    "port 70000": lambda pod: pod["spec"]["containers"][0].update(ports=[{"containerPort": 70000}]),
    "names port 'http'": lambda pod: pod["spec"]["containers"][0].update(livenessProbe={"tcpSocket": {"port": "http"}}),
    "which is no volume": lambda pod: pod["spec"]["containers"][0].update(
        volumeMounts=[{"name": "gone", "mountPath": "/x"}]
    ),
    "on an init container that is no sidecar": lambda pod: pod["spec"].update(
        initContainers=[_sidecar(readinessProbe={"tcpSocket": {"port": 1}})]
    ),
    "is for init containers": lambda pod: pod["spec"]["containers"][0].update(restartPolicy="Always"),
    "has 2 handlers": lambda pod: pod["spec"]["containers"][0].update(
        livenessProbe={"tcpSocket": {"port": 1}, "exec": {"command": ["x"]}}
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_api_server_would_refuse_is_found(fault: str) -> None:
    pod = pods.plain(pods.sklearn(name="model"))
    assert pod_rules.invalid(pod) == []
    FAULTS[fault](pod)
    assert any(fault in problem for problem in pod_rules.invalid(pod))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("securityContext", {}),
        ("securityContext", None),
        ("ports", [{"containerPort": 1, "hostPort": 1}]),
        ("livenessProbe", {"httpGet": {"port": 1, "host": "127.0.0.1"}}),
        ("volumeMounts", [{"name": "node", "mountPath": "/node"}]),
    ],
)
def test_what_restricted_pod_security_refuses_is_found(member: str, value: Any) -> None:
    pod = pods.plain(pods.sklearn(), volumes=[{"name": "node", "hostPath": {"path": "/"}}])
    assert pod_rules.not_restricted(pod, _sidecar()) == []
    assert pod_rules.not_restricted(pod, _sidecar(**{member: value})) != []


def test_members_that_a_kubernetes_version_does_not_know_are_found() -> None:
    pod = pods.plain(pods.sklearn(), initContainers=[_sidecar(restartPolicy="Always")])
    assert pod_rules.off_schema(pod, "1.29") == []
    assert pod_rules.off_schema(pod, "1.27") != []


@pytest.mark.parametrize(
    ("written", "canonical"),
    [("1024Mi", "1Gi"), ("0.1", "100m"), ("1000m", "1"), ("1500Mi", "1500Mi"), ("1500000k", "1500M"), ("0", "0")],
)
def test_quantities_are_written_back_as_kubernetes_does(written: str, canonical: str) -> None:
    assert api_defaults.canonical(written) == canonical
