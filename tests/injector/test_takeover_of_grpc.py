"""The app's port for gRPC: where it is, when it is the sidecar's, and how it comes back."""

from __future__ import annotations

import pytest

from carpool_injector.core import injection, model
from carpool_sidecar import config as sidecar_config
from tests.injector import pods
from tests.injector.takeover_samples import UNKNOWN, UVICORN, Object, outcome, plain, plan, refusal, variables


def triton(*flags: str, **members: object) -> Object:
    return {"name": "app", "args": ["tritonserver", *flags], **members}


def ports(given: Object) -> tuple[int | None, int | None]:
    """Where the sidecar listens for gRPC, and where it sends it; `None` for nowhere."""
    found = plan(given)
    return found.grpc_listen_port, found.grpc_app_port


def comes_back(given: Object) -> bool:
    return injection.uninject(outcome(given).pod).pod["spec"] == given["spec"]


def sidecar(given: Object) -> sidecar_config.Settings:
    return sidecar_config.load(pods.container(outcome(given).pod, model.CONTAINER)["args"])


# --- Where it is


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        ([], 8001),
        (["--grpc-port=9000"], 9000),
        (["--grpc-port", "9000"], 9000),
        (["--grpc-port=1", "--grpc-port=9000"], 9000),
        (["--allow-grpc=true"], 8001),
        (["--allow-grpc", "1"], 8001),
        (["--allow-grpc=false", "--allow-grpc=on"], 8001),
        (["--grpc-address=0.0.0.0"], 8001),
    ],
)
def test_tritons_port_is_the_one_that_it_is_told_or_its_own(flags, port):
    given = plain(triton(*flags))
    assert ports(given) == (port, 9084)
    assert comes_back(given)


@pytest.mark.parametrize("flags", [["--allow-grpc=false"], ["--allow-grpc", "OFF"], ["--allow-grpc=0"]])
def test_without_grpc_there_is_no_port_for_it(flags):
    assert ports(plain(triton(*flags))) == (None, None)
    assert refusal(plain(triton(*flags), grpc_port="8001")).code == "no-grpc"
    assert refusal(plain(triton(*flags), upstream="triton-grpc")).code == "no-grpc"


def test_a_flag_that_refers_to_a_variable_is_moved_by_the_variable():
    env = [{"name": "RPC", "value": "9000"}]
    given = plain(triton("--grpc-port=$(RPC)", env=env))
    found = outcome(given)
    assert variables(found.pod, "app") == {"RPC": "9084"}
    assert found.pod["spec"]["containers"][0]["args"][1] == "--grpc-port=$(RPC)"
    assert comes_back(given)


def test_what_is_heard_within_the_pod_only_stays_with_the_app():
    given = triton("--grpc-address=127.0.0.1")
    assert ports(plain(given)) == (None, 8001)
    assert refusal(plain(given, grpc_port="8001")).code == "loopback-only"


def test_http_within_the_pod_only_is_refused():
    assert refusal(plain(triton("--http-address=127.0.0.1"))).code == "loopback-only"


def test_mlservers_port_is_taken_over_where_a_variable_tells_it():
    env = [{"name": f"MLSERVER_{kind}_PORT", "value": port} for kind, port in (("HTTP", "8080"), ("GRPC", "8081"))]
    given = plain({"name": "app", "image": "seldonio/mlserver:1", "env": env})
    assert ports(given) == (8081, 9084)
    assert comes_back(given)


def test_mlservers_port_that_nothing_speaks_of_stays_with_the_app():
    given = plain({"name": "app", "image": "mlserver", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "8080"}]})
    assert ports(given) == (None, 8081)


@pytest.mark.parametrize("word", ["off", "0"])
def test_grpc_may_be_left_to_the_app_and_be_used_by_the_sidecar_all_the_same(word):
    left = sidecar(plain(triton(), grpc_port=word, upstream="triton-grpc"))
    assert (left.grpc_port, left.component_grpc_port, left.upstream) == (0, 8001, "triton-grpc")


def test_a_server_that_does_not_answer_the_v2_protocol_keeps_its_port_for_grpc():
    flags = ["--port=9000", "--rest_api_port=8501"]
    assert ports(plain({"name": "app", "command": ["tensorflow_model_server"], "args": flags})) == (None, None)


def test_the_only_declared_port_is_entered_even_beside_one_for_metrics():
    declared = [{"containerPort": 8001, "name": "grpc"}, {"containerPort": 8002, "name": "metrics"}]
    given = plain(triton(ports=declared))
    found = plan(given)
    assert (found.listen_port, found.grpc_listen_port) == (8000, 8001)
    assert comes_back(given)


def test_the_http_port_may_be_declared_without_a_name_beside_one_for_grpc():
    declared = [{"containerPort": 7000}, {"containerPort": 7001, "name": "grpc"}]
    flags = ["serve", "--http=7000", "--rpc=7001"]
    told = {"app_port_arg": "--http", "app_grpc_port_arg": "--rpc"}
    given = plain({"name": "app", "args": flags, "ports": declared}, **told)
    assert plan(given).listen_port == 7000
    assert ports(given) == (7001, 9084)
    assert comes_back(given)


# --- Servers of one's own


def test_the_pods_owner_may_name_port_and_variable():
    env = [{"name": "RPC", "value": "0.0.0.0:7001"}]
    given = plain({**UVICORN, "env": env}, grpc_port="7001", app_grpc_port_env="RPC")
    found = outcome(given)
    assert variables(found.pod, "app") == {"RPC": "0.0.0.0:9084"}
    assert ports(given) == (7001, 9084)
    assert comes_back(given)


@pytest.mark.parametrize(
    ("settings", "code", "told"),
    [
        ({"grpc_port": "7001"}, "port-not-movable", "gRPC in container 'app' cannot be told its port"),
        ({"grpc_port": "rpc"}, "no-such-port", "declares no port named 'rpc'"),
        ({"app_grpc_port_arg": "--rpc"}, "no-port", "answers gRPC"),
        ({"grpc_port": "7001", "app_grpc_port_env": "RPC"}, "port-not-movable", "cannot be told"),
    ],
)
def test_what_nobody_knows_how_to_move_is_refused_with_both_ports(settings, code, told):
    refused = refusal(plain(UVICORN, **settings))
    assert refused.code == code
    assert told in refused.message
    assert refused.fix


def test_two_sayings_about_the_port_that_differ_are_refused():
    refused = refusal(plain(triton("--grpc-port=9000"), grpc_port="9001"))
    assert refused.code == "port-mismatch"
    assert "argument --grpc-port says 9000" in refused.message


def test_a_port_that_is_declared_twice_is_refused():
    twice = [{"containerPort": 8001}, {"containerPort": 8001, "name": "grpc"}]
    assert refusal(plain(triton(ports=[{"containerPort": 8000}, *twice]))).code == "ambiguous-port"


def test_a_pod_that_is_entered_by_the_grpc_that_is_left_to_the_app_is_refused():
    declared = [{"containerPort": 9000}]
    given = pods.kserve(pods.triton(ports=declared), annotations={"carpool.dev/grpc-port": "off"})
    refused = refusal(given)
    assert refused.code == "not-http"
    assert "left to the app" in refused.message


# --- TLS


@pytest.mark.parametrize(
    "flags",
    [
        ["--grpc-use-ssl=true"],
        ["--grpc-use-ssl", "1"],
        ["--grpc-use-ssl-mutual=true"],
        ["--grpc-use-ssl-mutual", "false"],  # Triton turns TLS on by the flag, whatever its value
    ],
)
def test_grpc_over_tls_is_refused_and_the_flag_is_named(flags):
    refused = refusal(plain(triton(*flags)))
    assert refused.code == "tls"
    assert flags[0].partition("=")[0] in refused.message
    assert 'carpool.dev/grpc-port: "off"' in refused.fix
    assert plan(plain(triton(*flags), grpc_port="off")).grpc_listen_port is None


def test_a_sidecar_cannot_call_by_grpc_over_tls_either():
    given = plain(triton("--grpc-use-ssl=true"), grpc_port="off", upstream="triton-grpc")
    assert refusal(given).code == "tls"


def test_tls_that_is_switched_off_is_none():
    assert ports(plain(triton("--grpc-use-ssl=false"))) == (8001, 9084)


@pytest.mark.parametrize("name", ["grpcs", "tls-grpc"])
def test_a_name_that_says_tls_is_believed(name):
    declared = [{"containerPort": 8000}, {"containerPort": 8001, "name": name}]
    assert refusal(plain(triton(ports=declared))).code == "tls"


# --- Ways


def test_a_host_port_goes_with_its_port_and_makes_the_sidecar_a_classic_one():
    declared = [{"containerPort": 8000}, {"containerPort": 8001, "hostPort": 30001, "protocol": "TCP"}]
    given = plain(triton(ports=declared))
    found = outcome(given)
    assert found.plan is not None
    assert not found.plan.native
    assert pods.container(found.pod, "app")["ports"][1] == {"containerPort": 9084, "protocol": "TCP"}
    own = {"name": "carpool-grpc", "containerPort": 8001, "hostPort": 30001, "protocol": "TCP"}
    assert own in pods.container(found.pod, model.CONTAINER)["ports"]
    assert comes_back(given)


def test_a_name_for_grpc_needs_native_named_ports_as_any_does():
    declared = [{"containerPort": 8000}, {"containerPort": 8001, "name": "grpc"}]
    found = plan(plain(triton(ports=declared)), capabilities=model.Capabilities(True, False))
    assert not found.native


def test_beside_the_app_the_sidecar_has_a_port_of_its_own_for_grpc():
    given = plain(triton(), takeover="none")
    assert ports(given) == (9083, 8001)
    assert comes_back(given)


def test_a_port_for_grpc_without_a_name_cannot_be_had_by_name():
    declared = [{"containerPort": 8000, "name": "http"}, {"containerPort": 8001}]
    refused = refusal(plain(triton(ports=declared), takeover="named-port"))
    assert refused.code == "no-takeover"
    assert "for gRPC, has no name" in refused.message


def test_names_of_both_ports_come_back():
    declared = [{"containerPort": 7000, "name": "http"}, {"containerPort": 7001, "name": "grpc"}]
    probes = {"readinessProbe": {"httpGet": {"port": "http"}}, "livenessProbe": {"tcpSocket": {"port": "grpc"}}}
    given = plain({**UNKNOWN, "ports": declared, **probes}, grpc_port="grpc")
    found = outcome(given)
    assert ports(given) == (9083, 7001)
    assert pods.container(found.pod, "app")["livenessProbe"]["tcpSocket"]["port"] == "carpool-app-rpc"
    assert comes_back(given)


def test_a_server_of_grpc_only_gives_its_one_name():
    given = plain({**UNKNOWN, "ports": [{"containerPort": 7001, "name": "grpc"}]}, grpc_port="7001")
    found = plan(given)
    assert (found.takeover, found.app_port, found.grpc_app_port, found.grpc_listen_port) == (
        "named-port", 7001, 7001, 9083,
    )  # fmt: skip
    assert comes_back(given)


@pytest.mark.parametrize("name", ["carpool-grpc", "carpool-app-rpc"])
def test_names_of_the_sidecars_ports_are_not_for_others(name):
    other = {"name": "other", "ports": [{"containerPort": 7777, "name": name}]}
    assert refusal(plain(triton(), other, container="app")).code == "name-taken"


def test_neither_port_is_one_that_somebody_else_may_be_given():
    found = plan(plain(triton("--metrics-port=9083"), {"name": "other", "ports": [{"containerPort": 9085}]}))
    assert (found.app_port, found.grpc_app_port) == (9084, 9086)


def test_a_variable_that_somebody_set_since_is_not_overwritten_on_the_way_back():
    stored = outcome(pods.plain(pods.mlserver())).pod
    env = pods.container(stored, "kserve-container")["env"]
    next(item for item in env if item["name"] == "MLSERVER_GRPC_PORT")["value"] = "7777"
    after = injection.uninject(stored).pod
    assert variables(after, "kserve-container")["MLSERVER_GRPC_PORT"] == "7777"
    assert variables(after, "kserve-container")["MLSERVER_HTTP_PORT"] == "8080"


def test_a_status_of_a_sidecar_that_knew_no_grpc_is_understood():
    given = plain(triton())
    stored = outcome(plain(triton(), grpc_port="off")).pod
    stored["metadata"]["annotations"].pop("carpool.dev/grpc-port")
    afresh, again = outcome(given), outcome(stored)
    assert again.plan == afresh.plan
    assert again.pod["spec"] == afresh.pod["spec"]
