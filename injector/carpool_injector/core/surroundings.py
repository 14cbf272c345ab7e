"""What names a pod's ports from outside of it: Services, and policies that let callers in by a port's number.

Where only the name of a port moves, or nothing does, callers come to the sidecar on a port of its own. A Service that
targets the app's number then leads past it, and a policy that names the app's number no longer speaks of the callers: a
DENY matches nobody, an allowance does not let them in. No webhook sees that, as a pod knows nothing of either. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from carpool_injector.core import command_lines, model, pods


class Resource(NamedTuple):
    """A kind of object that names ports: how the API server lists it, and what it is called."""

    group: str
    version: str
    plural: str
    kind: str


class Placed(NamedTuple):
    """A pod as others see it: its namespace, and the one of objects that name none."""

    pod: model.Object
    namespace: str
    default: str


def called(things: Sequence[model.Object], placed: Placed) -> Mapping[int | str, str]:
    """The ports of a pod that Services target, by number or name, each with the name of one."""
    return {target: _describe(service) for service in _services(things, placed) for target in _targets(service)}


def advice(things: Sequence[model.Object], placed: Placed, plan: model.Plan) -> Iterator[str]:
    """A warning for each place that leads past the sidecar of a pod, or does not speak of its callers any more.

    The pod is as it was before the injection.
    """
    if plan.takeover not in ("named-port", "none"):
        return
    app = pods.read(placed.pod).container(plan.container)
    names = {port.name: port.container_port for port in (app.ports if app else ()) if port.name}
    moved = moves(plan)
    for service in _services(things, placed):
        yield from _past(service, plan, names, moved)
    yield from policies_that_miss(things, placed, moved)


def moves(plan: model.Plan) -> Mapping[int, int]:
    """The ports on which the sidecar stands for the app, by the app's own, where the two differ."""
    found = {plan.app_port: plan.listen_port} if plan.app_port != plan.grpc_app_port else {}
    if plan.grpc_app_port and plan.grpc_listen_port:
        found[plan.grpc_app_port] = plan.grpc_listen_port
    return found


def _past(service: model.Object, plan: model.Plan, names: Mapping[str, int], moved: Mapping[int, int]) -> Iterator[str]:
    for target in _targets(service):
        number = target if isinstance(target, int) else names.get(target, 0)
        if number in moved and (isinstance(target, int) or plan.takeover == "none"):
            name = next((name for name, each in names.items() if each == number), "")
            to = name if plan.takeover == "named-port" and name else moved[number]
            yield f"{_describe(service)} goes past the sidecar to {target}: let its targetPort be {to}"
        elif number in moved and _part(service, "spec").get("clusterIP") == "None":
            yield (
                f"{_describe(service)} is headless: who finds the pods by its name calls them on {number}, past the "
                "sidecar; give it a cluster IP, or tell the app its port by a flag or variable, so that the sidecar "
                "can take the port itself"
            )


def policies_that_miss(things: Sequence[model.Object], placed: Placed, moved: Mapping[int, int]) -> Iterator[str]:
    """A warning for each policy with a rule that names one of the app's ports by number, and not the sidecar's."""
    for thing in things:
        rules = list(_rules(thing, placed))
        for app, listen in moved.items():
            if any(_includes(rule, app) and not _includes(rule, listen) for rule in rules):
                yield (
                    f"{_describe(thing)} names port {app}, and callers come to the sidecar on {listen}, of which it "
                    f"does not speak: name {listen} there as well"
                )


_Rule = Sequence[tuple[int, int]]
"""The ports of which a rule speaks, as ranges."""
_ALL = (0, 65535)


def _includes(rule: _Rule, port: int) -> bool:
    return any(first <= port <= last for first, last in rule)


def _rules(thing: model.Object, placed: Placed) -> Iterator[_Rule]:
    """What a policy that is for the pod says of ports; nothing for other objects.

    Who applies a policy without a namespace says in which one then, which may well be the pod's.
    """
    form, namespace = _FORMS.get(_group_kind(thing)), _part(thing, "metadata").get("namespace")
    if form is None or (form.has_namespace and namespace and namespace != placed.namespace):
        return
    for spec in [_part(thing, "spec"), *_members(thing.get("specs"))]:
        if any(_selects(each, placed.pod) for each in form.plain(spec.get(form.selector))):
            yield from form.rules(spec)


def _of_cilium(spec: model.Object) -> Iterator[_Rule]:
    for rule in [*_members(spec.get("ingress")), *_members(spec.get("ingressDeny"))]:
        yield _ranges([port for each in _members(rule.get("toPorts")) for port in _members(each.get("ports"))])


def _of_authorization_policy(spec: model.Object) -> Iterator[_Rule]:
    for rule in _members(spec.get("rules")):
        operations = [_part(each, "operation") for each in _members(rule.get("to"))]
        held = [each.get(key) for each in operations for key in ("ports", "notPorts")]
        asked = [each for each in _members(rule.get("when")) if each.get("key") == "destination.port"]
        held += [each.get(key) for each in asked for key in ("values", "notValues")]
        yield _single([text for each in held for text in _list(each)])


def _single(ports: Iterable[Any]) -> _Rule:
    return [(port, port) for port in map(_number, ports) if port is not None]


def _ranges(ports: Any) -> _Rule:
    """Of a rule's ports over TCP; without ports it speaks of all. A name follows the port that has it."""
    found = []
    for port in _members(ports):
        first = _number(port.get("port"))
        if port.get("protocol") not in (None, "", "TCP", "ANY"):
            continue
        if port.get("port") is None:
            found.append(_ALL)
        elif first is not None:
            found.append((first, _number(port.get("endPort")) or first))
    return found if ports else [_ALL]


_SOURCE = re.compile("^(k8s|any):")
_OF_NAMESPACE = re.compile(r"io\.kubernetes\.pod\.namespace|io\.cilium\.k8s\.namespace\.labels\.")


def _of_calico(spec: model.Object) -> Iterator[_Rule]:
    for rule in _members(spec.get("ingress")):
        if rule.get("protocol") in (None, "TCP", 6):
            to = _part(rule, "destination")
            ports = [each for key in ("ports", "notPorts") for each in _list(to.get(key))]
            texts = [str(each).partition(":") for each in ports]
            spoken = [(_number(first), _number(last or first)) for first, _, last in texts]
            named = [(first, last) for first, last in spoken if first is not None and last is not None]
            yield named if ports else [_ALL]


_TERM = re.compile(
    r"""(?P<absent>!)?\s*has\((?P<has>[^()]+)\)|(?P<key>[^\s!='"]+)\s*"""
    r"""(?:(?P<equal>[!=]=)\s*['"](?P<value>[^'"]*)['"]|(?P<without>not\s+)?in\s*\{(?P<values>[^{}]*)\})"""
)
_PLACES = re.compile(r"projectcalico\.org/|pcns\.|pcsa\.")  # what Calico adds to a pod's labels


def _of_expression(selector: Any) -> list[model.Object]:
    """Calico's expression as selectors by labels, of which one is enough; where it is not understood, one for all."""
    text = selector if isinstance(selector, str) else ""
    branches = re.split(r"\s*\|\|\s*", text) if "(" not in text.replace("has(", "").replace("all()", "") else [""]
    found = []
    for branch in branches:
        terms = [_TERM.fullmatch(each.strip()) for each in branch.split("&&")]
        found.append({"matchExpressions": [_wish(each) for each in terms if each and not _is_of_place(each)]})
    return found


def _is_of_place(term: re.Match[str]) -> bool:
    return _PLACES.match(term["has"] or term["key"]) is not None


def _wish(term: re.Match[str]) -> model.Object:
    if term["has"]:
        return {"key": term["has"].strip(), "operator": "DoesNotExist" if term["absent"] else "Exists"}
    is_not = term["equal"] == "!=" or term["without"] is not None
    values = [term["value"]] if term["equal"] else re.findall(r"""['"]([^'"]*)['"]""", term["values"])
    return {"key": term["key"], "operator": "NotIn" if is_not else "In", "values": values}


def _without_sources(selector: Any) -> list[model.Object]:
    """Cilium's selector with its labels as pods have them: theirs may say that they come from Kubernetes, or anywhere.

    A pod's namespace, which is a label to Cilium, is no condition here.
    """

    def plain(key: Any) -> str:
        return _SOURCE.sub("", str(key))

    found = selector if isinstance(selector, dict) else {}
    labels = {plain(key): value for key, value in _part(found, "matchLabels").items()}
    wishes = [{**each, "key": plain(each.get("key"))} for each in _members(found.get("matchExpressions"))]
    held = {key: value for key, value in labels.items() if not _OF_NAMESPACE.match(key)}
    return [
        {"matchLabels": held, "matchExpressions": [each for each in wishes if not _OF_NAMESPACE.match(each["key"])]}
    ]


class _Form(NamedTuple):
    """Where a kind of policy says which pods and which ports it is for; `plain` makes its selector those by labels."""

    rules: Callable[[model.Object], Iterable[_Rule]]
    selector: str = "selector"
    plain: Callable[[Any], Iterable[Any]] = lambda selector: (selector,)
    has_namespace: bool = True


_CILIUM = _Form(_of_cilium, "endpointSelector", _without_sources)
_CALICO = _Form(_of_calico, plain=_of_expression)
_POLICIES = {
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"): _Form(
        lambda spec: [_ranges(rule.get("ports")) for rule in _members(spec.get("ingress"))], "podSelector"
    ),
    Resource("cilium.io", "v2", "ciliumnetworkpolicies", "CiliumNetworkPolicy"): _CILIUM,
    Resource("cilium.io", "v2", "ciliumclusterwidenetworkpolicies", "CiliumClusterwideNetworkPolicy"): _CILIUM._replace(
        has_namespace=False
    ),
    Resource("crd.projectcalico.org", "v1", "networkpolicies", "NetworkPolicy"): _CALICO,
    Resource("crd.projectcalico.org", "v1", "globalnetworkpolicies", "GlobalNetworkPolicy"): _CALICO._replace(
        has_namespace=False
    ),
    Resource("security.istio.io", "v1beta1", "peerauthentications", "PeerAuthentication"): _Form(
        lambda spec: [_single(_part(spec, "portLevelMtls"))]
    ),
    Resource("security.istio.io", "v1beta1", "authorizationpolicies", "AuthorizationPolicy"): _Form(
        _of_authorization_policy
    ),
    Resource("policy.linkerd.io", "v1beta1", "servers", "Server"): _Form(
        lambda spec: [_single([spec.get("port")])], "podSelector"
    ),
}
_FORMS = {(each.group, each.kind): form for each, form in _POLICIES.items()}
# As Calico's own API server has them, where each tier has rights of its own; they are kept in the group above.
_FORMS |= {(group.removeprefix("crd."), kind): form for (group, kind), form in _FORMS.items()}
POLICIES = tuple(_POLICIES)
"""Policies whose ports are those of pods."""
_SERVICE = ("", "Service")
KINDS = {_SERVICE, *_FORMS}
"""Group and kind of whatever is looked at here."""


def _selects(selector: Any, pod: model.Object) -> bool:
    """Whether a label selector, of any of the forms that policies have, selects a pod; empty ones select all."""
    labels = _part(_part(pod, "metadata"), "labels")
    found = selector if isinstance(selector, dict) else {}
    wanted = found.get("matchLabels") or {}
    if not isinstance(wanted, dict) or any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_meets(each, labels) for each in _members(found.get("matchExpressions")))


def _meets(wish: model.Object, labels: Mapping[str, Any]) -> bool:
    value, values = labels.get(str(wish.get("key"))), _list(wish.get("values"))
    found = {
        "In": value in values, "NotIn": value not in values, "Exists": value is not None, "DoesNotExist": value is None,
    }  # fmt: skip
    return found.get(str(wish.get("operator")), False)


def _services(things: Sequence[model.Object], placed: Placed) -> Iterator[model.Object]:
    for thing in things:
        selector = _part(thing, "spec").get("selector")
        is_service = _group_kind(thing) == _SERVICE and isinstance(selector, dict) and selector
        namespace = _part(thing, "metadata").get("namespace") or placed.default
        if is_service and namespace == placed.namespace and _selects({"matchLabels": selector}, placed.pod):
            yield thing


def _targets(service: model.Object) -> Iterator[int | str]:
    """The target of each of its ports over TCP: a number, or the name of one."""
    for port in _members(_part(service, "spec").get("ports")):
        target = port.get("targetPort") or port.get("port")
        if port.get("protocol") in (None, "", "TCP") and isinstance(target, int | str):
            number = _number(target)
            yield target if number is None else number


def _number(value: Any) -> int | None:
    number = command_lines.whole(value) if isinstance(value, str) else value
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _group_kind(thing: model.Object) -> tuple[str, str]:
    return str(thing.get("apiVersion")).rpartition("/")[0], str(thing.get("kind"))


def _describe(thing: model.Object) -> str:
    name = _part(thing, "metadata").get("name")
    return f"{thing.get('kind')}/{name}" if name else str(thing.get("kind"))


def _part(parent: model.Object, key: str) -> model.Object:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _members(value: Any) -> Iterator[model.Object]:
    return (each for each in _list(value) if isinstance(each, dict))
