"""Taking over where KServe's agent or Knative's queue-proxy stands before the server, and the way back from it."""

from __future__ import annotations

import copy
import json

import pytest

from carpool_injector.core import injection, pods
from carpool_injector.core.takeover import proxies
from tests.injector import kserve_model
from tests.injector import pods as sample_pods
from tests.injector.takeover_samples import Object, outcome, refusal, variables

BATCHER, LOGGER, PULLER = kserve_model.BATCHER, kserve_model.LOGGER, kserve_model.PULLER
PROBE = "SERVING_READINESS_PROBE"


# --- KServe's agent


@pytest.mark.parametrize(
    ("annotation", "flag", "member"),
    [(BATCHER, "--enable-batcher", "batches"), (LOGGER, "--log-url", "logs"), (PULLER, "--enable-puller", "pulls")],
)
def test_what_the_agent_does_is_told_by_an_annotation_or_by_a_flag_it_has(annotation, flag, member):
    def kserve(*more: Object, **annotations: str) -> pods.Pod:
        return pods.read(sample_pods.kserve(sample_pods.sklearn(), *more, annotations=annotations))

    port = ["--component-port", "8080"]
    by_annotation = kserve(**{annotation: "true"})
    by_flag = kserve({"name": "agent", "image": "kserve/agent:v0.20.0", "args": [flag, *port]})
    neither = kserve({"name": "agent", "image": "kserve/agent:v0.20.0", "args": port})
    found = [getattr(proxies.find_agent(pod), member) for pod in (by_annotation, by_flag, neither)]
    assert found == [True, True, False]


@pytest.mark.parametrize("more", [LOGGER, PULLER])
def test_an_agent_that_does_more_than_batch_stays_and_sends_to_the_sidecar(more):
    given = kserve_model.mutate(
        sample_pods.kserve(sample_pods.sklearn(), annotations={**sample_pods.batched(), more: "true"}),
        kserve_model.Settings(),
    )
    found = outcome(given)
    assert found.plan is not None
    assert (found.plan.takeover, found.plan.listen_port) == ("kserve-agent", 9083)
    args = sample_pods.container(found.pod, "agent")["args"]
    assert args[-2:] == ["--component-port", "9083"]
    assert not {"--enable-batcher", "--max-batchsize", "--max-latency", "32", "500"} & set(args)
    after = injection.uninject(found.pod).pod
    assert sample_pods.container(after, "agent")["args"][-2:] == ["--component-port", "8080"]
    assert after["metadata"]["annotations"][BATCHER] == "true"


def test_an_agent_whose_port_is_joined_to_its_flag_is_turned_too():
    agent = {"name": "agent", "image": "kserve/agent", "args": ["--log-url=http://x", "--component-port=8080"]}
    given = sample_pods.kserve(sample_pods.sklearn(), agent, annotations=sample_pods.logged())
    found = outcome(given)
    assert sample_pods.container(found.pod, "agent")["args"] == ["--log-url=http://x", "--component-port=9083"]
    assert sample_pods.container(injection.uninject(found.pod).pod, "agent") == agent


def test_a_container_named_agent_that_is_not_kserves_is_left_alone():
    theirs = {"name": "agent", "image": "datadog/agent:7", "args": ["run"]}
    given = sample_pods.kserve(sample_pods.sklearn(), theirs, annotations=sample_pods.batched())
    found = outcome(given)
    assert found.result == "injected"
    assert sample_pods.container(found.pod, "agent") == theirs


def test_a_neighbour_on_the_port_that_kserves_service_sends_to_is_refused():
    neighbour = {"name": "cache", "image": "redis:7", "ports": [{"containerPort": 9081}]}
    given = sample_pods.kserve(sample_pods.sklearn(), neighbour, annotations=sample_pods.batched())
    assert refusal(given).code == "port-taken"


# --- Knative's queue-proxy


def knative(probe: str, *more: Object, annotations: Object | None = None) -> Object:
    given = sample_pods.knative(sample_pods.sklearn(), *more, annotations=annotations)
    for item in sample_pods.container(given, "queue-proxy")["env"]:
        if item["name"] == PROBE:
            item["value"] = probe
    return given


@pytest.mark.parametrize("text", ["5", '"x"', "null", "true", "no json", "", "[" * 100_000])
def test_what_is_no_probe_is_left_to_queue_proxy_and_not_handed_to_the_sidecar(text):
    found = outcome(knative(text))
    assert found.result == "injected"
    assert variables(found.pod, "queue-proxy")[PROBE] == text
    assert PROBE not in variables(found.pod, "carpool")


@pytest.mark.parametrize("text", ['[{"tcpSocket":{"port":8080}}]', ' [{"tcpSocket":{"port":8080}}]'])
def test_a_list_of_probes_is_answered_by_a_list(text):
    found = outcome(knative(text))
    asked = json.loads(variables(found.pod, "queue-proxy")[PROBE])
    assert [each["httpGet"]["port"] for each in asked] == [9082]
    assert variables(injection.uninject(found.pod).pod, "queue-proxy")[PROBE] == text


def test_behind_an_agent_that_stays_the_agent_and_not_queue_proxy_is_turned():
    given = kserve_model.mutate(
        sample_pods.knative(sample_pods.sklearn(), annotations=sample_pods.logged()), kserve_model.Settings()
    )
    found = outcome(given)
    assert found.plan is not None
    assert found.plan.listen_port == 9083
    assert variables(found.pod, "queue-proxy")["USER_PORT"] == "9081"
    assert variables(found.pod, "agent")["USER_PORT"] == "8080"
    assert variables(found.pod, "agent")[PROBE] == variables(found.pod, "queue-proxy")[PROBE]
    after = injection.uninject(found.pod).pod
    assert variables(after, "queue-proxy") == variables(given, "queue-proxy")
    assert variables(after, "agent") == variables(given, "agent")


def test_an_agent_without_variables_is_given_none():
    agent = {"name": "agent", "image": "kserve/agent", "args": ["--log-url", "http://x", "--component-port", "8080"]}
    given = sample_pods.knative(sample_pods.sklearn(), agent, annotations=sample_pods.logged())
    assert "env" not in sample_pods.container(outcome(given).pod, "agent")


def test_a_probe_that_somebody_changed_since_is_left_on_the_way_back():
    stored = copy.deepcopy(outcome(sample_pods.knative(sample_pods.sklearn())).pod)
    theirs = '{"tcpSocket":{"port":1}}'
    for item in sample_pods.container(stored, "queue-proxy")["env"]:
        if item["name"] == PROBE:
            item["value"] = theirs
    assert variables(injection.uninject(stored).pod, "queue-proxy")[PROBE] == theirs


def test_a_user_port_that_somebody_changed_since_is_left_on_the_way_back():
    stored = copy.deepcopy(outcome(sample_pods.knative(sample_pods.sklearn())).pod)
    for item in sample_pods.container(stored, "queue-proxy")["env"]:
        if item["name"] == "USER_PORT":
            item["value"] = "7"
    assert variables(injection.uninject(stored).pod, "queue-proxy")["USER_PORT"] == "7"


def test_where_the_agent_is_still_to_come_queue_proxy_is_turned_to_the_sidecar():
    found = outcome(sample_pods.knative(sample_pods.sklearn(), annotations=sample_pods.logged()))
    assert found.plan is not None
    assert found.plan.listen_port == 9083
    assert variables(found.pod, "queue-proxy")["USER_PORT"] == "9083"


def test_a_logger_that_comes_after_the_sidecar_gets_its_port_and_stays_in_front():
    first = outcome(sample_pods.knative(sample_pods.sklearn(), annotations=sample_pods.batched()))
    assert first.plan is not None
    assert first.plan.listen_port == kserve_model.AGENT_PORT
    stored = copy.deepcopy(first.pod)
    stored["metadata"]["annotations"] |= sample_pods.logged()
    second = outcome(kserve_model.mutate(stored, kserve_model.Settings()))
    assert second.plan is not None
    assert second.plan.listen_port == 9083
    assert variables(second.pod, "queue-proxy")["USER_PORT"] == str(kserve_model.AGENT_PORT)
    assert sample_pods.container(second.pod, "agent")["args"][-2:] == ["--component-port", "9083"]
