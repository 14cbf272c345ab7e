"""The port for gRPC in what people hear and see: explained, injected offline, reviewed, declared without a webhook."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool_injector.core import refusals
from carpool_injector.objects import collocation
from tests.injector import pods
from tests.injector.command_runs import run
from tests.injector.object_samples import CONFIG, MODE, Object
from tests.injector.validations import answer

H2C = [{"containerPort": 9000, "name": "h2c", "protocol": "TCP"}]


def service(mode: str = "Standard", runtime: str = "triton", **members: Any) -> Object:
    """An InferenceService that asks for the sidecar. `ports` go to the model, other members are annotations."""
    ports = {"ports": members.pop("ports")} if "ports" in members else {}
    annotations = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in members.items()}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "simple", "annotations": {MODE: mode}},
        "spec": {
            "predictor": {
                "labels": {"carpool.dev/inject": "true"},
                "annotations": annotations,
                "model": {"modelFormat": {"name": runtime}, "storageUri": "s3://models/simple", **ports},
            }
        },
    }


def explained(thing: Object) -> Object:
    (found,) = json.loads(run("explain", "--output=json", text=json.dumps(thing)).stdout)
    return dict(found)


@pytest.mark.parametrize("runtime", ["triton", "kserve-tritonserver", "tensorrt", "mlserver", "kserve-mlserver"])
def test_kserves_runtimes_of_the_v2_protocol_are_expected_to_give_up_both_ports(runtime: str) -> None:
    found = explained(service(runtime=runtime))["plan"]
    assert (found["listenPort"], found["appPort"]) == (8080, 9083)
    assert (found["grpcListenPort"], found["grpcAppPort"]) == (9000, 9084)


def test_a_service_for_grpc_is_explained_in_both_modes() -> None:
    standard, knative = (explained(service(mode, ports=H2C))["plan"] for mode in ("Standard", "Knative"))
    assert (standard["takeover"], standard["grpcListenPort"], standard["grpcAppPort"]) == ("port-swap", 9000, 9084)
    assert (knative["takeover"], knative["grpcListenPort"], knative["grpcAppPort"]) == ("queue-proxy", 9083, 9000)


def test_explain_says_where_callers_reach_what_by_grpc() -> None:
    said = run("explain", text=json.dumps(service())).stdout
    assert "callers reach it on 8080, it reaches the app on 9083; for gRPC: 9000, 9084; admin port 9082" in said


def test_a_manifest_gets_both_ports_and_gives_them_back() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **pods.plain(pods.triton())}
    pod["metadata"] = {"name": "triton", **pod["metadata"]}
    given = json.dumps(pod)
    done = run("inject", text=given)
    assert "listening on 8080, the app on 9083; for gRPC on 9000, the app on 9084" in done.stderr
    assert json.loads(done.stdout) != pod
    assert run("inject", text=done.stdout).stdout == done.stdout
    assert json.loads(run("uninject", text=done.stdout).stdout) == pod


@pytest.mark.parametrize(
    "thing",
    [
        service(),
        service(ports=H2C),
        service(ports=H2C, grpc_port="h2c"),
        service(upstream="triton-grpc"),
        service(upstream="triton-http", retry_statuses="4xx,500"),
        service(runtime="acme-v2", upstream="triton-grpc", app_port_arg="--http"),
        service(runtime="acme-v2", grpc_port="9000", app_grpc_port_arg="--rpc", app_port_arg="--http"),
        service(runtime="acme-v2", grpc_port="9000", app_grpc_port_env="RPC", app_port_env="HTTP"),
    ],
    ids=str,
)
def test_what_kserve_will_run_is_warned_about_only_for_what_is_certain(thing: Object) -> None:
    found = answer(thing)
    assert (found.allowed, found.warnings) == (True, ())


@pytest.mark.parametrize("word", ["grpc port", "70000", "-1", "Off", ""])
def test_a_port_that_is_none_is_denied(word: str) -> None:
    found = answer(service(grpc_port=word))
    assert not found.allowed
    assert "carpool.dev/grpc-port" in found.message
    assert "must be a port from 1 to 65535 or a port's name, or off" in found.message


# --- Declared without a webhook


def flags(thing: Object) -> dict[str, str]:
    declared, _ = collocation.declared(thing, CONFIG)
    return pods.flags(declared["spec"]["predictor"]["containers"][-1]["args"])


def test_a_declared_sidecar_calls_triton_by_grpc_where_it_listens() -> None:
    found = flags(service(upstream="triton-grpc"))
    assert (found["--upstream"], found["--component-grpc-port"]) == ("triton-grpc", "9000")
    assert "--grpc-port" not in found


def test_a_declared_sidecar_that_speaks_http_to_triton_needs_no_port_for_grpc() -> None:
    assert "--component-grpc-port" not in flags(service(upstream="triton-http"))


def test_a_declared_sidecar_is_refused_where_nobody_knows_the_servers_port_for_grpc() -> None:
    custom = service(upstream="triton-grpc")
    custom["spec"]["predictor"].pop("model")
    custom["spec"]["predictor"]["containers"] = [{"name": "kserve-container", "image": "acme/scorer:1"}]
    with pytest.raises(refusals.Refusal, match="nothing says where"):
        collocation.declared(custom, CONFIG)


# --- A Service with a port for each protocol, as KServe v0.20 makes a route for each


BOTH = [{"containerPort": 8080, "name": "http1", "protocol": "TCP"}, *H2C]


@pytest.mark.parametrize("ports", [BOTH, BOTH[::-1]], ids=["HTTP first", "gRPC first"])
def test_both_ports_of_a_service_reach_the_sidecar_whichever_is_declared_first(ports: list[Object]) -> None:
    """KServe's Service sends its port 80 to the first and the second to itself, by number."""
    found = explained(service(ports=ports))["plan"]
    assert found["takeover"] == "port-swap"
    assert (found["listenPort"], found["grpcListenPort"]) == (8080, 9000)
    assert len({8080, 9000, found["appPort"], found["grpcAppPort"], found["adminPort"]}) == 5


def test_with_kserves_batcher_the_route_for_grpc_reaches_the_sidecar_as_well() -> None:
    thing = service(ports=BOTH)
    thing["spec"]["predictor"]["batcher"] = {}
    found = explained(thing)["plan"]
    assert (found["takeover"], found["listenPort"], found["grpcListenPort"]) == ("kserve-agent", 9081, 9000)


def test_grpc_that_is_not_known_to_be_v2_stays_with_the_app_beside_http() -> None:
    ports = [{"containerPort": 8080, "name": "http1"}, {"containerPort": 8081, "name": "h2c"}]
    thing = service(runtime="sklearn", ports=ports)
    found = explained(thing)["plan"]
    assert (found["listenPort"], found["grpcListenPort"]) == (8080, None)
    thing["spec"]["predictor"]["model"]["ports"] = ports[::-1]
    refused = explained(thing)
    assert refused["plan"] is None
    assert refused["refusal"]["code"] == "not-http"
