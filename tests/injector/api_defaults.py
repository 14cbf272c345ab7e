"""The defaults an API server fills into a pod before each webhook sees it (pkg/apis/core/v1/defaults.go of Kubernetes).

A webhook that is called again does not see what it wrote: it sees that with defaults and quantities in canonical form.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_HOOKS = ("postStart", "preStop")
_POD = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def defaulted(pod: Object) -> Object:
    """A new pod, as the API server would hand it to the next webhook."""
    result: Object = copied(pod)
    spec = result["spec"] = {key: value for key, value in result["spec"].items() if value is not None}
    for key, value in _POD.items():
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for container in containers(result):
        _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    return result


def copied(thing: Any) -> Any:
    """A copy of what JSON can hold, for a quarter of what `copy.deepcopy` costs: tests make tens of thousands."""
    if isinstance(thing, dict):
        return {key: copied(value) for key, value in thing.items()}
    return [copied(each) for each in thing] if isinstance(thing, list) else thing


def containers(pod: Object) -> Iterator[Object]:
    """Init containers, then containers."""
    yield from pod["spec"].get("initContainers") or ()
    yield from pod["spec"].get("containers") or ()


def _default_container(container: Object) -> None:
    image = container.get("image", "")
    latest = "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest"))
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    _default_resources(container.setdefault("resources", {}))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
    for name in _PROBES:
        if container.get(name):
            for key, value in _PROBE.items():
                container[name].setdefault(key, value)
            _default_handler(container[name])
    for name in _HOOKS:
        _default_handler((container.get("lifecycle") or {}).get(name) or {})


def _default_handler(handler: Object) -> None:
    if "httpGet" in handler:
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")
    if "grpc" in handler:
        handler["grpc"].setdefault("service", "")


def _default_resources(resources: Object) -> None:
    """Requests default to limits; quantities come back in canonical form."""
    for key, value in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(key, value)
    for amounts in (resources.get("requests") or {}, resources.get("limits") or {}):
        for key, value in amounts.items():
            amounts[key] = canonical(value)


def canonical(quantity: Any) -> str:
    """A quantity as Kubernetes writes it back: `1024Mi` is `1Gi`, `0.1` is `100m`."""
    text = str(quantity)
    if text.endswith("i"):
        return _canonical_binary(decimal.Decimal(text[:-2]) * 1024 ** _BINARY.index(text[-2:]))
    suffix = text[-1] if text[-1] in _DECIMAL else ""
    number = decimal.Decimal(text.removesuffix(suffix)) * decimal.Decimal(10) ** _DECIMAL[suffix]
    for suffix, exponent in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = number / decimal.Decimal(10) ** exponent
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}" if number else "0"
    return text


def _canonical_binary(number: decimal.Decimal) -> str:
    if number != number.to_integral_value():
        return canonical(number)
    count, step = int(number), 0
    while count and count % 1024 == 0 and step < len(_BINARY) - 1:
        count, step = count // 1024, step + 1
    return f"{count}{_BINARY[step]}"


def _default_volume(volume: Object) -> None:
    for source in ("projected", "secret", "configMap", "downwardAPI"):
        if source in volume:
            volume[source].setdefault("defaultMode", 420)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
