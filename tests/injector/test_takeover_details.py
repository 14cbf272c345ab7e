"""Each way of taking over in the situations that decide between it and another, and the way back from it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from injector.core import errors, injection, model, pods
from injector.core.config import Config
from injector.core.takeover import context, kserve_agent
from tests.injector import kserve_model
from tests.injector import pods as sample_pods

Object = dict[str, Any]

OLD_SERVICES = model.Capabilities(native_sidecars=True, native_named_ports=False)
UVICORN = {"name": "app", "args": ["uvicorn", "a:b", "--port=8000"]}
UNKNOWN = {"name": "app", "image": "acme/scorer:1"}
BATCHER, LOGGER, PULLER = kserve_model.BATCHER, kserve_model.LOGGER, kserve_model.PULLER
PROBE = "SERVING_READINESS_PROBE"


def plain(*containers: Object, annotations: Object | None = None, **settings: str) -> Object:
    chosen = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in settings.items()}
    metadata = {"labels": {"carpool.dev/inject": "true"}, "annotations": {**chosen, **(annotations or {})}}
    return {"metadata": metadata, "spec": {"containers": copy.deepcopy(list(containers))}}


def outcome(
    given: Object, config: Config | None = None, capabilities: model.Capabilities | None = None
) -> model.Outcome:
    cluster = capabilities or model.Capabilities()
    return injection.inject(given, config or Config(), model.Namespace("ml"), cluster)


def plan(given: Object, config: Config | None = None, capabilities: model.Capabilities | None = None) -> model.Plan:
    found = outcome(given, config, capabilities)
    assert found.plan is not None, found.refusal
    return found.plan


def refusal(given: Object) -> errors.Refusal:
    found = outcome(given)
    assert found.refusal is not None, found.plan
    return found.refusal


def variables(pod: Object, name: str) -> Object:
    return {item["name"]: item.get("value") for item in sample_pods.container(pod, name).get("env") or ()}


# --- Which way


def test_a_pod_that_is_not_kserves_gets_no_agents_place_whatever_its_annotations_say():
    assert plan(plain(UVICORN, annotations=sample_pods.batched())).takeover == "port-swap"
    asked = plain(UVICORN, annotations=sample_pods.batched(), takeover="kserve-agent")
    assert refusal(asked).code == "no-takeover"


def test_the_name_of_a_kserve_pods_port_is_not_moved_as_its_service_sends_to_a_number():
    container = sample_pods.custom(ports=[{"containerPort": 8080, "name": "http"}])
    refused = refusal(sample_pods.kserve(container))
    assert refused.code == "no-takeover"
    assert "spec.predictor.batcher" in refused.fix
    assert "carpool.dev/app-port-arg" in refused.fix


@pytest.mark.parametrize(("name", "native"), [("http", False), (None, True)], ids=["by its name", "by its number"])
def test_a_swapped_port_keeps_the_sidecar_classic_only_where_services_may_look_for_its_name(name, native):
    entry = {"containerPort": 8000, **({"name": name} if name else {})}
    found = plan(plain({**UVICORN, "ports": [entry]}), capabilities=OLD_SERVICES)
    assert (found.takeover, found.native) == ("port-swap", native)


@pytest.mark.parametrize(
    ("admins", "annotated", "native"),
    [("classic", None, False), ("classic", "auto", False), ("classic", "native", True), ("native", "classic", False)],
)
def test_the_admins_mode_holds_unless_the_pod_chooses_one(admins, annotated, native):
    given = plain(UVICORN, **({"sidecar_mode": annotated} if annotated else {}))
    assert plan(given, Config(sidecar_mode=admins)).native is native


# --- Ports that are free


def test_ports_are_handed_out_once_and_past_those_of_knative_and_the_meshes():
    ports = context.Ports(frozenset())
    assert [ports.take() for _ in range(7)] == [9083, 9084, 9085, 9086, 9087, 9089, 9092]
    assert context.Ports(frozenset()).take(9083) == 9083
    both = context.Ports(frozenset())
    assert (both.take(9300), both.take(9300)) == (9300, 9083)


@pytest.mark.parametrize(
    "taken",
    [4140, 4143, 4190, 4191, 8008, 8012, 8013, 8022, 8112, 9081, 9088, 9090, 9091, 15000, 15001, 15004, 15006, 15008,
     15009, 15020, 15021, 15053, 15090],
)  # fmt: skip
def test_a_port_of_knative_or_a_mesh_is_not_had_even_where_the_admin_names_it(taken):
    assert context.Ports(frozenset()).take(taken) == 9083


def test_the_agents_port_may_be_had_only_where_it_will_not_be_there():
    assert context.Ports(frozenset()).take(9081, may_be_agents=True) == 9081
    assert context.Ports(frozenset({9081})).take(9081, may_be_agents=True) == 9083


@pytest.mark.parametrize(
    "other",
    [
        {"ports": [{"containerPort": 9082}]},
        {"ports": [{"containerPort": 70, "hostPort": 9082}]},
        {"livenessProbe": {"tcpSocket": {"port": 9082}}},
        {"startupProbe": {"grpc": {"port": 9082}}},
        {"lifecycle": {"postStart": {"httpGet": {"port": 9082}}}},
        {"args": ["--admin-port=9082"]},
        {"command": ["x", "--listen-port", "9082"]},
    ],
)
def test_a_port_that_anything_in_the_pod_speaks_of_is_not_free(other):
    assert plan(plain(UVICORN, {"name": "other", **other})).admin_port == 9083


@pytest.mark.parametrize("words", [["--seed=9082"], ["9082"], ["port", "9082"], ["--port=90821"], ["--port=x9082"]])
def test_other_numbers_among_arguments_block_no_port(words):
    assert plan(plain(UVICORN, {"name": "other", "args": words})).admin_port == 9082


def test_the_admins_ports_are_taken_before_the_app_moves():
    found = plan(plain(UVICORN), Config(admin_port=9083))
    assert (found.admin_port, found.app_port) == (9083, 9084)


def test_an_apps_undeclared_port_is_not_free():
    assert plan(plain(UNKNOWN, takeover="none", port="9081")).listen_port == 9083


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
    found = [getattr(kserve_agent.find(pod), member) for pod in (by_annotation, by_flag, neither)]
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


# --- Named port


def named() -> Object:
    probe = {"httpGet": {"path": "/r", "port": "http"}}
    return plain({**UNKNOWN, "ports": [{"containerPort": 7000, "name": "http"}], "readinessProbe": probe})


def test_a_moved_name_and_the_probes_by_it_come_back():
    found = outcome(named())
    app = found.pod["spec"]["containers"][0]
    assert (app["ports"][0]["name"], app["readinessProbe"]["httpGet"]["port"]) == ("carpool-app", "carpool-app")
    assert injection.uninject(found.pod).pod["spec"]["containers"] == named()["spec"]["containers"]


def test_the_name_is_found_whatever_the_order_of_the_sidecars_ports():
    stored = copy.deepcopy(outcome(named()).pod)
    stored["spec"]["initContainers"][0]["ports"].reverse()
    assert injection.uninject(stored).pod["spec"]["containers"] == named()["spec"]["containers"]


def test_a_name_that_somebody_took_from_the_sidecar_is_not_made_up_on_the_way_back():
    stored = copy.deepcopy(outcome(named()).pod)
    stored["spec"]["initContainers"][0]["ports"] = [{"containerPort": 9082, "name": "carpool-admin"}]
    app = injection.uninject(stored).pod["spec"]["containers"][0]
    assert app["ports"] == [{"containerPort": 7000, "name": "carpool-app"}]
    assert app["readinessProbe"]["httpGet"]["port"] == 7000


# --- Port swap


def test_a_declared_port_that_differs_from_the_default_is_where_an_untold_server_listens():
    found = plan(plain({"name": "app", "args": ["tritonserver"], "ports": [{"containerPort": 8080}]}))
    assert (found.takeover, found.listen_port, found.app_port) == ("port-swap", 8080, 9083)


def test_a_chosen_port_that_nothing_speaks_for_is_refused():
    refused = refusal(plain({"name": "app", "args": ["uvicorn", "a:b"]}, port="7000"))
    assert refused.code == "port-mismatch"
    assert "listens on 8000 if not told" in refused.message


@pytest.mark.parametrize(
    "container",
    [
        {"image": "nvcr.io/nvidia/tritonserver:24.05-py3", "args": ["tritonserver", "--model-repository=/m"]},
        {"image": "nvcr.io/nvidia/tritonserver:24.05-py3", "command": ["tritonserver"]},
    ],
)
def test_a_flag_is_added_where_command_or_arguments_are_written_out(container):
    found = outcome(plain({"name": "app", **container}))
    assert found.pod["spec"]["containers"][0]["args"][-1] == "--http-port=9083"
    assert injection.uninject(found.pod).pod["spec"]["containers"] == [{"name": "app", **container}]


def test_a_udp_port_of_the_same_number_stays_with_the_app():
    udp, tcp = {"containerPort": 8000, "protocol": "UDP"}, {"containerPort": 8000, "protocol": "TCP"}
    found = outcome(plain({**UVICORN, "ports": [udp, tcp]}))
    assert found.pod["spec"]["containers"][0]["ports"] == [udp, {"containerPort": 9083, "protocol": "TCP"}]
    assert found.pod["spec"]["initContainers"][0]["ports"][0] == {"name": "carpool-http", **tcp}


@pytest.mark.parametrize(
    "entry",
    [
        {"containerPort": 8000},
        {"containerPort": 8000, "name": "http"},
        {"containerPort": 8000, "name": "http", "protocol": "TCP", "hostPort": 80},
    ],
)
def test_a_swapped_port_comes_back_as_it_was_declared(entry):
    port = entry.get("name", 8000)
    container = {**UVICORN, "ports": [entry], "livenessProbe": {"tcpSocket": {"port": port}}}
    found = outcome(plain(container))
    assert found.pod["spec"]["containers"][0]["ports"] != [entry]
    assert injection.uninject(found.pod).pod["spec"]["containers"] == [container]


def test_probes_by_a_name_that_somebody_took_from_the_sidecar_go_to_the_number_on_the_way_back():
    probe = {"tcpSocket": {"port": "http"}}
    given = plain({**UVICORN, "ports": [{"containerPort": 8000, "name": "http"}], "livenessProbe": probe})
    stored = copy.deepcopy(outcome(given).pod)
    del stored["spec"]["initContainers"][0]["ports"]
    app = injection.uninject(stored).pod["spec"]["containers"][0]
    assert app["livenessProbe"]["tcpSocket"]["port"] == 8000


def test_a_variable_that_somebody_set_since_is_not_overwritten_on_the_way_back():
    env = [{"name": "MLSERVER_HTTP_PORT", "value": "8080"}]
    stored = copy.deepcopy(outcome(plain({"name": "app", "image": "seldonio/mlserver:1", "env": env})).pod)
    stored["spec"]["containers"][0]["env"][0]["value"] = "7777"
    after = injection.uninject(stored).pod
    assert variables(after, "app") == {"MLSERVER_HTTP_PORT": "7777"}


def test_of_a_flag_given_twice_only_the_one_that_counts_is_changed():
    given = plain({"name": "app", "args": ["uvicorn", "--port=1", "--port", "8000"]})
    found = outcome(given)
    assert found.pod["spec"]["containers"][0]["args"] == ["uvicorn", "--port=1", "--port", "9083"]
    assert injection.uninject(found.pod).pod["spec"] == given["spec"]


def test_a_number_of_thousands_of_digits_is_no_port_and_no_obstacle():
    assert plan(plain(UVICORN, {"name": "other", "args": ["--port=" + "9" * 5000]})).admin_port == 9082


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
