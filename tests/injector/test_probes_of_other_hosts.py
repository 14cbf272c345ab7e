"""Probes and hooks that name a host: another host is left alone, the pod's own addresses count as the app's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carpool_injector.core import injection, model
from carpool_injector.core.config import Config

Object = dict[str, Any]
MOVED = {"args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"]}
RENAMED = {"image": "acme/own:1"}


def outcome(server: Object, action: Object, member: str = "readinessProbe", **port: str) -> model.Outcome:
    hook = {"lifecycle": {member: action}} if member in ("postStart", "preStop") else {member: action}
    app = {"name": "app", "ports": [{"containerPort": 8000, **port}], **server, **hook}
    pod = {"metadata": {"labels": {"carpool.dev/inject": "true"}}, "spec": {"containers": [app]}}
    found = injection.inject(pod, Config(), model.Namespace("ml"), model.Capabilities())
    assert found.plan is not None, found.refusal
    return found


def asked(found: model.Outcome, kind: str, member: str = "readinessProbe") -> Any:
    app = found.pod["spec"]["containers"][0]
    return {**app.get("lifecycle", {}), **app}[member][kind]["port"]


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
@pytest.mark.parametrize("member", ["readinessProbe", "livenessProbe", "startupProbe", "postStart", "preStop"])
def test_another_host_is_asked_where_it_was(kind: str, member: str) -> None:
    action = {kind: {"host": "features.ml.svc", "port": 8000}}
    assert asked(outcome(MOVED, action, member), kind, member) == 8000


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0", "127.0.0.53"])
def test_the_pods_own_addresses_are_followed(host: str) -> None:
    assert asked(outcome(MOVED, {"tcpSocket": {"host": host, "port": 8000}}), "tcpSocket") == 9083


@pytest.mark.parametrize("server", [MOVED, RENAMED], ids=["moved", "renamed"])
def test_a_ports_name_at_another_host_stays_the_number_that_it_was(server: Object) -> None:
    """The name goes to the sidecar, and the kubelet knows a container's own names only."""
    action = {"httpGet": {"host": "features.ml.svc", "port": "http", "path": "/"}}
    found = outcome(server, action, name="http")
    assert asked(found, "httpGet") == 8000
    again = injection.inject(found.pod, Config(), model.Namespace("ml"), model.Capabilities())
    assert again.patch == []
    assert injection.uninject(found.pod).pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == 8000


def test_a_ports_name_at_the_pod_follows_the_app() -> None:
    found = outcome(RENAMED, {"tcpSocket": {"host": "localhost", "port": "http"}}, name="http")
    assert asked(found, "tcpSocket") == "carpool-app"


def probe_of_sidecar(found: model.Outcome) -> Any:
    sidecar = found.pod["spec"]["initContainers"][0]
    values = {item["name"]: item["value"] for item in sidecar.get("env", [])}
    return json.loads(values.get("SERVING_READINESS_PROBE", "null"))


def test_the_sidecar_asks_nobody_but_the_app_whether_it_is_ready() -> None:
    assert probe_of_sidecar(outcome(MOVED, {"httpGet": {"host": "features.ml.svc", "port": 8000}})) is None
    assert probe_of_sidecar(outcome(MOVED, {"tcpSocket": {"host": "features.ml.svc", "port": 7000}})) is None
    assert probe_of_sidecar(outcome(MOVED, {"httpGet": {"path": "/", "port": 8000}})) is not None


def test_https_at_another_host_says_nothing_of_the_app() -> None:
    probe = {"httpGet": {"host": "features.ml.svc", "port": 8000, "scheme": "HTTPS"}}
    assert outcome(MOVED, probe).refusal is None
