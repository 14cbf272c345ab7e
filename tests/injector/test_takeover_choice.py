"""Which way of taking over is chosen, and which ports are free for it."""

from __future__ import annotations

import pytest

from carpool_injector.core import model
from carpool_injector.core.config import Config
from carpool_injector.core.takeover import context
from tests.injector import pods as sample_pods
from tests.injector.takeover_samples import UNKNOWN, UVICORN, plain, plan, refusal

OLD_SERVICES = model.Capabilities(native_sidecars=True, native_named_ports=False)


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


def test_a_number_of_thousands_of_digits_is_no_port_and_no_obstacle():
    assert plan(plain(UVICORN, {"name": "other", "args": ["--port=" + "9" * 5000]})).admin_port == 9082


# --- A port's name that several containers have: Services go to the first of them


def named(name, port, **members):
    return {"name": name, "image": "x/y:1", "ports": [{"name": "http", "containerPort": port}], **members}


MOVABLE = {**UVICORN, "ports": [{"name": "http", "containerPort": 8000}]}
NAMED = {**UNKNOWN, "ports": [{"name": "http", "containerPort": 7000}]}
HELPER = named("helper", 9000)


@pytest.mark.parametrize("app", [MOVABLE, NAMED], ids=["port-swap", "named-port"])
@pytest.mark.parametrize("mode", ["native", "classic"])
def test_a_container_that_would_be_found_by_the_name_instead_of_the_sidecar_is_refusal(app, mode):
    found = refusal(plain(app, HELPER, container="app", sidecar_mode=mode))
    assert found.code == "port-name-shared"
    assert "'helper'" in found.fix


def test_a_native_sidecar_of_others_is_found_before_ours_and_after_an_ordinary_one():
    pod = plain(MOVABLE)
    pod["spec"]["initContainers"] = [named("proxy", 9000, restartPolicy="Always")]
    assert refusal(pod).code == "port-name-shared"
    assert plan(pod, capabilities=model.Capabilities(False, False)).takeover == "port-swap"


def test_a_container_before_the_app_had_the_name_already():
    assert plan(plain(HELPER, MOVABLE, container="app")).takeover == "port-swap"
    assert refusal(plain(HELPER, NAMED, container="app")).code == "port-name-shared"


@pytest.mark.parametrize(
    "other",
    [
        {"name": "helper", "ports": [{"name": "http", "containerPort": 9000, "protocol": "UDP"}]},
        {"name": "helper", "ports": [{"name": "metrics", "containerPort": 9000}]},
        {"name": "helper"},
    ],
    ids=["another protocol", "another name", "no port"],
)
def test_ports_that_a_service_would_not_find_by_the_name_are_no_obstacle(other):
    assert plan(plain(MOVABLE, other, container="app")).takeover == "port-swap"


def test_an_init_container_that_ends_is_found_by_nobody():
    pod = plain(MOVABLE)
    pod["spec"]["initContainers"] = [named("fetch", 9000)]
    assert plan(pod).takeover == "port-swap"
