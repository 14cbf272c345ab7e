"""What `check` says of namespaces whose rules forbid the sidecar, and of Services that go past it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from carpool_injector.core import model, pod_annotations
from carpool_injector.diagnosis import callers, cluster_state, namespaces
from carpool_injector.diagnosis.findings import Finding
from tests.injector import test_diagnosis as healthy

Object = dict[str, Any]

DEFAULTS = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
WITHOUT_LIMIT = {"requests": DEFAULTS["requests"], "limits": {"memory": "1Gi"}}
NOT_ALLOWED = cluster_state.Failed("list limitranges: forbidden", forbidden=True)


def known(**changes: Any) -> cluster_state.ClusterState:
    return dataclasses.replace(healthy.HEALTHY, **changes)


def rules(resources: Object = DEFAULTS, annotations: Object | None = None, **changes: Any) -> list[Finding]:
    sample = {"spec": {"initContainers": [{"name": "carpool", "resources": resources}], "containers": []}}
    state = known(sample=sample, namespaces=[model.Namespace("ml", {}, annotations or {})], **changes)
    return list(namespaces.rules(state))


def limit_range(kind: str = "Container", namespace: str = "ml", **rules_: Any) -> Object:
    return {"metadata": {"name": "r", "namespace": namespace}, "spec": {"limits": [{"type": kind, **rules_}]}}


def quota(hard: Object, used: Object | None = None, **spec: Any) -> Object:
    metadata = {"name": "q", "namespace": "ml"}
    return {"metadata": metadata, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


@pytest.mark.parametrize(
    ("item", "resources", "problem"),
    [
        (limit_range(max={"cpu": "500m"}), DEFAULTS, "its limit of cpu (1) is above the most (500m)"),
        (limit_range(max={"cpu": "2"}), WITHOUT_LIMIT, "it has no limit of cpu, and there has to be one"),
        (limit_range(min={"memory": "256Mi"}), DEFAULTS, "its request of memory (128Mi) is below the least (256Mi)"),
        (
            limit_range(maxLimitRequestRatio={"cpu": "4"}),
            DEFAULTS,
            "its limit of cpu (1) is more than 4 times its request (100m)",
        ),
        (limit_range(maxLimitRequestRatio={"cpu": 4}), WITHOUT_LIMIT, "it has no limit of cpu"),
        (limit_range("Pod", max={"memory": "512Mi"}), DEFAULTS, "is above the most of a whole pod (512Mi)"),
    ],
)
def test_a_limit_range_that_forbids_the_sidecar_is_told(item: Object, resources: Object, problem: str) -> None:
    [finding] = rules(resources, limit_ranges=[item])
    assert finding.verdict == "warning"
    assert finding.text.startswith("LimitRanges forbid pods with the sidecar")
    assert problem in finding.text
    assert finding.text.endswith(": ml/r")


@pytest.mark.parametrize(
    ("item", "resources"),
    [
        (limit_range(max={"cpu": "1", "memory": "1Gi"}, min={"cpu": "100m"}), DEFAULTS),
        (limit_range(maxLimitRequestRatio={"cpu": "10", "memory": "8"}), DEFAULTS),
        (limit_range(max={"cpu": "2"}, default={"cpu": "2"}), WITHOUT_LIMIT),
        (limit_range("Pod", min={"cpu": "1"}, maxLimitRequestRatio={"cpu": "2"}), DEFAULTS),
        (limit_range("PersistentVolumeClaim", max={"storage": "1Gi"}), DEFAULTS),
        (limit_range(max={"cpu": "1e-1"}), DEFAULTS),
        (limit_range(namespace="kube-system", max={"cpu": "1m"}), DEFAULTS),
        ({"metadata": {"name": "r", "namespace": "ml"}}, DEFAULTS),
    ],
)
def test_a_limit_range_that_lets_the_sidecar_be_is_not_spoken_of(item: Object, resources: Object) -> None:
    assert [each.verdict for each in rules(resources, limit_ranges=[item])] == ["ok"]


def test_annotations_of_the_namespace_count() -> None:
    most = limit_range(max={"cpu": "500m"})
    fitting = {"carpool.dev/resources-limits-cpu": "500m"}
    assert [each.verdict for each in rules(annotations=fitting, limit_ranges=[most])] == ["ok"]
    [finding] = rules(annotations={"carpool.dev/resources-limits-cpu": "none"}, limit_ranges=[most])
    assert "it has no limit of cpu" in finding.text


@pytest.mark.parametrize(
    ("item", "resources", "problem"),
    [
        (quota({"limits.cpu": "8"}), WITHOUT_LIMIT, "it has no limit of cpu, and there has to be one"),
        (
            quota({"limits.cpu": "8"}, {"limits.cpu": "7500m"}),
            DEFAULTS,
            "of limits.cpu 7500m of 8 are used, and it needs 1",
        ),
        (quota({"memory": "1Gi"}, {"memory": "1000Mi"}), DEFAULTS, "of memory 1000Mi of 1Gi are used"),
    ],
)
def test_a_quota_that_forbids_the_sidecar_is_told(item: Object, resources: Object, problem: str) -> None:
    [finding] = rules(resources, quotas=[item])
    assert problem in finding.text


@pytest.mark.parametrize(
    "item",
    [
        quota({"limits.cpu": "8", "limits.memory": "16Gi", "requests.cpu": "4", "requests.memory": "8Gi"}),
        quota({"pods": "0", "requests.nvidia.com/gpu": "1", "count/secrets": "3"}),
        quota({"limits.cpu": "1m"}, scopes=["BestEffort"]),
        quota({"limits.cpu": "1m"}, scopeSelector={"matchExpressions": []}),
    ],
)
def test_a_quota_with_room_and_one_about_something_else_are_not_spoken_of(item: Object) -> None:
    assert [each.verdict for each in rules(quotas=[item])] == ["ok"]


def test_one_line_names_several_namespaces_and_rules_that_cannot_be_read_are_told() -> None:
    items = [limit_range(namespace=f"n{number}", max={"cpu": "500m"}) for number in range(7)]
    [finding] = rules(limit_ranges=items)
    assert finding.text.endswith("n0/r, n1/r, n2/r, n3/r, n4/r and 2 more")
    [finding] = rules(limit_ranges=NOT_ALLOWED)
    assert (finding.verdict, finding.fix) == ("warning", NOT_ALLOWED.why)
    assert list(namespaces.rules(known(sample=NOT_ALLOWED, limit_ranges=items))) == []


# --- Services


def injected(name: str = "a", takeover: str = "named-port", **ports: int) -> Object:
    status = {**healthy.STATUS, "takeover": takeover, "appPort": 7000, "listenPort": 9081, **ports}
    return healthy.pod(name, status, sidecar="native")


def slice_of(service: str, *ports: int, pods: tuple[str, ...] = ("a",)) -> Object:
    refs = [{"targetRef": {"kind": "Pod", "name": name, "namespace": "models"}} for name in pods]
    metadata = {"namespace": "models", "labels": {"kubernetes.io/service-name": service}}
    return {"metadata": metadata, "ports": [{"port": port} for port in ports], "endpoints": refs}


def reached(pods: list[Object], *slices: Object) -> list[Finding]:
    return list(callers.reached(known(pods=pods, slices=list(slices))))


def test_a_service_whose_endpoints_are_the_apps_own_port_is_told_with_the_fix() -> None:
    [finding] = reached([injected()], slice_of("scorer", 7000))
    assert finding.verdict == "warning"
    assert finding.text == "Service models/scorer goes past the sidecar, to port 7000 of: models/a"
    assert "let its targetPort be the port's name" in finding.fix
    [finding] = reached([injected(takeover="none")], slice_of("scorer", 7000))
    assert finding.fix == "let its targetPort be 9081, where the sidecar listens"


@pytest.mark.parametrize(
    "slices",
    [
        [slice_of("scorer", 9081)],
        [slice_of("metrics", 9100)],
        [slice_of("scorer", 7000, pods=("other",))],
        [{**slice_of("scorer", 7000), "endpoints": None}],
        [{**slice_of("scorer", 7000), "metadata": {"namespace": "models"}}],
        [{**slice_of("scorer"), "ports": None}],
    ],
)
def test_services_that_reach_the_sidecar_other_ports_or_other_pods_are_fine(slices: list[Object]) -> None:
    assert [each.verdict for each in reached([injected()], *slices)] == ["ok"]


def test_the_port_for_grpc_is_the_sidecars_business_where_it_listens_for_it() -> None:
    both = injected(takeover="none", grpcAppPort=9000, grpcListenPort=9083)
    [finding] = reached([both], slice_of("scorer", 9000, 9081))
    assert finding.fix == "let its targetPort be 9083, where the sidecar listens"
    assert [each.verdict for each in reached([injected(grpcAppPort=9000)], slice_of("scorer", 9000))] == ["ok"]


def test_pods_of_one_service_are_told_in_one_line_and_once_each() -> None:
    pods = [injected(name) for name in "abc"]
    [finding] = reached(pods, slice_of("scorer", 7000, pods=("a", "b", "c")), slice_of("scorer", 7000))
    assert finding.text.endswith("of: models/a, models/b, models/c")


def headless(service: str, *ports: int) -> Object:
    found = slice_of(service, *ports)
    found["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    return found


def test_a_headless_service_leads_to_the_apps_own_port() -> None:
    found = reached([injected()], headless("scorer", 9081))
    assert found[0].text == (
        "Service models/scorer is headless: who calls port 7000 of models/a by its name goes past the sidecar"
    )
    swapped = injected(takeover="port-swap", appPort=9083, listenPort=7000)
    assert [each.verdict for each in reached([swapped], headless("scorer", 7000))] == ["ok"]


def admitted(pods: list[Object], *policies: Object) -> list[Finding]:
    return list(callers.admitted(known(pods=pods, policies=list(policies))))


def network_policy(port: int, namespace: str = "models") -> Object:
    spec = {"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]}
    metadata = {"name": "scorer", "namespace": namespace}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def test_policies_that_name_the_apps_port_and_not_the_sidecars_are_told() -> None:
    [finding] = admitted([injected("a"), injected("b")], network_policy(7000))
    assert finding.verdict == "warning"
    assert finding.text == (
        "in namespace models: NetworkPolicy/scorer names port 7000, and callers come to the sidecar on 9081, of which "
        "it does not speak (for models/a, models/b)"
    )
    assert finding.fix == "name 9081 there as well"
    assert admitted([injected()], network_policy(9081), network_policy(7000, "other")) == []
    assert admitted([injected(takeover="port-swap")], network_policy(7000)) == []
    assert admitted([healthy.pod("web")], network_policy(7000)) == []


def test_policies_that_may_not_be_read_are_told_of() -> None:
    [finding] = list(callers.admitted(known(policies=NOT_ALLOWED)))
    assert (finding.verdict, finding.fix) == ("warning", NOT_ALLOWED.why)
    assert list(callers.admitted(known(pods=NOT_ALLOWED))) == []


def test_without_injected_pods_there_is_nothing_to_say_and_what_is_not_allowed_is_told() -> None:
    assert reached([healthy.pod("web")], slice_of("web", 80)) == []
    assert list(callers.reached(known(pods=NOT_ALLOWED))) == []
    [finding] = list(callers.reached(known(slices=NOT_ALLOWED)))
    assert finding.fix == NOT_ALLOWED.why


def test_the_annotations_that_are_read_are_settings() -> None:
    keys = {f"carpool.dev/resources-{kind}-{name}" for kind in ("requests", "limits") for name in ("cpu", "memory")}
    assert keys <= pod_annotations.KNOWN.keys()
