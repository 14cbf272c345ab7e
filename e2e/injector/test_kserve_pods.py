"""Pods as KServe's controller makes them, beside a webhook that does to them what KServe's own does.

The API server calls webhooks in the order of their configurations' names, which nobody promises; so everything here
holds with KServe's before ours and after it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from e2e.cluster import client, control_plane
from e2e.injector import installation, manifests, other_webhooks, steps
from tests.injector import kserve_model, pods

TAKEOVER = {"carpool.dev/kserve-batcher": "takeover"}
BEFORE, AFTER = "a-webhook", "inferenceservice.serving.kserve.io"


@pytest.fixture(params=[BEFORE, AFTER])
def kserve(
    request: pytest.FixtureRequest,
    plane: control_plane.ControlPlane,
    admin: client.Client,
    shared: installation.Installation,
) -> Iterator[other_webhooks.OtherWebhook]:
    """KServe's webhook, under a name that sorts before ours or after it."""
    webhook = other_webhooks.OtherWebhook(request.param, kserve_model.mutate)
    with webhook.serve(plane, admin, {**shared.labels, **TAKEOVER}):
        yield webhook


@pytest.fixture
def models(
    kserve: other_webhooks.OtherWebhook, shared: installation.Installation, new_namespace: steps.NewNamespace
) -> str:
    """A namespace where KServe's pods get Carpool for its batcher, and both webhooks are called."""
    return new_namespace({**shared.labels, **TAKEOVER})


def predictor(namespace: str, annotations: client.Object | None = None, *, asks: bool = False) -> client.Object:
    """A pod in Standard mode; it asks for the sidecar itself only if told to."""
    made = manifests.placed(pods.kserve(pods.sklearn(), annotations=annotations), namespace)
    if not asks:
        del made["metadata"]["labels"][manifests.INJECT]
    return made


def container_names(stored: client.Object) -> list[str]:
    return [each["name"] for each in stored["spec"]["containers"]]


def test_an_unchanged_inference_service_with_a_batcher_gets_carpool_instead_of_kserves_agent(
    admin: client.Client, models: str
) -> None:
    stored = admin.create(predictor(models, pods.batched(16, 40))).object
    flags = manifests.sidecar_flags(stored)
    assert container_names(stored) == ["kserve-container"]
    assert manifests.status(stored)["takeover"] == "kserve-agent"
    # KServe's controller has pointed the Service at 9081 already, and the server keeps its port.
    assert (flags["--port"], flags["--component-port"]) == ("9081", "8080")
    assert (flags["--max-batch-size"], flags["--max-latency"]) == ("16", "40")


def test_our_own_annotations_overrule_those_of_kserves_batcher(admin: client.Client, models: str) -> None:
    both = {**pods.batched(16, 40), "carpool.dev/max-batch-size": "64"}
    flags = manifests.sidecar_flags(admin.create(predictor(models, both)).object)
    assert (flags["--max-batch-size"], flags["--max-latency"]) == ("64", "40")


def test_kserves_logger_stays_and_logs_what_the_callers_sent(admin: client.Client, models: str) -> None:
    stored = admin.create(predictor(models, {**pods.batched(), **pods.logged()})).object
    agent = pods.flags(pods.container(stored, "agent")["args"])
    assert "--log-url" in agent
    assert "--enable-batcher" not in agent
    assert agent["--component-port"] == manifests.sidecar_flags(stored)["--port"]


def test_a_knative_predictor_with_a_batcher_is_reached_through_queue_proxy(admin: client.Client, models: str) -> None:
    made = manifests.placed(pods.knative(pods.sklearn(), annotations=pods.batched()), models)
    stored = admin.create(made).object
    variables = {each["name"]: each.get("value") for each in pods.container(stored, "queue-proxy")["env"]}
    flags = manifests.sidecar_flags(stored)
    assert "agent" not in container_names(stored)
    assert variables["USER_PORT"] == flags["--port"]
    assert flags["--component-port"] == "8080"
    assert str(json.loads(variables["SERVING_READINESS_PROBE"])["httpGet"]["port"]) in (flags["--port"], "9082")


def test_a_predictor_without_a_batcher_is_kserves_alone(admin: client.Client, models: str) -> None:
    stored = admin.create(predictor(models, pods.logged())).object
    assert not manifests.has_sidecar(stored)
    assert container_names(stored) == ["kserve-container", "agent"]


def test_a_predictor_that_asks_itself_gets_carpool_in_front_of_its_port(admin: client.Client, models: str) -> None:
    stored = admin.create(predictor(models, asks=True)).object
    assert manifests.status(stored)["takeover"] == "port-swap"
    assert manifests.sidecar_flags(stored)["--port"] == "8080"


def test_the_model_is_fetched_before_the_sidecar_and_the_server_start(admin: client.Client, models: str) -> None:
    stored = admin.create(predictor(models, pods.batched())).object
    assert {each["name"] for each in stored["spec"]["initContainers"]} == {"storage-initializer", manifests.SIDECAR}


def test_a_namespace_that_leaves_the_batcher_to_kserve_keeps_kserves_agent(
    admin: client.Client,
    kserve: other_webhooks.OtherWebhook,
    shared: installation.Installation,
    new_namespace: steps.NewNamespace,
) -> None:
    # Out of that webhook's reach as well, so the pod comes with the agent that KServe has given it.
    namespace = new_namespace({**shared.labels, "carpool.dev/kserve-batcher": "leave"})
    made = kserve_model.mutate(predictor(namespace, pods.batched()))
    stored = admin.create(made).object
    assert container_names(stored) == ["kserve-container", "agent"]
    assert not manifests.has_sidecar(stored)


def test_both_orders_of_the_webhooks_end_in_the_same_pod(
    admin: client.Client,
    plane: control_plane.ControlPlane,
    shared: installation.Installation,
    new_namespace: steps.NewNamespace,
) -> None:
    namespace = new_namespace({**shared.labels, **TAKEOVER})
    made = predictor(namespace, {**pods.batched(16, 40), **pods.logged()})
    results = []
    for name in (BEFORE, AFTER):
        with other_webhooks.OtherWebhook(name, kserve_model.mutate).serve(plane, admin, {**shared.labels, **TAKEOVER}):
            stored = admin.create(made, dry_run=True).object
        results.append({each["name"]: told(each) for each in every_container(stored)})
    assert results[0] == results[1]
    assert set(results[0]) == {"kserve-container", "agent", "storage-initializer", manifests.SIDECAR}


def every_container(stored: client.Object) -> list[client.Object]:
    return [*stored["spec"].get("initContainers", ()), *stored["spec"]["containers"]]


def told(container: client.Object) -> client.Object:
    """What a container is told and where it listens."""
    return {key: container.get(key) for key in ("args", "env", "ports", "readinessProbe", "restartPolicy")}


def test_a_later_webhook_that_takes_away_what_makes_the_sidecar_native_is_put_right(
    admin: client.Client,
    plane: control_plane.ControlPlane,
    shared: installation.Installation,
    new_namespace: steps.NewNamespace,
) -> None:
    # As a webhook built with an API too old to know the field. The API server asks it once more after our repair only
    # if it wants that; one that does would have the last word.
    webhook = other_webhooks.OtherWebhook("z-forgetful", without_restart_policies, reinvoked=False)
    namespace = new_namespace(shared.labels)
    with webhook.serve(plane, admin, shared.labels):
        stored = admin.create(manifests.pod(namespace)).object
    assert webhook.calls == 1
    assert manifests.sidecar(stored)["restartPolicy"] == "Always"


def without_restart_policies(pod: client.Object) -> client.Object:
    changed = copy.deepcopy(pod)
    for container in changed["spec"].get("initContainers", ()):
        container.pop("restartPolicy", None)
    return changed
