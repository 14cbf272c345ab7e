"""Probes and hooks that a service mesh answers for the kubelet: taken back for the injector's work, then given again.

A mesh with mutual TLS lets nobody in without a certificate, and the kubelet has none. So Istio and Kuma point probes at
a port of their own proxy, which asks the container. Where it asks stands elsewhere then: with Istio in the proxy's
variable ISTIO_KUBE_APP_PROBERS (pkg/kube/inject/app_probe.go of istio/istio), with Kuma in the probe's new path
(pkg/plugins/runtime/k8s/probes of kumahq/kuma). An app that moves to another port has to be followed there, and the
sidecar's own probes need the same detour, because Istio is not asked again after this webhook.

`take_back` undoes the detour before anything is read, `give` makes it again once everything is in place, for what had
it before and for what the sidecar brings. So it makes no difference whether the mesh's webhook comes first or last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from carpool_injector.core import command_lines, edits, model, pods, references
from carpool_injector.core.refusals import Reason

Action = tuple[str, model.Object]
"""What a probe or hook does (one of `references.ACTIONS`), and its members."""

_PROBES = dict(zip(pods.PROBES, ("readyz", "livez", "startupz"), strict=True))
_HOOKS = dict(zip(pods.HOOKS, ("poststartz", "prestopz"), strict=True))


class Place(NamedTuple):
    """Where a probe or hook stands: container, and member of it or of its lifecycle."""

    container: str
    member: str


class Mesh(Protocol):
    """A mesh whose proxy, the container `proxy`, answers for the kubelet."""

    @property
    def proxy(self) -> str: ...

    @property
    def takes_more(self) -> bool:
        """Whether it may be given probes that it had not before."""

    def asked_by(self, place: Place, action: model.Object) -> Action | None:
        """What the proxy asks for this httpGet action; None where the action is not its own."""

    def detour(self, place: Place, action: Action, timeout: int, before: model.Object | None) -> model.Object | None:
        """The httpGet action of the proxy for that action. `before`: the one that stood there; None: cannot be."""

    def remember(self, draft: edits.Draft, given: Mapping[Place, model.Object], dropped: Set[Place]) -> None:
        """Tell the proxy what to ask for whom, as far as that is not in the actions themselves."""


@dataclass(frozen=True, slots=True)
class Detour:
    """What was taken back of one pod: from which mesh, and the actions as they stood, with the proxy's port in them."""

    mesh: Mesh
    before: Mapping[Place, model.Object]


def answers(pod: pods.Pod) -> Mesh | None:
    """The mesh whose proxy answers for the kubelet in this pod, if there is one."""
    return _istio(pod) or _kuma(pod)


def take_back(draft: edits.Draft, pod: pods.Pod) -> Detour | None:
    """Let probes and hooks of a draft ask their containers again; `pod` is the view of it.

    None where no mesh answers for the kubelet in this pod.
    """
    mesh = answers(pod)
    if mesh is None:
        return None
    before: dict[Place, model.Object] = {}

    def direct(place: Place, handler: model.Object) -> model.Object:
        kind, action = references.action_of(handler) or ("", {})
        found = mesh.asked_by(place, action) if kind == "httpGet" else None
        if found is None:
            return handler
        before[place] = action
        return references.with_action(handler, *found)

    _change_handlers(draft, mesh.proxy, direct)
    return Detour(mesh, before)


def give(draft: edits.Draft, detour: Detour) -> None:
    """Let the mesh answer again: for what it answered before, and for the sidecar's probes and the app's hook."""
    mesh = detour.mesh
    given: dict[Place, model.Object] = {}

    def detoured(place: Place, handler: model.Object) -> model.Object:
        action, before = references.action_of(handler), detour.before.get(place)
        is_ours = place.container == model.CONTAINER or references.waits(place.member, handler)
        if action is None or not (before or (is_ours and mesh.takes_more)):
            return handler
        made = mesh.detour(place, action, handler.get("timeoutSeconds") or 0, before)
        if made is None:
            return handler
        timeout = {"timeoutSeconds": handler["timeoutSeconds"]} if handler.get("timeoutSeconds") else {}
        given[place] = {action[0]: action[1], **timeout}
        return references.with_action(handler, "httpGet", made)

    _change_handlers(draft, mesh.proxy, detoured)
    # Of a container that is gone, KServe's agent say, the proxy may go on knowing: it comes back with its webhook.
    names = {
        model.CONTAINER,
        *(each.get("name") for group in edits.GROUPS for each in draft.pod["spec"].get(group) or ()),
    }
    mesh.remember(draft, given, {place for place in detour.before.keys() - given.keys() if place.container in names})


def _change_handlers(draft: edits.Draft, proxy: str, change: Callable[[Place, model.Object], model.Object]) -> None:
    """Replace probes and hooks in all containers but the mesh's proxy."""

    def changed(each: model.Object) -> model.Object:
        name = each.get("name")
        if name == proxy:
            return each
        return references.with_handlers(each, lambda member, handler: change(Place(str(name), member), handler))

    for group in edits.GROUPS:
        found = draft.pod["spec"].get(group) or []
        after = [changed(each) for each in found]
        if any(one is not other for one, other in zip(found, after, strict=True)):
            draft.replace(group, after)


_ISTIO = "istio-proxy"
_PROBERS = "ISTIO_KUBE_APP_PROBERS"
_SEEN = "ISTIO_META_APP_CONTAINERS"
_REWRITES = "sidecar.istio.io/rewriteAppHTTPProbers"
_STATUS_PORT = "status.sidecar.istio.io/port"
_USUAL_STATUS_PORT = 15020
_LAST_PORT = 65535
_FALSE = ("0", "f", "F", "false", "FALSE", "False")  # strconv.ParseBool


@dataclass(frozen=True, slots=True)
class _Istio:
    """`probers` is the proxy's variable, by path: what its agent asks when it is asked there."""

    probers: Mapping[str, Any]
    port: int
    takes_more: bool
    proxy: str = _ISTIO

    def asked_by(self, place: Place, action: model.Object) -> Action | None:
        path = _istios_path(place)
        prober = self.probers.get(path) if action.get("path") == path else None
        held = prober if isinstance(prober, dict) else {}
        found = [(kind, held[kind]) for kind in references.ACTIONS if held.get(kind)]
        if len(found) != 1 or not isinstance(found[0][1], dict) or not _is_port(found[0][1].get("port")):
            return None
        kind, members = found[0]
        return kind, {key: value for key, value in members.items() if value is not None}

    def detour(self, place: Place, action: Action, timeout: int, before: model.Object | None) -> model.Object | None:
        kind, members = action
        if not _is_port(members.get("port")) or (kind == "grpc" and place.member in _HOOKS):
            return None
        if before:  # it changes with the path only, which does not change
            return before
        kept = members if kind == "httpGet" else {}
        return {**kept, "scheme": "HTTP", "path": _istios_path(place), "port": self.port}

    def remember(self, draft: edits.Draft, given: Mapping[Place, model.Object], dropped: Set[Place]) -> None:
        gone = {_istios_path(place) for place in dropped}
        probers = {path: prober for path, prober in self.probers.items() if path not in gone}
        for place, asked in given.items():
            path = _istios_path(place)
            if _without_nulls(probers.get(path)) != asked:
                probers[path] = asked
        if probers == self.probers:
            return
        proxy = draft.any_container(_ISTIO)
        if probers:
            text = json.dumps(dict(sorted(probers.items())), separators=(",", ":"))
            edits.set_variable(proxy, _PROBERS, text)
        else:
            edits.remove_variable(proxy, _PROBERS)


def _istios_path(place: Place) -> str:
    if place.member in _HOOKS:
        return f"/app-lifecycle/{place.container}/{_HOOKS[place.member]}"
    return f"/app-health/{place.container}/{_PROBES[place.member]}"


def _without_nulls(prober: Any) -> Any:
    if not isinstance(prober, dict):
        return prober
    return {
        key: {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value
        for key, value in prober.items()
    }


def _is_port(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _LAST_PORT


def _istio(pod: pods.Pod) -> Mesh | None:
    proxy = pod.any_container(_ISTIO)
    if proxy is None:
        return None
    probers = _object(proxy.variable(_PROBERS) or "{}")
    if probers is None:
        return None
    port = _status_port(pod, proxy)
    is_off = pod.metadata.annotations.get(_REWRITES) in _FALSE
    # Without the annotation it is the mesh's admin who switched it off, if probes that Istio saw ask directly. Its
    # proxy is told what was there before it, as KServe's agent may have come after it; else all were.
    told = proxy.variable(_SEEN)
    others = (each for each in pod.all_containers if each.name not in (_ISTIO, model.CONTAINER))
    seen = [each for each in others if told is None or each.name in told.split(",")]
    is_unused = not probers and any(map(references.asks_anything, seen))
    return _Istio(probers, port, takes_more=not (is_off or is_unused) and port != 0)


def _status_port(pod: pods.Pod, proxy: pods.Container) -> int:
    """Where the proxy's agent answers the kubelet; 0: nowhere."""
    chosen = command_lines.whole(pod.metadata.annotations.get(_STATUS_PORT))
    if chosen is not None and chosen <= _LAST_PORT:
        return chosen
    of_mesh = (_object(proxy.variable("PROXY_CONFIG") or "{}") or {}).get("statusPort")
    return of_mesh if type(of_mesh) is int and _is_port(of_mesh) else _USUAL_STATUS_PORT


def _object(text: str) -> model.Object | None:
    """What is written there; None where that is no object, or has numbers that JSON cannot have (NaN, 1e999)."""
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


_KUMA = "kuma-sidecar"
_KUMAS_PORTS = ("kuma.io/application-probe-proxy-port", "kuma.io/virtual-probes-port")  # the second before Kuma 2.9
_KUMAS_PATH = re.compile(r"/(?:(tcp|grpc)/([0-9]{1,5})|([0-9]{1,5})(/.*))", re.ASCII | re.DOTALL)
_KUMAS_HEADER = "x-kuma-probes-"


@dataclass(frozen=True, slots=True)
class _Kuma:
    """`port` is the proxy's for probes. It takes no hooks."""

    port: int
    takes_more: bool
    proxy: str = _KUMA

    def asked_by(self, place: Place, action: model.Object) -> Action | None:
        match = _KUMAS_PATH.fullmatch(str(action.get("path") or ""))
        if place.member in _HOOKS or action.get("port") != self.port or match is None:
            return None
        port = int(match[2] or match[3])
        if not _is_port(port):
            return None
        told = {key.lower().removeprefix(_KUMAS_HEADER): value for key, value in _headers(action)}
        if match[1]:
            if match[1] == "tcp":
                return "tcpSocket", {"port": port}
            return "grpc", {"port": port, "service": told.get("grpc-service", "")}
        host = [{"name": "Host", "value": told["host"]}] if "host" in told else []
        others = [each for each in action.get("httpHeaders") or () if not _is_kumas(each)]
        headers = {"httpHeaders": host + others} if host + others else {}
        scheme = told.get("scheme") or action.get("scheme")
        return "httpGet", {"path": match[4], "port": port, **({"scheme": scheme} if scheme else {}), **headers}

    def detour(self, place: Place, action: Action, timeout: int, before: model.Object | None) -> model.Object | None:
        kind, members = action
        if place.member in _HOOKS or not _is_port(members.get("port")):
            return None
        path = f"/{members['port']}{members.get('path') or '/'}"
        if kind != "httpGet":
            path = f"/{'tcp' if kind == 'tcpSocket' else 'grpc'}/{members['port']}"
        if before:
            return {**before, "path": path}
        wait = [{"name": "X-Kuma-Probes-Timeout", "value": str(timeout)}] if timeout > 1 else []
        return {"path": path, "port": self.port, "scheme": "HTTP", **({"httpHeaders": wait} if wait else {})}

    def remember(self, draft: edits.Draft, given: Mapping[Place, model.Object], dropped: Set[Place]) -> None:
        """Nothing: all of it is in the path."""


def _headers(action: model.Object) -> Iterator[tuple[str, str]]:
    for header in action.get("httpHeaders") or ():
        if _is_kumas(header):
            yield str(header["name"]), str(header.get("value") or "")


def _is_kumas(header: Any) -> bool:
    return isinstance(header, dict) and str(header.get("name")).lower().startswith(_KUMAS_HEADER)


def _kuma(pod: pods.Pod) -> Mesh | None:
    if pod.any_container(_KUMA) is None:
        return None
    found = (command_lines.whole(pod.metadata.annotations.get(key)) for key in _KUMAS_PORTS)
    port = next((each for each in found if each is not None and _is_port(each)), None)
    return _Kuma(port, takes_more=True) if port is not None else None


_ISTIOS_EXCLUDED = "traffic.sidecar.istio.io/excludeInboundPorts"
_LINKERD, _LINKERDS_POLICY = "linkerd-proxy", "LINKERD2_PROXY_INBOUND_DEFAULT_POLICY"
_LINKERDS_EXCLUDED = "config.linkerd.io/skip-inbound-ports"
_CONSULS_REDIRECTION = ("CONSUL_REDIRECT_TRAFFIC_CONFIG", "consul.hashicorp.com/redirect-traffic-config")
_CONSULS_EXCLUDED = "consul.hashicorp.com/transparent-proxy-exclude-inbound-ports"


def check(pod: pods.Pod, admin_port: int) -> None:
    """Raises `Refusal` where the mesh keeps the kubelet from the sidecar's admin port, and cannot ask in its place.

    Consul takes over the HTTP probes of containers that are there before it, and no others.
    """
    variable, annotation = _CONSULS_REDIRECTION
    configured = [each.variable(variable) for each in pod.all_containers] + [pod.metadata.annotations.get(annotation)]
    told = [_object(text) for text in configured if text]
    if not told or includes_port(pod.metadata.annotations.get(_CONSULS_EXCLUDED, ""), admin_port):
        return
    excluded = [(each or {}).get("ExcludeInboundPorts") for each in told]
    if not any(str(admin_port) in ports for ports in excluded if isinstance(ports, list)):
        raise Reason.MESH_IN_BETWEEN(mesh="Consul", port=admin_port, annotation=_CONSULS_EXCLUDED)


def advice(pod: pods.Pod, admin_port: int) -> Iterator[str]:
    """Warnings of what a strict mesh would keep from the sidecar, each with the annotation that helps."""
    annotations = pod.metadata.annotations
    mesh = answers(pod)
    asks_nothing = pod.any_container(_ISTIO) is not None and (mesh is None or not mesh.takes_more)
    if asks_nothing and not includes_port(annotations.get(_ISTIOS_EXCLUDED, ""), admin_port):
        yield (
            "Istio does not ask probes of this pod in the kubelet's place; with strict mTLS set "
            f'{_ISTIOS_EXCLUDED}: "{admin_port}"'
        )
    linkerd = pod.any_container(_LINKERD)
    policy = (linkerd.variable(_LINKERDS_POLICY) if linkerd else None) or ""
    is_open = not policy or policy == "audit" or policy.endswith("-unauthenticated")
    if not is_open and not includes_port(annotations.get(_LINKERDS_EXCLUDED, ""), admin_port):
        yield (
            f"Linkerd's inbound policy {policy!r} denies the kubelet the hook by which the app waits until the sidecar "
            f'has drained; set {_LINKERDS_EXCLUDED}: "{admin_port}"'
        )


def includes_port(text: str, port: int) -> bool:
    """Whether a comma-separated list of ports and ranges (`8000-8100`) names a port."""
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        first, last = command_lines.whole(low), command_lines.whole(high or low)
        if first is not None and last is not None and first <= port <= last:
            return True
    return False
