"""What service meshes make of a pod: Istio with a native sidecar, Linkerd with a proxy in front of all containers."""

from __future__ import annotations

import copy
from typing import Any

from tests.injector import pods

Object = dict[str, Any]

ISTIO = "istio-proxy"


def with_istio(pod: Object, first: bool = True) -> Object:
    """The same pod with Istio's native sidecar, before its other init containers or after them.

    Its resources leave a pod's quality of service as it was.
    """
    same = {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}
    proxy = {
        "name": ISTIO,
        "image": "docker.io/istio/proxyv2:1.27.1",
        "args": ["proxy", "sidecar", "--domain", "$(POD_NAMESPACE).svc.cluster.local"],
        "restartPolicy": "Always",
        "resources": same,
        "ports": [{"name": "http-envoy-prom", "containerPort": 15090, "protocol": "TCP"}],
        "startupProbe": {
            "httpGet": {"path": "/healthz/ready", "port": 15021},
            "periodSeconds": 1,
            "failureThreshold": 600,
        },
        "securityContext": {**copy.deepcopy(pods.SECURITY), "runAsUser": 1337, "readOnlyRootFilesystem": True},
    }
    setup = {
        "name": "istio-init",
        "image": "docker.io/istio/proxyv2:1.27.1",
        "resources": same,
        "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}, "runAsUser": 0, "runAsNonRoot": False},
    }
    result, proxy, setup = copy.deepcopy((pod, proxy, setup))
    others = result["spec"].get("initContainers") or []
    result["spec"]["initContainers"] = [setup, proxy, *others] if first else [*others, setup, proxy]
    annotations = result["metadata"].setdefault("annotations", {})
    annotations["sidecar.istio.io/status"] = '{"initContainers":["istio-init","istio-proxy"],"containers":null}'
    return result


def with_linkerd(pod: Object) -> Object:
    """The same pod with Linkerd's proxy as it was before native sidecars: first of the containers."""
    proxy = {
        "name": "linkerd-proxy",
        "image": "cr.l5d.io/linkerd/proxy:edge-25.8.1",
        "ports": [{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}],
        "env": [{"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 4191}, "initialDelaySeconds": 2},
        "lifecycle": {"postStart": {"exec": {"command": ["/usr/lib/linkerd/linkerd-await", "--timeout=2m"]}}},
        "securityContext": {**copy.deepcopy(pods.SECURITY), "runAsUser": 2102, "readOnlyRootFilesystem": True},
    }
    setup = {
        "name": "linkerd-init",
        "image": "cr.l5d.io/linkerd/proxy-init:v2.4.3",
        "args": ["--incoming-proxy-port", "4143"],
    }
    result = copy.deepcopy(pod)
    result["spec"]["containers"].insert(0, proxy)
    result["spec"]["initContainers"] = [*(result["spec"].get("initContainers") or []), setup]
    result["metadata"].setdefault("annotations", {})["linkerd.io/created-by"] = "linkerd/proxy-injector edge-25.8.1"
    return result
