"""Apps that are told their port in more than one way: the strongest counts, and what is not certain is refused."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.core import injection, model
from carpool_injector.core.config import Config

Object = dict[str, Any]


def outcome(container: Object) -> model.Outcome:
    app = {"name": "app", "image": "acme/scorer:1", "ports": [{"containerPort": 8000}], **container}
    pod = {"metadata": {"labels": {"carpool.dev/inject": "true"}}, "spec": {"containers": [app]}}
    return injection.inject(pod, Config(), model.Namespace("ml"), model.Capabilities())


def variables(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


PORT = variables(PORT="8000")
BY_A_FLAG = {
    "hypercorn": ["hypercorn", "a:b", "--bind", "0.0.0.0:8000"],
    "gunicorn": ["gunicorn", "a:b", "--bind=0.0.0.0:8000"],
    "joined": ["gunicorn", "a:b", "-b0.0.0.0:8000"],
    "daphne": ["daphne", "-b", "0.0.0.0", "-p", "8000", "a:b"],
    "waitress": ["waitress-serve", "--listen=*:8000", "a:b"],
    "next": ["npx", "next", "start", "-p", "8000"],
    "streamlit": ["streamlit", "run", "a.py", "--server.port=8000"],
    "flask": ["flask", "run", "--host=0.0.0.0", "-p8000"],
}


@pytest.mark.parametrize("name", BY_A_FLAG)
def test_a_flag_wins_over_port(name: str) -> None:
    found = outcome({"command": BY_A_FLAG[name], "env": PORT})
    app = found.pod["spec"]["containers"][0]
    assert found.plan is not None, found.refusal
    assert app["env"] == PORT
    assert [new.replace("9083", "8000") for new in app["command"]] == BY_A_FLAG[name] != app["command"]
    assert injection.uninject(found.pod).pod["spec"]["containers"][0]["command"] == BY_A_FLAG[name]


NOT_CERTAIN = {
    "gunicorn's flags": {"command": ["gunicorn", "a:b"], "env": [*PORT, *variables(GUNICORN_CMD_ARGS="-b :8000 -w 2")]},
    "gunicorn's flags, joined": {"command": ["gunicorn", "a:b"], "env": variables(GUNICORN_CMD_ARGS="-b:8000")},
    "several addresses": {"command": ["gunicorn", "-b", ":8000", "-b", ":8443", "a:b"], "env": PORT},
    "a script of npm": {"command": ["npm", "start", "--", "-p", "8000"], "env": PORT},
    "a script of npm, joined": {"command": ["npm", "start", "--", "-p8000"], "env": PORT},
    "arguments of an image": {"args": ["--port", "8000"], "env": PORT},
    "arguments of an image, joined": {"args": ["--port=8000"], "env": PORT},
    "an address": {"args": ["--listen=0.0.0.0:8000"], "env": PORT},
    "a shell": {"command": ["sh", "-c", "echo $PORT; exec hypercorn a:b -b 0.0.0.0:8000"], "env": PORT},
    "a shell's default": {"command": ["sh", "-c", "echo $PORT; fastapi run"], "env": PORT},
    "another variable": {"env": [*PORT, *variables(UVICORN_PORT="8000")]},
    "a variable of another server": {"env": [*PORT, *variables(SERVER_PORT="8000")]},
    "an address in a variable": {"env": [*PORT, *variables(BIND_ADDR="0.0.0.0:8000")]},
    "a server that does not read it": {"command": ["granian", "--host=0.0.0.0", "--interface=wsgi", "a:b"],
                                       "env": [*PORT, {"name": "GRANIAN_PORT", "valueFrom": {"fieldRef": {}}}]},
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_CERTAIN)
def test_what_may_be_told_its_port_otherwise_is_refused(name: str) -> None:
    found = outcome(NOT_CERTAIN[name])
    assert found.plan is None
    assert found.refusal is not None
    assert found.refusal.code == "no-takeover"


CERTAIN = {
    "an image": {"env": PORT},
    "a program": {"command": ["node", "server.js"], "env": PORT},
    "gunicorn": {"command": ["gunicorn", "a:b"], "env": PORT},
    "a flag that refers to it": {"args": ["--port=$(PORT)"], "env": PORT},
    "a shell that refers to it": {"command": ["sh", "-c", "exec gunicorn -b 0.0.0.0:$PORT a:b"], "env": PORT},
    "an address of another app": {"env": [*PORT, *variables(RANKER_SERVICE_ADDR="ranker:8000")]},
    "other numbers": {"args": ["--timeout=80", "--size=18000"], "env": [*PORT, *variables(METRICS_PORT="9000")]},
}


@pytest.mark.parametrize("name", CERTAIN)
def test_port_is_believed_where_nothing_else_tells_the_port(name: str) -> None:
    found = outcome(CERTAIN[name])
    assert found.plan is not None, found.refusal
    assert variables(PORT="9083")[0] in found.pod["spec"]["containers"][0]["env"]


def test_a_variable_that_the_owner_names_does_not_win_over_what_the_server_reads() -> None:
    named = {"carpool.dev/inject": "true", "carpool.dev/app-port-env": "PORT"}
    app = {
        "name": "app",
        "command": ["hypercorn", "a:b", "--bind=:8000"],
        "env": PORT,
        "ports": [{"containerPort": 8000}],
    }
    pod = {"metadata": {"annotations": named}, "spec": {"containers": [app]}}
    found = injection.inject(pod, Config(), model.Namespace("ml"), model.Capabilities())
    after = found.pod["spec"]["containers"][0]
    assert (after["command"][-1], after["env"]) == ("--bind=:9083", PORT)


def test_a_model_server_that_speaks_grpc_only_is_not_given_http() -> None:
    words = ["tensorflow_model_server", "--port=8500", "--model_name=resnet"]
    for port in ({"containerPort": 8500}, {"containerPort": 8500, "name": "http"}):
        found = outcome({"command": words, "ports": [port]})
        assert found.refusal is not None
        assert (found.refusal.code, found.refusal.fix.startswith("give it --rest_api_port")) == ("not-http", True)
