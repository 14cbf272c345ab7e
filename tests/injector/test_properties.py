"""What holds for every pod that could exist."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonpatch
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from carpool_injector.core import config, injection, model, pod_annotations, references
from carpool_injector.core import pods as views
from carpool_sidecar import config as sidecar_config
from tests.injector import admission_simulator, api_defaults, kserve_model, meshes, pod_rules, pods, strategies

Object = dict[str, Any]

# All that injecting may change, as paths in which `*` stands for one member or the name of a list's element.
CHANGEABLE = (
    "metadata.annotations",
    "metadata.annotations.carpool.dev/status",
    "metadata.annotations.internal.serving.kserve.io/batcher",
    "spec.initContainers",
    "spec.initContainers.carpool",
    "spec.containers.carpool",
    "spec.volumes",
    "spec.volumes.carpool-no-token",
    # KServe's agent: gone where it only batches, else sent to the sidecar without its batcher's flags.
    "spec.containers.agent",
    "spec.containers.agent.args",
    "spec.containers.agent.env.SERVING_READINESS_PROBE.value",
    "spec.containers.queue-proxy.env.USER_PORT.value",
    "spec.containers.queue-proxy.env.SERVING_READINESS_PROBE.value",
    # The app, where it gives its port to the sidecar.
    "spec.containers.*.args",
    "spec.containers.*.args.*",
    "spec.containers.*.env",
    "spec.containers.*.env.*.value",
    "spec.containers.*.env.*",
    "spec.containers.*.ports.*.containerPort",
    "spec.containers.*.ports.*.name",
    "spec.containers.*.*Probe.*.port",
    "spec.containers.*.lifecycle",
    "spec.containers.*.lifecycle.preStop",
    # Where a mesh's proxy asks for the kubelet: Istio's is told by a variable, Kuma's by the path.
    "spec.*.istio-proxy.env.ISTIO_KUBE_APP_PROBERS",
    "spec.*.istio-proxy.env.ISTIO_KUBE_APP_PROBERS.value",
    "spec.containers.*.*Probe.httpGet.path",
)
_ALLOWED = [re.compile(re.escape(path).replace(r"\*", "[^ ]+?")) for path in CHANGEABLE]
# Fields that the admin may set, or else the API server or OpenShift: what is there stays where the admin says nothing.
_SET_BY_OTHERS_TOO = (".imagePullPolicy", ".securityContext.runAsUser")
_FOREIGN = ("feature-cache", "linkerd-proxy", "istio-proxy", "istio-init", "linkerd-init", "storage-initializer")


@given(strategies.situations())
def test_the_patch_is_the_way_from_the_input_to_the_result_and_the_input_stays(situation: strategies.Situation) -> None:
    before = copy.deepcopy(situation.pod)
    outcome = situation.inject()
    assert situation.pod == before
    assert jsonpatch.apply_patch(before, outcome.patch) == outcome.pod
    assert (outcome.pod is situation.pod) == (not outcome.patch)


@given(strategies.situations())
def test_injecting_again_changes_nothing_whatever_others_did_in_between(situation: strategies.Situation) -> None:
    once = _injected(situation).pod
    assert situation.inject(once).patch == []
    assert situation.inject(admission_simulator.mount_token(once)).patch == []
    if not {container["name"] for container in api_defaults.containers(once)} & {"istio-proxy", "kuma-sidecar"}:
        assert situation.inject(meshes.with_istio(once)).patch == []


@given(strategies.situations(), st.sampled_from(meshes.OTHERS))
def test_whichever_webhook_comes_in_between_the_sidecar_is_as_if_it_had_come_first(
    situation: strategies.Situation, other: Callable[[Object], Object]
) -> None:
    received = api_defaults.defaulted(situation.pod)
    assume(not {each["name"] for each in api_defaults.containers(received)} & {"istio-proxy", "kuma-sidecar"})
    between = other(api_defaults.defaulted(situation.inject(received).pod))
    first = situation.inject(api_defaults.defaulted(other(received)))
    last = situation.inject(api_defaults.defaulted(between))
    assert (last.result, last.plan) == (first.result, first.plan)
    assume(first.plan is not None)
    before, after = (pods.container(api_defaults.defaulted(each.pod), model.CONTAINER) for each in (first, last))
    assert (after["resources"], after["args"]) == (before["resources"], before["args"])
    assert situation.inject(api_defaults.defaulted(last.pod)).patch == []


def test_a_guaranteed_pod_whose_agent_goes_is_injected_once_for_all() -> None:
    pod = kserve_model.mutate(pods.kserve(pods.sklearn(), annotations=pods.batched(16, 200)))
    pod["spec"].pop("initContainers", None)
    situation = strategies.Situation(pod, model.Namespace("models"), model.Capabilities(), config.Config())
    once = situation.inject().pod
    assert model.CONTAINER in {each["name"] for each in once["spec"]["initContainers"]}
    assert pods.container(once, model.CONTAINER)["resources"]["requests"] == {"cpu": "500m", "memory": "512Mi"}
    assert situation.inject(once).patch == []


@pytest.mark.parametrize("more", [[], ["--enable-puller"], ["--log-url", "http://log"], ["--max-batchsize", "16"]])
@pytest.mark.parametrize("queue", [False, True])
def test_an_agent_that_only_its_arguments_show_is_taken_over_once_for_all(more: list[str], queue: bool) -> None:
    pod = pods.kserve(pods.sklearn())
    agent = {"name": "agent", "image": "kserve/agent", "args": ["--enable-batcher", *more, "--component-port", "8080"]}
    beside = [{"name": "queue-proxy", "image": "queue", "env": [{"name": "USER_PORT", "value": "9081"}]}]
    pod["spec"]["containers"] += [agent, *(beside if queue else [])]
    situation = strategies.Situation(pod, model.Namespace("models"), model.Capabilities(), config.Config())
    first = situation.inject()
    assert first.plan is not None
    assert first.plan.takeover == ("queue-proxy" if queue else "kserve-agent")
    again = situation.inject(first.pod)
    assert (again.plan, again.patch) == (first.plan, [])


@given(strategies.situations())
def test_injecting_again_changes_nothing_in_what_an_api_server_made_of_it(situation: strategies.Situation) -> None:
    received = api_defaults.defaulted(situation.pod)
    outcome = situation.inject(received)
    assume(outcome.result == "injected")
    assert situation.inject(api_defaults.defaulted(outcome.pod)).patch == []


@given(strategies.situations())
def test_a_stripped_restart_policy_comes_back(situation: strategies.Situation) -> None:
    once = _injected(situation).pod
    stripped = copy.deepcopy(once)
    for container in stripped["spec"].get("initContainers") or ():
        container.pop("restartPolicy", None) if container["name"] == model.CONTAINER else None
    assert situation.inject(stripped).pod == once


@given(strategies.situations(), strategies.configs)
def test_injecting_with_other_settings_is_like_never_having_had_the_first_ones(
    situation: strategies.Situation, other: config.Config
) -> None:
    once = _injected(situation)
    changed = dataclasses.replace(situation, config=other)
    afresh = changed.inject()
    assert changed.inject(once.pod).plan == afresh.plan
    if "agent" not in {container["name"] for container in situation.pod["spec"]["containers"]}:
        again = changed.inject(once.pod).pod
        differ = list(changes(api_defaults.defaulted(afresh.pod), api_defaults.defaulted(again)))
        assert [path for path in differ if not path.endswith(_SET_BY_OTHERS_TOO)] == []


@given(strategies.situations())
def test_the_sidecar_accepts_its_flags(situation: strategies.Situation) -> None:
    outcome = _injected(situation)
    assert outcome.plan is not None
    settings = sidecar_config.load(pods.expanded(pods.container(outcome.pod, model.CONTAINER)["args"]))
    plan = outcome.plan
    ports = (settings.component_port, settings.port, settings.admin_port, settings.grpc_port)
    assert ports == (plan.app_port, plan.listen_port, plan.admin_port, plan.grpc_listen_port or 0)
    assert plan.grpc_app_port in (None, settings.component_grpc_port)
    patience = outcome.pod["spec"]["terminationGracePeriodSeconds"]
    assert settings.grace_period < max(patience, 1) or patience == 30


@given(strategies.situations())
def test_nothing_changes_outside_the_allowed_paths(situation: strategies.Situation) -> None:
    outcome = situation.inject()
    changed = list(changes(situation.pod, outcome.pod))
    assert [path for path in changed if not any(form.fullmatch(path) for form in _ALLOWED)] == []
    others = [path for path in changed if any(f".{name}." in f"{path}." for name in _FOREIGN)]
    assert [path for path in others if ".istio-proxy.env.ISTIO_KUBE_APP_PROBERS" not in path] == []


@given(strategies.situations())
def test_devices_scheduling_and_resources_of_others_stay_as_they_are(situation: strategies.Situation) -> None:
    after = situation.inject().pod
    for key in ("tolerations", "resourceClaims", "runtimeClassName", "nodeSelector", "affinity", "imagePullSecrets"):
        assert after["spec"].get(key) == situation.pod["spec"].get(key)
    resources = {c["name"]: c.get("resources") for c in api_defaults.containers(after)}
    for container in api_defaults.containers(situation.pod):
        if container["name"] != "agent":
            assert resources[container["name"]] == container.get("resources")
    ours = resources.get(model.CONTAINER) or {}
    assert {name for amounts in ours.values() for name in amounts} <= {"cpu", "memory"}, (
        "and no device is the sidecar's"
    )


@given(strategies.situations())
def test_what_is_injected_can_be_stored_and_passes_restricted_pod_security(situation: strategies.Situation) -> None:
    assume(not pod_rules.invalid(situation.pod))
    pod = _injected(situation).pod
    assert pod_rules.invalid(pod) == []
    assert pod_rules.not_restricted(pod, pods.container(pod, model.CONTAINER)) == []


@given(strategies.situations())
def test_the_sidecar_and_the_app_listen_where_nobody_else_does(situation: strategies.Situation) -> None:
    outcome = _injected(situation)
    assert outcome.plan is not None
    plan = outcome.plan
    listens = {plan.listen_port, plan.admin_port} | ({plan.grpc_listen_port} - {None})
    apps = {plan.app_port} | ({plan.grpc_app_port} - {None})
    taken: set[int] = set()
    for container in api_defaults.containers(outcome.pod):
        declared = {port["containerPort"] for port in container.get("ports") or ()}
        if container["name"] == model.CONTAINER:
            assert declared == listens
        else:
            taken |= declared - (apps if container["name"] == plan.container else set())
    assert len(listens) == (3 if plan.grpc_listen_port else 2)
    assert not apps & listens
    assert not taken & (apps | listens)


@given(strategies.situations())
def test_nothing_that_follows_the_app_goes_on_naming_a_port_that_the_sidecar_took(
    situation: strategies.Situation,
) -> None:
    outcome = _injected(situation)
    assert outcome.plan is not None
    plan, after = outcome.plan, views.read(outcome.pod)
    app = after.container(plan.container)
    assert app is not None
    http = [plan.listen_port] if plan.takeover == "port-swap" and plan.app_port != plan.listen_port else []
    for port in {*http, plan.grpc_listen_port if plan.takeover in ("port-swap", "kserve-agent") else None} - {None}:
        left = [each for each in references.find(after, app, port, None) if each.fate is not references.Fate.STAYS]
        assert left == []


@given(strategies.situations())
def test_the_status_tells_every_move_of_the_plan_so_that_it_can_be_undone(situation: strategies.Situation) -> None:
    outcome = _injected(situation)
    done = pod_annotations.read_status(views.read(outcome.pod))
    assert done is not None
    assert outcome.plan is not None
    assert done.moves == list(outcome.plan.moves)


@given(strategies.situations())
def test_uninjecting_gives_back_the_pod(situation: strategies.Situation) -> None:
    """Whole, except for KServe's agent: its webhook adds it again, and sends queue-proxy to it."""
    after = injection.uninject(_injected(situation).pod).pod
    changed = list(changes(situation.pod, after))
    if "agent" in {container["name"] for container in situation.pod["spec"]["containers"]}:
        changed = [path for path in changed if "containers.agent" not in path and "env.USER_PORT" not in path]
    assert changed == []


@given(strategies.situations())
def test_a_pod_that_is_refused_is_left_as_it_was_but_for_the_reason(situation: strategies.Situation) -> None:
    outcome = situation.inject()
    if outcome.result != "injected":
        assert outcome.refusal is not None or outcome.decision.reason
        assert outcome.pod["spec"] == situation.pod["spec"]


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths that differ; elements of lists go by their name, else by their place. Empty and absent are the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from changes(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif _has_names(before) and _has_names(after) and (before or after) and not path.endswith("ports"):
        yield from changes(*({each["name"]: each for each in side or ()} for side in (before, after)), path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        yield from changes(*(dict(enumerate(side)) for side in (before, after)), path)
    elif before != after and (before or after):
        yield path


def _injected(situation: strategies.Situation) -> model.Outcome:
    outcome = situation.inject()
    assume(outcome.result == "injected")
    return outcome


def _has_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(v, dict) and "name" in v for v in value))
