"""The golden cases: what is expected, what is true of each, and what must be true of every pod that was injected."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest

from carpool_injector.core import injection, model, pod_annotations
from carpool_injector.core.pods import MESH_PROXIES
from carpool_sidecar import config as sidecar_config
from tests.injector import admission_simulator, api_defaults, meshes, pod_rules, pods
from tests.injector.golden import cases, facts

CASES = {case.name: case for case in cases.load_all()}
INJECTED = [name for name, case in CASES.items() if case.facts["result"] == "injected"]

every_case = pytest.mark.parametrize("name", CASES)
every_injected_case = pytest.mark.parametrize("name", INJECTED)


@every_case
def test_what_comes_out_is_what_was_reviewed(name: str) -> None:
    case = CASES[name]
    made = cases.render(case, case.inject())
    assert made == case.expected, "if this is right: python -m tests.injector.golden, and look at the diff"


def test_what_is_usual_is_what_was_reviewed() -> None:
    assert cases.usual() == cases.USUAL.read_text()


@every_case
def test_the_facts_of_the_case_hold(name: str) -> None:
    case = CASES[name]
    assert facts.problems(case.facts, case.pod, case.inject()) == []


@every_case
def test_the_patch_makes_the_result_of_the_input_and_leaves_the_input_alone(name: str) -> None:
    case = CASES[name]
    given = copy.deepcopy(case.pod)
    outcome = case.inject(given)
    assert given == case.pod
    assert jsonpatch.apply_patch(given, outcome.patch) == outcome.pod
    assert (outcome.pod is given) == (outcome.patch == [])


@every_case
def test_injecting_twice_changes_nothing_more(name: str) -> None:
    case = CASES[name]
    assert case.inject(case.inject().pod).patch == []


@every_injected_case
def test_injecting_what_an_api_server_made_of_the_result_changes_nothing_more(name: str) -> None:
    """Between two calls the API server fills in defaults and mounts the service account's token."""
    case = CASES[name]
    received = api_defaults.defaulted(case.pod)
    stored = admission_simulator.mount_token(api_defaults.defaulted(case.inject(received).pod))
    assert case.inject(stored).patch == []


@every_injected_case
@pytest.mark.parametrize("other", meshes.OTHERS, ids=lambda other: other.__module__.rpartition(".")[2] + other.__name__)
def test_whichever_webhook_comes_in_between_the_sidecar_is_as_if_it_had_come_first(
    name: str, other: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    case = CASES[name]
    if any(each["name"] in MESH_PROXIES for each in api_defaults.containers(case.pod)):
        pytest.skip("it has a mesh already")
    received = api_defaults.defaulted(case.pod)
    first = case.inject(api_defaults.defaulted(other(received)))
    between = other(api_defaults.defaulted(case.inject(received).pod))
    last = case.inject(api_defaults.defaulted(between))
    assert (last.result, last.plan) == (first.result, first.plan)
    if first.plan is not None:
        after, before = (pods.container(api_defaults.defaulted(each.pod), model.CONTAINER) for each in (last, first))
        assert (after["resources"], after["args"]) == (before["resources"], before["args"])
        assert case.inject(api_defaults.defaulted(last.pod)).patch == []


@every_injected_case
@pytest.mark.parametrize("mesh", [meshes.with_istio, meshes.with_kuma])
def test_a_mesh_that_comes_later_and_sends_probes_through_its_proxy_changes_nothing(
    name: str, mesh: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    case = CASES[name]
    if name == "probes-of-another-host":
        pytest.skip("a mesh's proxy asks the pod, whatever host a probe names")
    injected = api_defaults.defaulted(case.inject(api_defaults.defaulted(case.pod)).pod)
    if not any(container["name"] in MESH_PROXIES for container in api_defaults.containers(injected)):
        assert case.inject(api_defaults.defaulted(mesh(injected))).patch == []


@every_injected_case
def test_a_restart_policy_taken_by_another_webhook_is_restored(name: str) -> None:
    """As every webhook does that was built before containers had one."""
    case = CASES[name]
    injected = case.inject().pod
    stripped = copy.deepcopy(injected)
    for container in stripped["spec"].get("initContainers") or ():
        if container["name"] == model.CONTAINER:
            container.pop("restartPolicy")
    assert case.inject(stripped).pod == injected


@every_injected_case
def test_uninjecting_gives_the_pod_back(name: str) -> None:
    """But for KServe's agent, of which a pod keeps no copy: its webhook adds it again, and sends queue-proxy to it.

    Empty is as good as absent.
    """
    case = CASES[name]
    before = _without_empty(case.pod)
    after = _without_empty(injection.uninject(case.inject().pod).pod)
    if model.CONTAINER in _names(before):
        assert model.CONTAINER not in _names(after), "declared by the owner for the sidecar, and goes with it"
        return
    if "agent" in _names(before):
        before, after = (_without_agent(pod) for pod in (before, after))
    assert after == before


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_uninjecting_leaves_a_container_alone_that_only_has_our_name(group: str) -> None:
    pod = pods.plain(pods.sklearn(), labels={})
    pod["spec"].setdefault(group, []).append({"name": model.CONTAINER, "image": "ghcr.io/acme/ride-sharing:1.0"})
    assert injection.uninject(pod).patch == []


@every_injected_case
def test_an_injected_pod_is_one_that_an_api_server_takes(name: str) -> None:
    pod = CASES[name].inject().pod
    assert pod_rules.invalid(pod) == []
    assert pod_rules.not_restricted(pod, pods.container(pod, model.CONTAINER)) == []


@every_injected_case
def test_the_sidecar_starts_with_the_flags_it_is_given(name: str) -> None:
    case = CASES[name]
    outcome = case.inject()
    assert outcome.plan is not None
    settings = sidecar_config.load(pods.expanded(facts.sidecar(outcome)["args"]))
    assert settings.port == outcome.plan.listen_port
    assert settings.admin_port == outcome.plan.admin_port
    assert settings.component_port == outcome.plan.app_port
    assert settings.grpc_port == (outcome.plan.grpc_listen_port or 0)
    assert outcome.plan.grpc_app_port in (None, settings.component_grpc_port)


@every_injected_case
def test_the_status_annotation_says_what_the_plan_says(name: str) -> None:
    outcome = CASES[name].inject()
    assert outcome.status is not None
    assert json.loads(outcome.pod["metadata"]["annotations"][pod_annotations.STATUS]) == dict(outcome.status)


@every_injected_case
def test_no_two_containers_listen_on_one_port(name: str) -> None:
    outcome = CASES[name].inject()
    assert listeners_in_conflict(outcome) == []


def test_every_case_file_is_in_use_and_says_what_it_is_about() -> None:
    assert len(CASES) > 60
    assert [case.name for case in CASES.values() if not case.written.startswith("situation: ")] == []


def listeners_in_conflict(outcome: model.Outcome) -> list[Any]:
    """Ports that the sidecar shares with what another container declares, or with the app."""
    assert outcome.plan is not None
    plan = outcome.plan
    ours = [plan.listen_port, plan.admin_port, *([plan.grpc_listen_port] if plan.grpc_listen_port else [])]
    taken = [plan.app_port, plan.grpc_app_port]
    for container in api_defaults.containers(outcome.pod):
        if container["name"] != model.CONTAINER:
            taken += [port["containerPort"] for port in container.get("ports") or ()]
    return [port for port in ours if port in taken] + ([ours] if len(set(ours)) < len(ours) else [])


def _names(pod: dict[str, Any]) -> list[str]:
    return [container["name"] for container in api_defaults.containers(pod)]


def _without_agent(pod: dict[str, Any]) -> dict[str, Any]:
    containers = [container for container in pod["spec"]["containers"] if container["name"] != "agent"]
    for container in containers:
        container["env"] = [item for item in container.get("env", []) if item["name"] != "USER_PORT"]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _without_empty(pod: dict[str, Any]) -> dict[str, Any]:
    kept = copy.deepcopy(pod)
    for key in ("annotations", "labels"):
        if not kept["metadata"].get(key):
            kept["metadata"].pop(key, None)
    if not kept["spec"].get("initContainers"):
        kept["spec"].pop("initContainers", None)
    return kept
