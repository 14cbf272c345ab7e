"""What an injected pod would run, run for real: its sidecar's arguments and environment, in front of our predictor.

Only port numbers are exchanged, each for a free one of this machine.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks import processes
from carpool_injector.core import config, injection, model
from tests import loopback
from tests.injector import pods

Object = dict[str, Any]

_READY = {"httpGet": {"path": "/readyz", "port": 8080}}
_SETTINGS = {"max-batch-size": "8", "max-latency": "5.5", "policy": "window", "kserve-errors": "true", "timeout": "20"}
_RULE = 'mine:\n  path: "**/embed"\n  list: texts\n  answers: $  # the whole body\n'
SITUATIONS = {
    "Knative": pods.knative(pods.sklearn(readinessProbe=_READY)),
    "Standard with KServe's batcher": pods.kserve(pods.sklearn(), annotations=pods.batched(4, 20)),
    "Standard, port swapped": pods.kserve(pods.carpool_predictor(readinessProbe=_READY)),
    "settings of many kinds": pods.plain(
        pods.sklearn(), annotations={f"carpool.dev/{key}": value for key, value in _SETTINGS.items()}
    ),
    "a rule for lists as YAML": pods.plain(pods.sklearn(), annotations={"carpool.dev/lists": _RULE}),
    "a rule for lists that is known of the server": pods.kserve(pods.huggingface_embeddings()),
    "a probe that only says that the port is open, and a port for gRPC": pods.kserve(pods.mlserver()),
}


@pytest.fixture(scope="module")
def app_port() -> Iterator[int]:
    """The port of a real predictor with the model echo."""
    [port] = loopback.free_ports(1)
    with processes.running("predictor", processes.predictor_command(port, ["--models", "echo"])) as predictor:
        predictor.wait_until_ready(processes.ready_url(port), timeout=30)
        yield port


def _injected(situation: str, *, native: bool = True) -> model.Outcome:
    able = model.Capabilities(native, native)
    outcome = injection.inject(SITUATIONS[situation], config.Config(), model.Namespace("models"), able)
    assert outcome.plan is not None
    return outcome


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_ordinary_container_runs_what_a_native_sidecar_does(situation: str) -> None:
    """So what is run for real below holds for both."""
    native, ordinary = (
        pods.container(_injected(situation, native=kind).pod, model.CONTAINER) for kind in (True, False)
    )
    assert native == {**ordinary, "restartPolicy": "Always"}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_injected_command_serves_predictions_and_ends_cleanly(
    situation: str, app_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = _injected(situation)
    assert outcome.plan is not None
    port, admin_port, *rpc = loopback.free_ports(4)
    numbers = {outcome.plan.listen_port: port, outcome.plan.admin_port: admin_port, outcome.plan.app_port: app_port}
    numbers |= dict(zip((outcome.plan.grpc_listen_port, outcome.plan.grpc_app_port), rpc, strict=True))
    container = _on_this_machine(pods.container(outcome.pod, model.CONTAINER), numbers)
    for variable in container.get("env", []):
        monkeypatch.setenv(variable["name"], variable["value"])

    with processes.running("sidecar", [sys.executable, "-m", "carpool_sidecar", *container["args"]]) as child:
        child.wait_until_ready(processes.ready_url(admin_port), timeout=20)
        assert _ask(admin_port, "GET", "/livez")[0] == 200
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                action = container[probe]["httpGet"]
                assert _ask(action["port"], "GET", action["path"])[0] == 200, probe
        status, answer = _ask(port, "POST", "/v1/models/echo:predict", {"instances": [[1, 2], [3, 4]]})
        assert (status, answer["predictions"]) == (200, [[1, 2], [3, 4]])
        assert _stopped(child, admin_port) == 0


def test_the_hooks_of_app_and_sidecar_drain_it_as_the_kubelet_runs_them(
    app_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All preStop hooks at once, and SIGTERM when they are through."""
    settings = {"carpool.dev/quiet-period": "0", "carpool.dev/grace-period": "5"}
    outcome = injection.inject(
        pods.kserve(pods.sklearn(), annotations=settings), config.Config(), model.Namespace("m"), model.Capabilities()
    )
    assert outcome.plan is not None
    port, admin_port = loopback.free_ports(2)
    numbers = {outcome.plan.listen_port: port, outcome.plan.admin_port: admin_port, outcome.plan.app_port: app_port}
    container = _on_this_machine(pods.container(outcome.pod, model.CONTAINER), numbers)
    hook = pods.container(outcome.pod, "kserve-container")["lifecycle"]["preStop"]["httpGet"]
    monkeypatch.setenv("SERVING_READINESS_PROBE", container["env"][0]["value"])

    with processes.running("sidecar", [sys.executable, "-m", "carpool_sidecar", *container["args"]]) as child:
        child.wait_until_ready(processes.ready_url(admin_port), timeout=20)
        program, *arguments = container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "carpool-sidecar"
        assert hook["port"] == outcome.plan.admin_port
        drain = subprocess.Popen([sys.executable, "-m", "carpool_sidecar", *arguments])
        try:
            assert _ask(admin_port, "GET", hook["path"])[0] == 200
            assert drain.wait(10) == 0
        finally:
            drain.kill()
            drain.wait()
        child._process.terminate()
        assert child._process.wait(10) == 0


def _on_this_machine(container: Object, numbers: Mapping[Any, int]) -> Object:
    """The container with other port numbers, in one pass, wherever a port may stand."""
    words = {str(old): str(new) for old, new in numbers.items() if old is not None}
    text = json.dumps({key: container[key] for key in container if key != "resources"})
    number = re.compile(rf"(?<![\d.])({'|'.join(words)})(?![\d.])")
    found: Object = json.loads(number.sub(lambda match: words[match[1]], text))
    return {**found, "args": pods.expanded(found["args"])}


def _ask(port: int, method: str, path: str, body: Object | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(processes.HOST, port, timeout=10)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if body else text
    finally:
        connection.close()


def _stopped(child: processes.Child, admin_port: int) -> int | None:
    """The exit code after SIGTERM; a second one, once it shows as not ready, skips the quiet period."""
    child._process.terminate()
    deadline = time.monotonic() + 10
    while _ask(admin_port, "GET", "/readyz")[0] == 200 and time.monotonic() < deadline:
        pass
    child._process.terminate()
    return child._process.wait(10)
