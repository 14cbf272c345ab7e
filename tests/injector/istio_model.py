"""What Istio's pod webhook does to a pod, in Python, as far as it touches containers, their order, probes and hooks.

After pkg/kube/inject of istio/istio (webhook.go, app_probe.go), manifests/charts/istio-control/istio-discovery/files/
injection-template.yaml and the expected outputs of its own tests (pkg/kube/inject/testdata/inject: hello-probes,
tcp-probes, merge-probers, native-sidecar and its variants, status_annotations_zeroport), as of August 2026. Left out:
certificates, volumes, labels of telemetry, Prometheus, and overrides by a container `istio-proxy` in the pod.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

Object = dict[str, Any]

PROXY = "istio-proxy"
PROBERS = "ISTIO_KUBE_APP_PROBERS"
STATUS = "sidecar.istio.io/status"
NAME = "istio-sidecar-injector"
"""What its MutatingWebhookConfiguration is called."""

_IMAGE = "docker.io/istio/proxyv2:1.27.1"
_RESOURCES = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}
_PROBES = {"readinessProbe": "readyz", "livenessProbe": "livez", "startupProbe": "startupz"}
_HOOKS = {"preStop": "prestopz", "postStart": "poststartz"}
_KINDS = ("httpGet", "tcpSocket", "grpc")
_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsGroup": 1337,
    "runAsNonRoot": True,
    "runAsUser": 1337,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The mesh's admin's choices. `cni`: a plugin redirects traffic, and the init container only looks."""

    native: bool = True
    rewrites_probes: bool = True
    cni: bool = False
    status_port: int = 15020
    resources: Object = dataclasses.field(default_factory=lambda: copy.deepcopy(_RESOURCES))


def mutate(pod: Object, settings: Settings | None = None) -> Object:
    """A new pod, as Istio's webhook would return it, the first time or after others have changed it since."""
    settings = settings or Settings()
    result = copy.deepcopy(pod)
    annotations = result["metadata"].setdefault("annotations", {})
    injected_before = STATUS in annotations
    _merge_template(result, settings, annotations)
    if _rewrites(annotations, settings):
        port = int(annotations.get("status.sidecar.istio.io/port", settings.status_port))
        _dump_probers(result, settings.status_port, injected_before)
        _rewrite_probes(result, port)
    group = "initContainers" if settings.native else "containers"
    names = {"initContainers": ["istio-init"], "containers": None, group: [PROXY]}
    names["initContainers"] = ["istio-init", *([PROXY] if settings.native else [])]
    annotations[STATUS] = json.dumps({**names, "revision": "default"}, separators=(",", ":"))
    _reorder(result)
    return result


def _rewrites(annotations: Object, settings: Settings) -> bool:
    chosen = annotations.get("sidecar.istio.io/rewriteAppHTTPProbers")
    return settings.rewrites_probes if chosen is None else chosen == "true"


def _merge_template(pod: Object, settings: Settings, annotations: Object) -> None:
    """The strategic merge: what is there stays, lists are merged by name, the template's values win."""
    spec = pod["spec"]
    setup, proxy = _setup(settings, annotations), _proxy(spec, settings)
    spec["initContainers"] = _merged(spec.get("initContainers") or [], setup)
    if settings.native:
        spec["initContainers"] = _merged(spec["initContainers"], proxy)
    else:
        spec["containers"] = _merged(spec["containers"], proxy)


def _merged(items: list[Object], item: Object) -> list[Object]:
    before = next((each for each in items if each["name"] == item["name"]), None)
    if before is None:
        return [*items, item]
    names = {each["name"] for each in item.get("env", ())}
    env = [*item.get("env", ()), *(each for each in before.get("env", ()) if each["name"] not in names)]
    after = {**before, **item, **({"env": env} if env else {})}
    return [after if each is before else each for each in items]


def _setup(settings: Settings, annotations: Object) -> Object:
    chosen = annotations.get("traffic.sidecar.istio.io/excludeInboundPorts", "")
    excluded = [*(part for part in chosen.split(",") if part), str(settings.status_port)]
    words = ["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", ""]
    words += ["-b", "*", "-d", ",".join(["15090", "15021", *excluded]), "--log_output_level=default:info"]
    setup = {"name": "istio-init", "image": _IMAGE, "args": words, "resources": copy.deepcopy(settings.resources)}
    if settings.cni:
        setup["args"] += ["--run-validation", "--skip-rule-apply"]
        return {**setup, "name": "istio-validation", "securityContext": copy.deepcopy(_SECURITY)}
    capabilities = {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]}
    root = {"readOnlyRootFilesystem": False, "runAsGroup": 0, "runAsNonRoot": False, "runAsUser": 0}
    return {**setup, "securityContext": {**copy.deepcopy(_SECURITY), **root, "capabilities": capabilities}}


def _proxy(spec: Object, settings: Settings) -> Object:
    others = [each for each in spec["containers"] if each["name"] != PROXY]
    ports = [port for each in others for port in each.get("ports") or ()]
    drain = ["pilot-agent", "request", f"--debug-port={settings.status_port}", "POST", "drain"]
    ready = {"httpGet": {"path": "/healthz/ready", "port": 15021}, "timeoutSeconds": 3}
    config = "{}\n" if settings.status_port == 15020 else json.dumps({"statusPort": settings.status_port}) + "\n"
    return {
        "name": PROXY,
        "image": _IMAGE,
        **({"restartPolicy": "Always"} if settings.native else {}),
        "ports": [{"name": "http-envoy-prom", "containerPort": 15090, "protocol": "TCP"}],
        "args": ["proxy", "sidecar", "--domain", "$(POD_NAMESPACE).svc.cluster.local"],
        **({"lifecycle": {"preStop": {"exec": {"command": drain}}}} if settings.native else {}),
        "env": [
            {"name": "PROXY_CONFIG", "value": config},
            {"name": "ISTIO_META_POD_PORTS", "value": json.dumps(ports)},
            {"name": "ISTIO_META_APP_CONTAINERS", "value": ",".join(each["name"] for each in others)},
        ],
        "startupProbe": {**copy.deepcopy(ready), "periodSeconds": 1, "failureThreshold": 600},
        "readinessProbe": {**ready, "periodSeconds": 15, "failureThreshold": 4},
        "securityContext": copy.deepcopy(_SECURITY),
        "resources": copy.deepcopy(settings.resources),
    }


def _dump_probers(pod: Object, status_port: int, injected_before: bool) -> None:
    """`DumpAppProbers` and `mergeOrAppendProbers`: what was there before wins."""
    found: Object = {}
    for container in _containers(pod):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports") or () if port.get("name")}
        for path, handler in _handlers(container):
            prober = _prober(handler, ports, status_port, timeout="/app-health/" in path)
            if prober is not None:
                found[path] = prober
    if not found:
        return
    env = next(each for each in _everything(pod) if each["name"] == PROXY)["env"]
    existing = next((each for each in env if each["name"] == PROBERS), None)
    if existing is None or not injected_before:
        env.append({"name": PROBERS, "value": _dumped(found)})
    else:
        existing["value"] = _dumped({**found, **json.loads(existing["value"])})


def _prober(handler: Object, ports: Object, status_port: int, timeout: bool) -> Object | None:
    for kind in _KINDS:
        if handler.get(kind) is None or (kind == "grpc" and not timeout):
            continue
        action = copy.deepcopy(handler[kind])
        if isinstance(action["port"], str):
            if action["port"] not in ports:
                return None
            action["port"] = ports[action["port"]]
        elif action["port"] == status_port and kind != "grpc":
            return None
        seconds = {"timeoutSeconds": handler["timeoutSeconds"]} if timeout and handler.get("timeoutSeconds") else {}
        return {kind: action, **seconds}
    return None


def _dumped(probers: Object) -> str:
    return json.dumps(dict(sorted(probers.items())), separators=(",", ":"))


def _rewrite_probes(pod: Object, status_port: int) -> None:
    """`patchRewriteProbe`; the kubelet's own scheme ends at the agent."""
    for container in _containers(pod):
        for path, handler in _handlers(container):
            kinds = _KINDS if "/app-health/" in path else _KINDS[:2]
            kind = next((kind for kind in kinds if handler.get(kind) is not None), None)
            if kind is None:
                continue
            action = {**(handler.pop(kind) if kind == "httpGet" else {}), "path": path, "port": status_port}
            if action.get("scheme") == "HTTPS":
                action["scheme"] = "HTTP"
            handler.pop(kind, None)
            handler["httpGet"] = action


def _handlers(container: Object) -> list[tuple[str, Object]]:
    name, hooks = container["name"], container.get("lifecycle") or {}
    found = [(f"/app-health/{name}/{word}", container.get(member)) for member, word in _PROBES.items()]
    found += [(f"/app-lifecycle/{name}/{word}", hooks.get(member)) for member, word in _HOOKS.items()]
    return [(path, handler) for path, handler in found if handler]


def _everything(pod: Object) -> list[Object]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def _containers(pod: Object) -> list[Object]:
    return [each for each in _everything(pod) if each["name"] != PROXY]


def _reorder(pod: Object) -> None:
    """`reorderPod`: the proxy comes last of containers and, as a native sidecar, first after its set-up."""
    spec = pod["spec"]
    initial = spec["initContainers"]
    setup = [each for each in initial if each["name"] == "istio-init"]
    checks = [each for each in initial if each["name"] == "istio-validation"]
    proxy = [each for each in initial if each["name"] == PROXY]
    rest = [each for each in initial if each not in [*setup, *checks, *proxy]]
    spec["initContainers"] = [*setup, *checks, *proxy, *rest] if proxy else [*checks, *rest, *setup]
    others = [each for each in spec["containers"] if each["name"] != PROXY]
    spec["containers"] = [*others, *(each for each in spec["containers"] if each["name"] == PROXY)]
