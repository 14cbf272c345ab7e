"""A pod as large as the API server stores costs work in proportion to its size, and gets a patch of the usual size."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from carpool_injector.core import config, injection, model
from tests.injector import pods

Object = dict[str, Any]


def inject(pod: Object) -> model.Outcome:
    return injection.inject(pod, config.Config(), model.Namespace("models"), model.Capabilities())


def test_a_pod_as_large_as_etcd_takes_costs_work_in_proportion_and_a_small_patch() -> None:
    """Counted in calls of functions, which a slow machine does not change."""
    small, large = _pod_of_size(300_000), _pod_of_size(1_200_000)
    assert len(json.dumps(large)) > 1_200_000
    assert _calls(large) < 5 * _calls(small)
    outcome = inject(large)
    assert outcome.result == "injected"
    assert len(json.dumps(outcome.patch)) < 20_000


@pytest.mark.parametrize("word", ["${", "${A", "$(", "`", "$A", "localhost ", "127.", "port ", "-p ", ":", "[0:", "//"])
def test_no_command_of_a_probe_keeps_the_injector_busy(word: str) -> None:
    """Whoever may create pods writes it. A search that goes to the end for each word would not end in a test's time."""
    server = pods.sklearn(readinessProbe={"exec": {"command": ["sh", "-c", word * (400_000 // len(word))]}})
    assert inject(pods.kserve(server)).result == "injected"


def test_variables_of_a_command_are_looked_up_at_once() -> None:
    """Counted likewise: as many variables as a pod has room for, and a probe that has them all."""

    def pod(count: int) -> Object:
        env = [{"name": f"V{index}", "value": "8001"} for index in range(count)]
        words = ["sh", "-c", " ".join(f"$V{index}" for index in range(count))]
        return pods.kserve(pods.sklearn(env=env, readinessProbe={"exec": {"command": words}}))

    assert _calls(pod(2000)) < 5 * _calls(pod(500))


@pytest.mark.parametrize("command", ["a && ", "A=1; ", "export A=1\n", "sh -c 'a; b'; ", "$A | "])
def test_no_shells_script_keeps_the_injector_busy(command: str) -> None:
    """Counted likewise: of a long one commands are not read one by one, which takes a hundred calls of each."""

    def pod(count: int) -> Object:
        return pods.plain(_scripted(command * count), annotations=_BY_NAME)

    assert _calls(pod(16_000)) - _calls(pod(2000)) < 10 * 14_000


def test_a_server_in_a_shells_script_that_is_too_long_is_not_opened_unless_it_listens_to_all() -> None:
    def found(script: str, **members: Any) -> str:
        outcome = inject(pods.plain(_scripted(script, **members), annotations=_BY_NAME))
        return outcome.refusal.code if outcome.refusal else outcome.result

    for before in ("a; " * 50, "a; " * 1000):
        for script in (f"{before}uvicorn a:b --port 8080", f"b; sh -c '{before}uvicorn a:b --port 8080'"):
            assert found(script) == "loopback-only"
            assert found(script, readinessProbe={"tcpSocket": {"port": 8080}}) == "injected"
            assert found(script.replace("--port", "--host 0.0.0.0 --port")) == "injected"


_BY_NAME = {"carpool.dev/inject": "true", "carpool.dev/takeover": "named-port"}


def _scripted(script: str, **members: Any) -> Object:
    ports = [{"containerPort": 8080, "name": "http"}]
    return {"name": "app", "image": "acme/app", "command": ["sh", "-c", script], "ports": ports, **members}


def _pod_of_size(size: int) -> Object:
    """Most of it in variables, arguments and annotations, as in real pods that grow too large."""
    env = [{"name": f"FEATURE_{index}", "value": "x" * 60} for index in range(size // 240)]
    annotations = {f"acme.dev/note-{index}": "y" * 200 for index in range(size // 450)}
    pod = pods.kserve(pods.sklearn(env=env), annotations=annotations)
    pod["spec"]["containers"] += [
        {"name": f"helper-{index}", "image": "busybox:1.37", "args": ["z" * 1000]} for index in range(size // 4000)
    ]
    return pod


def _calls(pod: Object) -> int:
    """Calls of Python and C functions that injecting takes."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        inject(pod)
    finally:
        sys.setprofile(None)
    return count
