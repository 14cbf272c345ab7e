"""Probes and hooks that run a command: ports in it move with the app, say gRPC, or are a reason to refuse."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool_injector.core import command_lines, injection, model
from carpool_injector.core.config import Config
from tests.injector import pods

Object = dict[str, Any]

PLACES = ("readinessProbe", "livenessProbe", "startupProbe", "postStart", "preStop")


def app(*command: str, place: str = "readinessProbe", **members: Any) -> Object:
    """A server on port 8000 with a probe or hook that runs a command."""
    handler = {"exec": {"command": list(command)}}
    held = {"lifecycle": {place: handler}} if place in ("postStart", "preStop") else {place: handler}
    return copy.deepcopy(
        {"name": "app", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"], **held, **members}
    )


def outcome(container: Object, **annotations: str) -> model.Outcome:
    found = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    pod = pods.plain(container, annotations=found)
    return injection.inject(pod, Config(), model.Namespace("ml"), model.Capabilities())


def command_of(found: model.Outcome, place: str = "readinessProbe") -> list[str]:
    assert found.plan is not None, found.refusal
    container = pods.container(found.pod, "app")
    holder = container["lifecycle"] if place in ("postStart", "preStop") else container
    return list(holder[place]["exec"]["command"])


@pytest.mark.parametrize("place", PLACES)
def test_an_address_of_the_moved_port_moves_with_it(place: str) -> None:
    found = outcome(app("curl", "-f", "http://localhost:8000/health", place=place))
    assert command_of(found, place) == ["curl", "-f", "http://localhost:9083/health"]


MOVED = [
    (["curl", "127.0.0.1:8000"], ["curl", "127.0.0.1:9083"]),
    (["curl", "http://[::1]:8000/v1?a=8000.5"], ["curl", "http://[::1]:9083/v1?a=8000.5"]),
    (["curl", "http://0.0.0.0:8000"], ["curl", "http://0.0.0.0:9083"]),
    (["grpc_health_probe_of_mine", "-addr=:8000"], ["grpc_health_probe_of_mine", "-addr=:9083"]),
    (["probe", "-addr", ":8000"], ["probe", "-addr", ":9083"]),
    (["curl", "http://LOCALHOST:8000"], ["curl", "http://LOCALHOST:9083"]),
    (["curl", "http://localhost.:8000"], ["curl", "http://localhost.:9083"]),
    (["curl", "http://localhost.localdomain:8000"], ["curl", "http://localhost.localdomain:9083"]),
    (["curl", "http://ip6-loopback:8000"], ["curl", "http://ip6-loopback:9083"]),
    (["curl", "http://127.1:8000"], ["curl", "http://127.1:9083"]),
    (["curl", "http://0:8000"], ["curl", "http://0:9083"]),
    (["curl", "http://[0:0:0:0:0:0:0:1]:8000"], ["curl", "http://[0:0:0:0:0:0:0:1]:9083"]),
    (["curl", "http://[::ffff:127.0.0.1]:8000"], ["curl", "http://[::ffff:127.0.0.1]:9083"]),
    (["nc", "-z", "localhost", "8000"], ["nc", "-z", "localhost", "9083"]),
    (["sh", "-c", "wget -qO- localhost:8000/h || exit 1"], ["sh", "-c", "wget -qO- localhost:9083/h || exit 1"]),
    (["bash", "-c", "</dev/tcp/localhost/8000"], ["bash", "-c", "</dev/tcp/localhost/9083"]),
    (
        ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8000))"],
        ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9083))"],
    ),
]
KEPT = [
    ["cat", "/tmp/ready"],
    ["curl", "http://controller:8000/leave"],
    ["curl", "http://10.0.0.7:8000/leave"],
    ["curl", "http://localhost:80001", "localhost:8001", "localhost:18000"],
    ["sleep", "80"],
    ["sh", "-c", "curl localhost:$METRICS_PORT"],
    ["sh", "-c", "curl localhost:${METRICS_PORT:-9100}"],
    ["curl", "http://my.localhost:8000", "http://1127.0.0.1:8000", "http://localhost.localdomain.example:8000"],
    ["sh", "-c", 'curl "controller":8000 -d \'{"rows":8000}\''],
    ["curl", "http://10:8000/", "http://[fd00::1]:8000", "http://[1:0:0:0:0:0:0:1]:8000"],
]


@pytest.mark.parametrize(("before", "after"), MOVED, ids=lambda words: " ".join(words))
def test_addresses_are_certain_whose_host_is_this_pod(before: list[str], after: list[str]) -> None:
    found = outcome(app(*before))
    assert command_of(found) == after
    assert command_of(injection.inject(found.pod, Config(), model.Namespace("ml"), model.Capabilities())) == after
    taken_out = injection.uninject(found.pod).pod
    assert pods.container(taken_out, "app")["readinessProbe"]["exec"]["command"] == before


@pytest.mark.parametrize("words", KEPT, ids=" ".join)
def test_what_speaks_of_other_hosts_and_other_ports_stays(words: list[str]) -> None:
    assert command_of(outcome(app(*words))) == words


@pytest.mark.parametrize(
    "words",
    [
        ["python", "check.py", "--port=8000"],
        ["python", "check.py", "-p", "8000"],
        ["python", "check.py", "8000"],
        ["sh", "-c", "curl $POD_IP:8000"],
        ["sh", "-c", "curl $(hostname -i):8000/health"],
        ["sh", "-c", "curl localhost:${HEALTH_PORT:-8000}"],
        ["sh", "-c", "curl localhost:$HEALTH_PORT"],
        ["sh", "-c", "curl localhost:${OTHER_PORT:-8000}"],
        ["sh", "-c", "curl localhost:${OTHER_PORT=8000}"],
        ["sh", "-c", "curl $HEALTH_URL"],
        ["sh", "-c", 'curl "${POD_IP}":8000'],
        ["sh", "-c", "curl $(echo $(hostname -i)):8000"],
        ["sh", "-c", "curl ${POD_IP:-${HOST}}:8000"],
        ["sh", "-c", "curl `hostname`:8000"],
    ],
    ids=" ".join,
)
def test_what_may_or_may_not_mean_the_moved_port_is_refused_with_the_fix(words: list[str]) -> None:
    env = [{"name": "HEALTH_PORT", "value": "8000"}, {"name": "HEALTH_URL", "value": "http://localhost:8000/health"}]
    container = app(*words, env=env, ports=[{"containerPort": 8000}])
    refusal = outcome(container).refusal
    assert refusal is not None
    assert refusal.code == "port-in-command"
    assert "localhost:8000" in refusal.fix


@pytest.mark.parametrize("word", ["$PORT", "${PORT}", "${PORT:-8000}"])
def test_the_variable_that_tells_the_app_its_port_may_be_used(word: str) -> None:
    words = ["sh", "-c", f"curl localhost:{word}/health"]
    container = app(*words, args=[], env=[{"name": "PORT", "value": "8000"}], ports=[{"containerPort": 8000}])
    found = outcome(container)
    assert command_of(found) == words
    assert {"name": "PORT", "value": "9083"} in pods.container(found.pod, "app")["env"]


def test_where_the_app_does_not_move_a_command_may_say_anything() -> None:
    container = app("python", "check.py", "--port=8000", ports=[{"name": "http", "containerPort": 8000}])
    assert command_of(outcome(container, takeover="named-port")) == ["python", "check.py", "--port=8000"]


def test_the_app_does_not_move_to_a_port_that_a_command_asks_for() -> None:
    found = outcome(app("curl", "localhost:9083"))
    assert found.plan is not None
    assert found.plan.app_port == 9084
    taken_out = injection.uninject(found.pod).pod
    assert pods.container(taken_out, "app")["readinessProbe"]["exec"]["command"] == ["curl", "localhost:9083"]


def test_the_default_of_a_variable_that_is_set_means_nothing() -> None:
    words = ["sh", "-c", "curl localhost:${HEALTH_PORT:-8000}"]
    assert command_of(outcome(app(*words, env=[{"name": "HEALTH_PORT", "value": "9100"}]))) == words


def test_what_was_computed_is_shown_from_where_it_begins() -> None:
    refusal = outcome(app("sh", "-c", "curl $(hostname -i):8000/health")).refusal
    assert refusal is not None
    assert "'$(hostname -i):8000'" in refusal.message


# --- gRPC, as in the shop of Google's microservices demo


def shop(probe: Object, port: str = "7070") -> Object:
    number = int(port)
    env = [{"name": "PORT", "value": port}]
    return {"name": "app", "image": "shop/cart:1", "env": env, "ports": [{"containerPort": number}], **probe}


GRPC_PROBES = [
    {"readinessProbe": {"exec": {"command": ["/bin/grpc_health_probe", "-addr=:7070"]}}},
    {"livenessProbe": {"exec": {"command": ["/bin/grpc_health_probe", "-addr=localhost:7070", "-rpc-timeout=5s"]}}},
    {"readinessProbe": {"exec": {"command": ["sh", "-c", "/bin/grpc_health_probe -addr=:$PORT"]}}},
    {"startupProbe": {"exec": {"command": ["grpc-health-probe", "-addr", "unix:/tmp/socket"]}}},
    {"readinessProbe": {"exec": {"command": ["grpcurl", "-plaintext", "127.0.0.1:7070", "list"]}}},
    {"readinessProbe": {"grpc": {"port": 7070}}},
]


@pytest.mark.parametrize("probe", GRPC_PROBES, ids=str)
@pytest.mark.parametrize("annotations", [{}, {"takeover": "port-swap"}, {"port": "7070"}], ids=str)
def test_a_port_that_a_probe_asks_by_grpc_is_not_taken_for_http(probe: Object, annotations: Object) -> None:
    refusal = outcome(shop(probe), **annotations).refusal
    assert refusal is not None
    assert refusal.code == "not-http"
    assert "carpool.dev/grpc-port" in refusal.fix


def test_a_grpc_probe_of_another_port_says_nothing_about_this_one() -> None:
    container = shop({"readinessProbe": {"exec": {"command": ["grpc_health_probe", "-addr=:9000"]}}})
    assert outcome(container).result == "injected"


def test_the_port_for_grpc_that_the_owner_names_moves_with_the_address_of_its_probe() -> None:
    container = shop(GRPC_PROBES[0])
    found = outcome(container, grpc_port="7070", app_grpc_port_env="PORT")
    assert found.plan is not None, found.refusal
    moved = found.plan.grpc_app_port
    assert command_of(found) == ["/bin/grpc_health_probe", f"-addr=:{moved}"]


def test_a_command_that_is_null_or_missing_is_no_mistake() -> None:
    for action in ({"exec": None}, {"exec": {}}, {"exec": {"command": None}}):
        assert outcome({**app("true"), "readinessProbe": action}).result == "injected"


_WORDS = st.lists(st.text(st.sampled_from("localhost:/ 80139'\"$-=.,[]\n\0"), max_size=20), max_size=4)


@given(words=_WORDS, old=st.sampled_from([80, 8000, 8013]))
@example(words=[":00"], old=80)
def test_moving_a_port_there_and_back_gives_the_words_back(words: list[str], old: int) -> None:
    new = 9083
    if new in command_lines.ports(words) or not words:
        return
    moved = command_lines.with_ports(words, {old: new})
    assert len(moved) == len(words)
    assert old not in command_lines.ports(moved) or moved == words
    assert command_lines.with_ports(moved, {new: old}) == words
