"""The golden cases with a real API server: it stores what the injector's tests expect."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from carpool_injector import config_file
from carpool_injector.core import injection, model
from e2e.cluster import client, control_plane
from e2e.injector import installation, manifests, steps
from tests.injector.golden import cases

CONFIG = config_file.parse(installation.CONFIG)
# The shared injector has the default configuration but for the image, and this cluster's capabilities; its registration
# sees of a namespace the labels alone. So these are the cases that can be brought here.
CASES = {
    case.name: case
    for case in cases.load_all()
    if case.config.model_copy(update={"image": CONFIG.image}) == CONFIG
    and case.capabilities == model.Capabilities()
    and not case.namespace.annotations
}
# What pods of the cases name and the API server looks up: cluster-wide, and in each namespace.
CLUSTER_WIDE: tuple[client.Object, ...] = (
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "inference"}, "value": 1000},
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
)
SERVICE_ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount"}
EnterNamespace = Callable[[dict[str, str]], tuple[str, str]]


@pytest.fixture(scope="module")
def enter_namespace(admin: client.Client, shared: installation.Installation) -> Iterator[EnterNamespace]:
    """Two namespaces with these labels, shared by the tests; the injector does not act in the second one."""
    made: dict[frozenset[tuple[str, str]], tuple[str, str]] = {}
    for thing in CLUSTER_WIDE:
        admin.create(thing)

    def create(name: str, labels: dict[str, str]) -> str:
        steps.create_namespace(admin, name, labels)
        admin.create({**SERVICE_ACCOUNT, "metadata": {"name": "iris", "namespace": name}})
        return name

    def enter(labels: dict[str, str]) -> tuple[str, str]:
        key = frozenset(labels.items())
        if key not in made:
            name = f"golden-{len(made)}"
            made[key] = create(name, {**shared.labels, **labels}), create(f"{name}-plain", labels)
        return made[key]

    yield enter
    for name in itertools.chain(*made.values()):
        admin.delete("Namespace", name)
    for thing in CLUSTER_WIDE:
        admin.delete(thing["kind"], thing["metadata"]["name"])


def test_most_of_the_golden_cases_can_be_brought_here() -> None:
    assert len(CASES) > 60


@pytest.mark.may_skip(
    "some golden pods are odd on purpose: an API server refuses them before any webhook, or stores them changed"
)
@pytest.mark.parametrize("name", CASES)
def test_the_api_server_stores_what_the_injector_says(
    admin: client.Client, plane: control_plane.ControlPlane, enter_namespace: EnterNamespace, name: str
) -> None:
    case = CASES[name]
    namespace, plain_namespace = enter_namespace(dict(case.namespace.labels))
    pod = copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **case.pod})
    pod["metadata"] = {"generateName": "golden-", **pod.get("metadata", {}), "namespace": namespace}
    out_of_reach = {**pod, "metadata": {**pod["metadata"], "namespace": plain_namespace}}
    try:
        plain = admin.create(out_of_reach, dry_run=True).object
    except client.Refused as refused:
        pytest.skip(f"the API server takes no such pod: {refused.message[:200]}")
    if "resources" in pod["spec"] and "resources" not in plain["spec"]:
        pytest.skip("this release takes the resources of pods away, behind the webhooks (its gate PodLevelResources)")
    stored = admin.create(pod, dry_run=True).object
    asked = {**plain, "metadata": {**plain["metadata"], "namespace": namespace}}
    outcome = injection.inject(asked, CONFIG, case.namespace, model.Capabilities.of(plane.release, None))
    assert manifests.has_sidecar(stored) == manifests.has_sidecar(outcome.pod)
    assert missing(outcome.pod["spec"], stored["spec"], "spec") == []
    assert missing(outcome.pod["metadata"].get("annotations", {}), stored["metadata"].get("annotations", {}), "") == []


def missing(expected: Any, found: Any, where: str) -> list[str]:
    """Where `found` lacks something of `expected`. More is fine: the API server adds defaults and a token's volume."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line for key in expected for line in missing(expected[key], found.get(key, "nothing"), f"{where}.{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list):
        return [line for pair in pairs(expected, found) for line in missing(*pair, f"{where}[{pair[0]!r:.40}]")]
    # The token's volume has a name of its own in each pod.
    same = expected == found or all(str(each).startswith("kube-api-access-") for each in (expected, found))
    return [] if same else [f"{where}: expected {expected!r}, stored is {found!r}"]


def pairs(expected: list[Any], found: list[Any]) -> list[tuple[Any, Any]]:
    """Elements that belong together: by name where both have names, else by place."""
    by_name = {identity(each): each for each in found if identity(each) is not None}
    return [
        (each, by_name.get(identity(each), "nothing") if identity(each) else (found[at : at + 1] or ["nothing"])[0])
        for at, each in enumerate(expected)
    ]


def identity(element: Any) -> str | None:
    """What an API server merges such elements by."""
    if not isinstance(element, dict):
        return None
    name = element.get("mountPath") or element.get("name")
    return "kube-api-access" if str(name).startswith("kube-api-access-") else name
