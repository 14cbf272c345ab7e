"""What a pod has to satisfy to be stored and to start: the API server's own rules, Pod Security Standards, the schemas.

Each function returns the problems it finds, in words, [] if there are none.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema
import referencing
from kubernetes_validate import utils as published

from tests.injector import api_defaults

Object = dict[str, Any]

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def invalid(pod: Object) -> list[str]:
    """What the API server's validation would refuse, as far as an injector could cause it."""
    spec = pod["spec"]
    found = [*_duplicates("container name", (c["name"] for c in api_defaults.containers(pod)))]
    found += _duplicates("volume name", (v["name"] for v in spec.get("volumes") or ()))
    volumes = {v["name"] for v in spec.get("volumes") or ()}
    for container in api_defaults.containers(pod):
        found += [f"{container['name']}: {problem}" for problem in _invalid_container(container, volumes)]
    for container in spec.get("initContainers") or ():
        found += [f"{container['name']}: {problem}" for problem in _invalid_init_container(container)]
    for container in spec["containers"]:
        if "restartPolicy" in container and container["restartPolicy"] == "Always":
            found.append(f"{container['name']}: restartPolicy Always is for init containers")
    return found


def _invalid_container(container: Object, volumes: set[str]) -> Iterator[str]:
    ports = container.get("ports") or []
    mounts = container.get("volumeMounts") or []
    if not _DNS_LABEL.fullmatch(container["name"]):
        yield "the name is no DNS label"
    yield from _duplicates("port name", (p["name"] for p in ports if "name" in p))
    yield from _duplicates("port", ((p["containerPort"], p.get("protocol", "TCP")) for p in ports))
    yield from _duplicates("environment variable", (v["name"] for v in container.get("env") or ()))
    yield from _duplicates("mount path", (m["mountPath"] for m in mounts))
    for port in ports:
        if "name" in port and not _PORT_NAME.fullmatch(port["name"]):
            yield f"port name {port['name']!r}"
        if not 1 <= port["containerPort"] <= 65535:
            yield f"port {port['containerPort']}"
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"mounts {mount['name']}, which is no volume"
    names = {port["name"] for port in ports if "name" in port}
    for port in _ports_asked_for(container):
        if isinstance(port, str) and port not in names:
            yield f"a probe or hook names port {port!r}, which the container does not have"
    for name in _PROBES:
        handlers = {"httpGet", "tcpSocket", "grpc", "exec"} & (container.get(name) or {"exec": 1}).keys()
        if len(handlers) != 1:
            yield f"{name} has {len(handlers)} handlers"


def _invalid_init_container(container: Object) -> Iterator[str]:
    if container.get("restartPolicy") == "Always":
        return
    for name in (*_PROBES, "lifecycle"):
        if container.get(name):
            yield f"{name} on an init container that is no sidecar"


def _ports_asked_for(container: Object) -> Iterator[Any]:
    for handler in handlers(container):
        for kind in ("httpGet", "tcpSocket"):
            if kind in handler:
                yield handler[kind]["port"]


def handlers(container: Object) -> list[Object]:
    """What its probes and lifecycle hooks do."""
    lifecycle = container.get("lifecycle") or {}
    found = [container.get(name) for name in _PROBES] + [lifecycle.get("preStop"), lifecycle.get("postStart")]
    return [handler for handler in found if handler]


def _duplicates(what: str, values: Iterable[Any]) -> Iterator[str]:
    return (f"duplicate {what}: {value}" for value, count in Counter(values).items() if count > 1)


def not_restricted(pod: Object, container: Object) -> list[str]:
    """What Pod Security's level `restricted` refuses of one container, whatever the pod's own securityContext says."""
    context = container.get("securityContext") or {}
    capabilities = context.get("capabilities") or {}
    checks = {
        "allowPrivilegeEscalation is not false": context.get("allowPrivilegeEscalation") is False,
        "capabilities do not drop ALL": "ALL" in (capabilities.get("drop") or ()),
        "capabilities are added": set(capabilities.get("add") or ()) <= {"NET_BIND_SERVICE"},
        "runAsNonRoot is not true": context.get("runAsNonRoot") is True,
        "runAsUser is 0": context.get("runAsUser") != 0,
        "privileged": not context.get("privileged"),
        "procMount": context.get("procMount", "Default") == "Default",
        "no seccomp profile": (context.get("seccompProfile") or {}).get("type") in ("RuntimeDefault", "Localhost"),
        "a host port": not any(port.get("hostPort") for port in container.get("ports") or ()),
        "a host in a probe or hook": not any(_hosts(container)),
        "a volume of the host": not _forbidden_volumes(pod, container),
    }
    return [f"{container['name']}: {problem}" for problem, holds in checks.items() if not holds]


def _hosts(container: Object) -> Iterator[str]:
    for handler in handlers(container):
        for kind in ("httpGet", "tcpSocket"):
            yield (handler.get(kind) or {}).get("host") or ""


def _forbidden_volumes(pod: Object, container: Object) -> list[str]:
    mounted = {mount["name"] for mount in container.get("volumeMounts") or ()}
    volumes = [volume for volume in pod["spec"].get("volumes") or () if volume["name"] in mounted]
    return [volume["name"] for volume in volumes if not volume.keys() & _RESTRICTED_VOLUMES]


def off_schema(thing: Object, version: str) -> list[str]:
    """Where an object leaves the published schema of a Kubernetes version such as `1.31`; unknown members included."""
    errors = _validator(thing["kind"], thing["apiVersion"], version).iter_errors(thing)
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


@functools.cache
def _validator(kind: str, api_version: str, version: str) -> Any:
    """kubernetes-validate's own function reads megabytes of schemas for each object; this keeps them."""
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    name = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = published.schema_contents(f"{folder}/{kind.lower()}-{name}.json", version)
    definitions = published.schema_contents(f"{folder}/_definitions.json", version)
    registry = referencing.Registry()
    for contents in (schema, definitions):
        registry = referencing.Resource.from_contents(contents) @ registry
    return jsonschema.Draft202012Validator(schema, registry=registry)
