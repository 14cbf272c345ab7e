"""Policies that let callers in by a port's number are told of, where callers come to the sidecar on another one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool_injector.core import surroundings
from carpool_injector.objects import manifests
from tests.injector.command_runs import Run
from tests.injector.test_services_that_go_past import HTTP, NAMED, deployment, service

Object = dict[str, Any]
LABELS = {"matchLabels": {"app": "scorer"}}


def policy(api_version: str, kind: str, spec: Any, **metadata: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "scorer", **metadata}, "spec": spec}


def network(*ports: Object, selector: Any = LABELS, **metadata: str) -> Object:
    spec = {"podSelector": selector, "ingress": [{"ports": list(ports)}]}
    return policy("networking.k8s.io/v1", "NetworkPolicy", spec, **metadata)


def cilium(rule: str = "ingress", **port: Any) -> Object:
    spec = {"endpointSelector": LABELS, rule: [{"toPorts": [{"ports": [port]}]}]}
    return policy("cilium.io/v2", "CiliumNetworkPolicy", spec)


def authorization(rule: Object, **spec: Any) -> Object:
    return policy("security.istio.io/v1", "AuthorizationPolicy", {"selector": LABELS, "rules": [rule], **spec})


def mutual_tls(ports: Any) -> Object:
    return policy("security.istio.io/v1beta1", "PeerAuthentication", {"selector": LABELS, "portLevelMtls": ports})


def calico(version: str = "projectcalico.org/v3", selector: str = "app == 'scorer'", **rule: Any) -> Object:
    spec = {"selector": selector, "ingress": [{"action": "Allow", "protocol": "TCP", **rule}]}
    return policy(version, "NetworkPolicy", spec)


def warnings(thing: Object, *others: Object) -> tuple[str, ...]:
    _, report = manifests.inject(thing, manifests.Injector(around=others))
    assert report is not None
    assert report.result == "injected", report
    return report.warnings


MISS = {
    "NetworkPolicy": network({"port": 7000}),
    "NetworkPolicy with a protocol": network({"port": 7000, "protocol": "TCP"}),
    "NetworkPolicy with a range": network({"port": 6000, "endPort": 8000}),
    "NetworkPolicy for all pods": network({"port": 7000}, selector={}),
    "NetworkPolicy by expressions": network(
        {"port": 7000}, selector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["scorer"]}]}
    ),
    "CiliumNetworkPolicy": cilium(port="7000", protocol="TCP"),
    "CiliumNetworkPolicy that denies": cilium("ingressDeny", port="7000"),
    "CiliumClusterwideNetworkPolicy": {**cilium(port="7000"), "kind": "CiliumClusterwideNetworkPolicy"},
    "Calico's": calico(destination={"ports": [7000]}),
    "Calico's as they are kept": calico("crd.projectcalico.org/v1", destination={"ports": [7000]}),
    "Calico's range": calico(destination={"ports": ["6000:8000"]}),
    "Calico's for all": calico(selector="all()", destination={"ports": [80, "7000"]}),
    "Calico's without a selector": calico(selector="", destination={"ports": [7000]}),
    "Calico's by one of two": calico(
        selector="app == 'other' || app in {'scorer', \"x\"}", destination={"ports": [7000]}
    ),
    "Calico's by several": calico(
        selector="has(app) && !has(tier) && projectcalico.org/namespace == 'ml' && app != 'x'",
        destination={"ports": [7000]},
    ),
    "Calico's that is not understood": calico(
        selector="(app == 'a' || b starts with 'c')", destination={"ports": [7000]}
    ),
    "Calico's but for": calico(action="Deny", destination={"notPorts": [7000]}),
    "Calico's for the cluster": {**calico(destination={"ports": [7000]}), "kind": "GlobalNetworkPolicy"},
    "AuthorizationPolicy": authorization({"to": [{"operation": {"ports": ["7000"]}}]}, action="DENY"),
    "AuthorizationPolicy but for": authorization({"to": [{"operation": {"notPorts": ["7000"]}}]}),
    "AuthorizationPolicy on a condition": authorization({"when": [{"key": "destination.port", "values": ["7000"]}]}),
    "PeerAuthentication": mutual_tls({"7000": {"mode": "DISABLE"}}),
    "PeerAuthentication with a number": mutual_tls({7000: {"mode": "DISABLE"}}),
    "Server": policy("policy.linkerd.io/v1beta3", "Server", {"podSelector": LABELS, "port": 7000}),
}


@pytest.mark.parametrize("name", MISS)
@pytest.mark.parametrize("takeover", ["named-port", "none"])
def test_a_policy_that_names_the_apps_port_by_number_is_told_of(name: str, takeover: str) -> None:
    [told] = warnings(deployment(HTTP, takeover=takeover), MISS[name])
    assert "/scorer names port 7000, and callers come to the sidecar on 9081" in told


@pytest.mark.parametrize("name", MISS)
def test_no_policy_misses_a_sidecar_that_has_the_apps_port(name: str) -> None:
    moved = deployment(HTTP)
    moved["spec"]["template"]["spec"]["containers"][0]["args"] = ["uvicorn", "--host=::", "--port=7000"]
    assert warnings(moved, MISS[name]) == ()


@pytest.mark.parametrize(
    "other",
    [
        network({"port": 7000}, {"port": 9081}),
        network({"port": 7000, "endPort": 9500}),
        network({"port": "http"}),
        network(),
        network({"protocol": "TCP"}),
        network({"port": 7000, "protocol": "UDP"}),
        network({"port": 9999}),
        network({"port": 7000}, selector={"matchLabels": {"app": "other"}}),
        network(
            {"port": 7000}, selector={"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
        ),
        network({"port": 7000}, namespace="other"),
        policy("networking.k8s.io/v1", "NetworkPolicy", {"podSelector": {}, "egress": [{"ports": [{"port": 7000}]}]}),
        policy("networking.k8s.io/v1", "NetworkPolicy", "no object"),
        cilium(port="http"),
        calico(destination={"ports": ["http"]}),
        calico(destination={"ports": [7000, 9081]}),
        calico(destination={"ports": ["7000:9100"]}),
        calico(source={"selector": "app == 'x'"}),
        calico(protocol="UDP", destination={"ports": [7000]}),
        calico(selector="app == 'other'", destination={"ports": [7000]}),
        calico(selector="app not in {'scorer'} || !has(app)", destination={"ports": [7000]}),
        calico(source={"ports": [7000]}, destination={"ports": [80]}),
        authorization({"from": [{"source": {"namespaces": ["a"]}}]}),
        mutual_tls({"9999": {"mode": "DISABLE"}}),
        policy("policy.linkerd.io/v1beta3", "Server", {"podSelector": LABELS, "port": "http"}),
        policy("example.com/v1", "NetworkPolicy", {"podSelector": LABELS, "ingress": [{"ports": [{"port": 7000}]}]}),
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_that_speaks_of_the_callers_is_not_spoken_of(other: Object) -> None:
    assert warnings(NAMED, other) == ()


def test_a_rule_for_other_callers_does_not_stand_in_for_one_that_misses() -> None:
    both = network({"port": 7000})
    both["spec"]["ingress"].append({"from": [{"podSelector": {}}], "ports": [{"port": 9081}]})
    assert len(warnings(NAMED, both)) == 1


def selecting(*wishes: Object, **labels: str) -> Object:
    found = cilium(port="7000")
    found["spec"]["endpointSelector"] = {"matchLabels": labels, "matchExpressions": list(wishes)}
    return found


@pytest.mark.parametrize("source", ["k8s:", "any:", ""])
def test_ciliums_selectors_say_where_labels_come_from(source: str) -> None:
    namespace = {"k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.namespace.labels.a": "b"}
    assert len(warnings(NAMED, selecting(**{f"{source}app": "scorer"}, **namespace))) == 1
    assert warnings(NAMED, selecting(**{f"{source}app": "other"})) == ()
    wish = {"key": f"{source}app", "operator": "In", "values": ["scorer"]}
    assert len(warnings(NAMED, selecting(wish))) == 1
    assert warnings(NAMED, selecting({**wish, "operator": "NotIn"})) == ()
    assert warnings(NAMED, selecting(**{"reserved:app": "scorer"})) == ()


def test_a_policy_without_a_namespace_may_be_one_for_any() -> None:
    told = warnings(deployment(HTTP, namespace="ml", takeover="named-port"), network({"port": 7000}))
    assert "names port 7000" in told[0]
    assert (
        warnings(deployment(HTTP, namespace="ml", takeover="named-port"), network({"port": 7000}, namespace="a")) == ()
    )


def test_policies_of_the_same_files_are_found(run: Run) -> None:
    found = {"apiVersion": "v1", "kind": "List", "items": [network({"port": 7000}), NAMED]}
    for command in ("inject", "explain"):
        assert "NetworkPolicy/scorer names port 7000" in run(command, text=json.dumps(found)).output


def headless(*ports: Object) -> Object:
    found = service(*ports)
    found["spec"]["clusterIP"] = "None"
    return found


def test_a_headless_service_leads_to_the_apps_own_port() -> None:
    [told] = warnings(NAMED, headless({"name": "http", "port": 7000, "targetPort": "http"}))
    assert told.startswith("Service/scorer is headless: who finds the pods by its name calls them on 7000")
    [told] = warnings(NAMED, headless({"port": 80, "targetPort": "http"}))
    assert "calls them on 7000, past the sidecar" in told
    assert warnings(NAMED, headless({"port": 80, "targetPort": "other"})) == ()
    assert warnings(NAMED, service({"port": 7000, "targetPort": "http"})) == ()


def test_everything_that_is_read_has_a_kind_that_can_be_listed() -> None:
    listed = {("", "Service"), *((each.group, each.kind) for each in surroundings.POLICIES)}
    # Calico's are listed where the cluster keeps them.
    assert listed == {kind for kind in surroundings.KINDS if kind[0] != "projectcalico.org"}
    assert {("crd." + group, kind) for group, kind in surroundings.KINDS - listed} <= listed
