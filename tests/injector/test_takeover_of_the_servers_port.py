"""Taking over by moving the server's own port or its name, and the way back from it."""

from __future__ import annotations

import copy

import pytest

from carpool_injector.core import injection
from tests.injector.takeover_samples import UNKNOWN, UVICORN, Object, outcome, plain, plan, refusal, variables

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
    refused = refusal(plain({"name": "app", "args": ["uvicorn", "a:b", "--host=::"]}, port="7000"))
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
    assert found.pod["spec"]["containers"][0]["args"][-2:] == ["--http-port=9083", "--grpc-port=9084"]
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
    given = plain({"name": "app", "args": ["uvicorn", "--host=::", "--port=1", "--port", "8000"]})
    found = outcome(given)
    assert found.pod["spec"]["containers"][0]["args"] == ["uvicorn", "--host=::", "--port=1", "--port", "9083"]
    assert injection.uninject(found.pod).pod["spec"] == given["spec"]


# --- Beside and in containers with names of KServe's and Knative's


@pytest.mark.parametrize("name", ["agent", "queue-proxy"])
def test_ports_of_a_container_with_the_name_of_a_proxy_of_the_platforms_are_not_given_to_others(name):
    declared = [{"containerPort": 9082}, {"containerPort": 9083}]
    found = plan(plain(UVICORN, {"name": name, "image": "acme/metrics:1", "ports": declared}))
    assert (found.container, found.app_port, found.admin_port) == ("app", 9085, 9084)
    found = plan(plain({**UVICORN, "name": name, "ports": [{"containerPort": 8000, "name": "http"}, *declared]}))
    assert (found.container, found.app_port, found.admin_port) == (name, 9085, 9084)


@pytest.mark.parametrize("name", ["agent", "queue-proxy"])
def test_a_probes_command_that_may_mean_the_port_is_refused_whatever_the_container_is_called(name):
    probe = {"exec": {"command": ["/check.sh", "8000"]}}
    assert refusal(plain({**UVICORN, "name": name, "livenessProbe": probe})).code == "port-in-command"
