"""What service meshes make of a pod: Istio, Linkerd with a proxy in front of all containers, Kuma and Consul."""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.injector import api_defaults, istio_model, kserve_model, pods

Object = dict[str, Any]

ISTIO = istio_model.PROXY
# Equal requests and limits leave a pod's quality of service as it was.
_GUARANTEED = {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}


def with_istio(pod: Object) -> Object:
    """The same pod with Istio's native sidecar, which answers for the kubelet."""
    return istio_model.mutate(pod, istio_model.Settings(resources=_GUARANTEED))


def with_classic_istio(pod: Object) -> Object:
    """The same pod with Istio's proxy as an ordinary container."""
    return istio_model.mutate(pod, istio_model.Settings(native=False, resources=_GUARANTEED))


def with_linkerd(pod: Object, policy: str = "all-unauthenticated") -> Object:
    """The same pod with Linkerd's proxy as it was before native sidecars: first of the containers."""
    proxy = {
        "name": "linkerd-proxy",
        "image": "cr.l5d.io/linkerd/proxy:edge-25.8.1",
        "ports": [{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}],
        "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
            {"name": "LINKERD2_PROXY_INBOUND_DEFAULT_POLICY", "value": policy},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 4191}, "initialDelaySeconds": 2},
        "lifecycle": {"postStart": {"exec": {"command": ["/usr/lib/linkerd/linkerd-await", "--timeout=2m"]}}},
        "securityContext": {**copy.deepcopy(pods.SECURITY), "runAsUser": 2102, "readOnlyRootFilesystem": True},
    }
    setup = {
        "name": "linkerd-init",
        "image": "cr.l5d.io/linkerd/proxy-init:v2.4.3",
        "args": ["--incoming-proxy-port", "4143"],
    }
    result = api_defaults.copied(pod)
    result["spec"]["containers"].insert(0, proxy)
    result["spec"]["initContainers"] = [*(result["spec"].get("initContainers") or []), setup]
    result["metadata"].setdefault("annotations", {})["linkerd.io/created-by"] = "linkerd/proxy-injector edge-25.8.1"
    return result


def with_kuma(pod: Object, native: bool = True, port: int = 9001) -> Object:
    """The same pod with Kuma's proxy, which answers probes on `port` (pkg/plugins/runtime/k8s of kumahq/kuma)."""
    result = api_defaults.copied(pod)
    spec = result["spec"]
    initial = spec.get("initContainers") or []
    for container in [*(each for each in initial if each.get("restartPolicy") == "Always"), *spec["containers"]]:
        names = {entry["name"]: entry["containerPort"] for entry in container.get("ports") or () if "name" in entry}
        for member in ("readinessProbe", "livenessProbe", "startupProbe"):
            if container.get(member):
                _ask_kuma(container[member], names, port)
    proxy: Object = {
        "name": "kuma-sidecar",
        "image": "docker.io/kumahq/kuma-dp:2.11.0",
        "args": ["run", "--log-level=info"],
        "env": [{"name": "KUMA_DATAPLANE_RUNTIME_TOKEN_PATH", "value": "/var/run/secrets/kuma.io/token"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 9902}},
        "securityContext": {**copy.deepcopy(pods.SECURITY), "runAsUser": 5678},
        "resources": copy.deepcopy(_GUARANTEED),
    }
    setup = {"name": "kuma-init", "image": "docker.io/kumahq/kuma-init:2.11.0", "resources": copy.deepcopy(_GUARANTEED)}
    if native:
        spec["initContainers"] = [setup, {**proxy, "restartPolicy": "Always"}, *initial]
    else:
        spec["initContainers"] = [*initial, setup]
        spec["containers"].append(proxy)
    annotations = result["metadata"].setdefault("annotations", {})
    annotations |= {"kuma.io/sidecar-injected": "true", "kuma.io/application-probe-proxy-port": str(port)}
    return result


def _ask_kuma(probe: Object, names: Object, port: int) -> None:
    kind = next((kind for kind in ("httpGet", "tcpSocket", "grpc") if kind in probe), None)
    if kind is None:
        return
    action = probe.pop(kind)
    number = names.get(action["port"], action["port"])
    headers = [dict(each) for each in action.get("httpHeaders") or ()]
    for each in headers:
        each["name"] = "X-Kuma-Probes-Host" if each["name"] == "Host" else each["name"]
    if action.get("scheme", "HTTP") != "HTTP":
        headers.append({"name": "X-Kuma-Probes-Scheme", "value": action["scheme"]})
    if probe.get("timeoutSeconds", 1) > 1:
        headers.append({"name": "X-Kuma-Probes-Timeout", "value": str(probe["timeoutSeconds"])})
    if action.get("service"):
        headers.append({"name": "X-Kuma-Probes-GRPC-Service", "value": action["service"]})
    path = f"/{number}{action.get('path') or '/'}" if kind == "httpGet" else f"/{kind.removesuffix('Socket')}/{number}"
    probe["httpGet"] = {"path": path, "port": port, **({"httpHeaders": headers} if headers else {})}


def with_consul(pod: Object, excluded: tuple[str, ...] = ()) -> Object:
    """The same pod behind Consul's transparent proxy (control-plane/connect-inject of hashicorp/consul-k8s)."""
    result = api_defaults.copied(pod)
    redirection = json.dumps({"ProxyInboundPort": 20000, "ExcludeInboundPorts": ["20300", *excluded]})
    setup = {
        "name": "consul-connect-inject-init",
        "image": "hashicorp/consul-k8s-control-plane:1.8.0",
        "env": [{"name": "CONSUL_REDIRECT_TRAFFIC_CONFIG", "value": redirection}],
    }
    proxy = {"name": "consul-dataplane", "image": "hashicorp/consul-dataplane:1.8.0", "restartPolicy": "Always"}
    result["spec"]["initContainers"] = [setup, proxy, *(result["spec"].get("initContainers") or [])]
    result["metadata"].setdefault("annotations", {})["consul.hashicorp.com/connect-inject-status"] = "injected"
    return result


ALL = (with_istio, with_classic_istio, with_linkerd, with_kuma)
"""Those beside which a sidecar works without a word from the pod's owner."""


def _with_wide_istio(pod: Object) -> Object:
    """Istio's proxy with requests below its limits, which ends the class Guaranteed."""
    wide = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    return istio_model.mutate(pod, istio_model.Settings(resources=wide))


OTHERS = (kserve_model.mutate, with_istio, _with_wide_istio, with_linkerd, with_kuma)
"""Other webhooks that may come after the injector."""
