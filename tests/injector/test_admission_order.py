"""Our webhook and KServe's, in both orders, through a model of the API server: the same pod has to come out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector.core import config, injection, model
from tests.injector import admission_simulator, kserve_model, meshes, pod_rules, pods, routes, strategies

Object = dict[str, Any]

every_combination = pytest.mark.parametrize(
    ("mode", "logger", "batcher"), list(itertools.product(["Standard", "Knative"], [False, True], [False, True]))
)
both_orders = pytest.mark.parametrize("ours", ["a-carpool", "zz-carpool"], ids=["we come first", "KServe comes first"])


def pod_of(mode: str, logger: bool, batcher: bool) -> Object:
    annotations = (pods.logged() if logger else {}) | (pods.batched(16, 200) if batcher else {})
    make = pods.kserve if mode == "Standard" else pods.knative
    return make(pods.sklearn(), annotations=annotations)


def inject(pod: Object, native: bool = True) -> model.Outcome:
    return injection.inject(pod, config.Config(), model.Namespace("models"), model.Capabilities(native, native))


def admitted(pod: Object, ours: str, settings: kserve_model.Settings | None = None, native: bool = True) -> Object:
    webhooks = [
        admission_simulator.ours(functools.partial(inject, native=native), ours),
        admission_simulator.kserve(settings),
    ]
    return admission_simulator.admit(pod, webhooks).pod


@every_combination
@both_orders
@pytest.mark.parametrize("native", [True, False], ids=["native", "classic"])
def test_requests_take_the_same_way_whoever_comes_first(
    mode: str, logger: bool, batcher: bool, ours: str, native: bool
) -> None:
    pod = admitted(pod_of(mode, logger, batcher), ours, native=native)
    way = routes.route(pod, kserve_model.AGENT_PORT if logger or batcher else 8080)
    expected = (["queue-proxy"] if mode == "Knative" else []) + (["agent"] if logger else []) + [model.CONTAINER]
    assert way[:-1] == expected
    assert pod_rules.invalid(pod) == []


@every_combination
@pytest.mark.parametrize("native", [True, False], ids=["native", "classic"])
def test_both_orders_store_the_same_pod(mode: str, logger: bool, batcher: bool, native: bool) -> None:
    """But for the order of containers, and of init containers, which follows the order of the webhooks."""
    first, last = (admitted(pod_of(mode, logger, batcher), name, native=native) for name in ("a-carpool", "zz-carpool"))
    assert _unordered(first) == _unordered(last)


@given(strategies.situations(modes=("standard", "knative")), st.sampled_from(["a-carpool", "zz-carpool"]))
def test_whatever_the_pod_every_request_passes_the_sidecar_once_and_then_the_app(
    situation: strategies.Situation, ours: str
) -> None:
    webhooks = [admission_simulator.ours(situation.inject, ours), admission_simulator.kserve()]
    pod = admission_simulator.admit(situation.pod, webhooks).pod
    outcome = situation.inject(pod)
    if outcome.plan is not None:
        way = routes.route(pod, routes.entry(situation.pod))
        is_grpc = routes.first_port(situation.pod) == strategies.GRPC_PORT and outcome.plan.grpc_listen_port
        assert way[-2:] == [model.CONTAINER, str(outcome.plan.grpc_app_port if is_grpc else outcome.plan.app_port)]
        assert way.count(model.CONTAINER) == 1
        assert pod_rules.invalid(pod) == []


@given(strategies.situations(modes=("standard", "knative")))
def test_whatever_the_pod_both_orders_store_the_same(situation: strategies.Situation) -> None:
    kserve = admission_simulator.kserve()
    first, last = (
        admission_simulator.admit(situation.pod, [admission_simulator.ours(situation.inject, name), kserve]).pod
        for name in ("a-carpool", "zz-carpool")
    )
    assert _unordered(first) == _unordered(last)


@pytest.mark.parametrize("mesh", meshes.ALL)
def test_both_orders_store_the_same_pod_where_kserves_agent_brings_the_only_probe_to_a_mesh(
    mesh: Callable[[Object], Object],
) -> None:
    """That the mesh does not ask it in the kubelet's place tells only that it came after the mesh."""
    server = pods.sklearn(readinessProbe={"exec": {"command": ["test", "-f", "/tmp/ready"]}})
    pod = mesh(pods.kserve(server, annotations=pods.logged()))
    first, last = (admitted(pod, name) for name in ("a-carpool", "zz-carpool"))
    assert _unordered(first) == _unordered(last)


@every_combination
@both_orders
def test_what_is_stored_would_not_be_changed_by_yet_another_call(
    mode: str, logger: bool, batcher: bool, ours: str
) -> None:
    """There is no third round: what the second leaves behind is final, so it has to be at rest."""
    pod = admitted(pod_of(mode, logger, batcher), ours)
    assert inject(pod).patch == []
    assert kserve_model.mutate(pod) == pod


@every_combination
@both_orders
def test_the_agent_only_does_what_the_sidecar_does_not(mode: str, logger: bool, batcher: bool, ours: str) -> None:
    pod = admitted(pod_of(mode, logger, batcher), ours)
    agents = [container for container in pod["spec"]["containers"] if container["name"] == "agent"]
    assert len(agents) == int(logger)
    assert [flag for agent in agents for flag in agent["args"] if "batch" in flag and "log" not in flag] == []


@both_orders
def test_the_sidecar_never_holds_the_service_accounts_token(ours: str) -> None:
    """The ServiceAccount plugin runs again after webhooks and gives the token to containers without that mount."""
    pod = admitted(pod_of("Standard", False, False), ours)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = pods.container(pod, model.CONTAINER).get("volumeMounts") or []
    sources = [
        source
        for mount in mounts
        for source in volumes[mount["name"]].get("projected", {}).get("sources") or [{"serviceAccountToken": {}}]
    ]
    assert [source for source in sources if "serviceAccountToken" in source] == []
    assert any(mount["mountPath"] == admission_simulator.TOKEN_PATH for mount in mounts)


@both_orders
def test_a_kserve_too_old_for_native_sidecars_does_not_turn_ours_into_an_init_container(ours: str) -> None:
    """KServe up to 0.11 drops `restartPolicy` of containers: what is left would have to end before the app may start.

    That KServe is never called again: its webhook had no reinvocationPolicy yet.
    """
    settings = kserve_model.Settings(knows_native_sidecars=False)
    pod = admitted(pod_of("Standard", False, True), ours, settings)
    ours_in_init = [c for c in pod["spec"].get("initContainers") or () if c["name"] == model.CONTAINER]
    assert [container for container in ours_in_init if container.get("restartPolicy") != "Always"] == []


def test_a_webhook_is_called_again_only_after_others_changed_the_pod() -> None:
    """Of the simulator itself, after what kube-apiserver does."""
    label = lambda key: lambda pod: [{"op": "add", "path": f"/metadata/labels/{key}", "value": "x"}]  # noqa: E731
    first, second = admission_simulator.Webhook("a", label("a")), admission_simulator.Webhook("b", label("b"))
    never = admission_simulator.Webhook("0", label("z"), reinvoked=False)
    admitted_pod = admission_simulator.admit(pods.plain(pods.sklearn()), [second, first, never])
    assert admitted_pod.calls == (("0", 0), ("a", 0), ("b", 0), ("a", 1))


def test_a_webhook_that_is_alone_is_not_called_again_for_its_own_change() -> None:
    """Unless an in-tree plugin changes the pod after it."""
    webhook = admission_simulator.Webhook("a", lambda pod: [{"op": "add", "path": "/metadata/labels/a", "value": "x"}])
    assert admission_simulator.admit(pods.plain(pods.sklearn()), [webhook]).calls == (("a", 0),)


def _unordered(pod: Object) -> Object:
    spec = dict(pod["spec"])
    for key in ("containers", "initContainers", "volumes"):
        spec[key] = {each["name"]: each for each in spec.get(key) or ()}
    return {**pod, "spec": spec}
