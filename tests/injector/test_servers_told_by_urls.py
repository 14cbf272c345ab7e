"""Apps of .NET and Java: where they listen is told by URLs, and by properties of a virtual machine."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.core import injection, model
from carpool_injector.core.config import Config

Object = dict[str, Any]
PROBE = {"tcpSocket": {"port": 5000}}
NAMED = {"ports": [{"name": "http", "containerPort": 5000}]}


def variables(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def outcome(app: Object, **settings: str) -> injection.Outcome:
    annotations = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in settings.items()}
    containers = [{"name": "app", "image": "acme/notes:1", **NAMED, **app}]
    metadata = {"labels": {"carpool.dev/inject": "true"}, "annotations": annotations}
    given = {"metadata": metadata, "spec": {"containers": containers}}
    return injection.inject(given, Config(), model.Namespace("ml"), model.Capabilities())


def code(app: Object, **settings: str) -> str:
    made = outcome(app, **settings)
    return made.refusal.code if made.refusal else ""


DOTNET = {"command": ["dotnet", "notes.dll"]}
JAVA = {"command": ["java", "-jar", "notes.jar"]}


def java(*words: str, **values: str) -> Object:
    return {"command": ["java", *words, "-jar", "notes.jar"], "env": variables(**values)}


WITHIN_THE_POD = {
    "ASP.NET Core": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://localhost:5000")},
    "by an address": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://127.0.0.1:5000/")},
    "in capitals": {**DOTNET, "env": variables(ASPNETCORE_URLS="HTTP://LOCALHOST:5000")},
    "with a path": {**DOTNET, "env": variables(DOTNET_URLS="http://[::1]:5000/notes")},
    "by the image's program": {"env": variables(ASPNETCORE_URLS="http://localhost:5000")},
    "by a program of its own": {"command": ["./Notes"], "env": variables(DOTNET_URLS="http://localhost:5000")},
    "without a prefix": {**DOTNET, "env": variables(URLS="http://localhost:5000")},
    "without a prefix, by its own program": {"command": ["./Notes"], "env": variables(URLS="http://localhost:5000")},
    "a flag": {"command": ["dotnet", "notes.dll", "--urls", "http://localhost:5000"]},
    "a flag, joined": {"command": ["dotnet", "notes.dll", "--urls=http://127.0.0.1:5000"]},
    "a flag of its own program": {"command": ["./Notes"], "args": ["--urls", "http://localhost:5000"]},
    "a flag for the image's program": {"args": ["--urls=http://localhost:5001;http://localhost:5000"]},
    "a flag counts most": {"command": ["dotnet", "a.dll", "--urls=http://localhost:5000"],
                           "env": variables(ASPNETCORE_URLS="http://+:5000")},
    "several": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://localhost:5000;http://localhost:5001")},
    "the other of several": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://+:5001;http://localhost:5000")},
    "two that may count": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://+:5000",
                                                      DOTNET_URLS="http://localhost:5000")},
    "more than ports": {**DOTNET, "env": variables(ASPNETCORE_HTTP_PORTS="5000",
                                                   ASPNETCORE_URLS="http://localhost:5000")},
    "an endpoint": {**DOTNET, "env": variables(ASPNETCORE_HTTP_PORTS="5000",
                                               Kestrel__Endpoints__Web__Url="http://localhost:5000")},
    "an endpoint alone": {"env": variables(Kestrel__Endpoints__Web__Url="http://localhost:5000")},
    "a socket": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://unix:/run/notes.sock")},
    "in a shell": {"command": ["sh", "-c", "exec dotnet notes.dll --urls http://localhost:5000"]},
    "in a shell, quoted": {"command": ["sh", "-c", 'dotnet a.dll --urls "http://localhost:5000;http://localhost:1"']},
    "set by a shell": {"command": ["sh", "-c", "export ASPNETCORE_URLS=http://localhost:5000; exec ./Notes"]},
    "set by env": {"command": ["env", "ASPNETCORE_URLS=http://localhost:5000", "dotnet", "notes.dll"]},
    "from elsewhere": {**DOTNET, "env": [{"name": "ASPNETCORE_URLS",
                                          "valueFrom": {"configMapKeyRef": {"name": "c", "key": "urls"}}}]},
    "from elsewhere, beside one that is known": {**DOTNET, "env": [
        *variables(ASPNETCORE_URLS="http://+:5000"),
        {"name": "DOTNET_URLS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "urls"}}},
    ]},
    "Spring Boot": java("-Dserver.address=127.0.0.1"),
    "with its port": java("-Dserver.port=5000", "-Dserver.address=localhost"),
    "as an argument": {"command": [*JAVA["command"], "--server.address=127.0.0.1"]},
    "its variable": java(SERVER_ADDRESS="127.0.0.1"),
    "the image's program and a variable": {"env": variables(SERVER_ADDRESS="127.0.0.1")},
    "the virtual machine's options": {"env": variables(JAVA_TOOL_OPTIONS="-Xmx1g -Dserver.address=127.0.0.1")},
    "a script's options": {"env": variables(JAVA_OPTS="-Dserver.address=localhost")},
    "the strongest options": java("-Dserver.port=5000", "-Dserver.address=0.0.0.0",
                                  _JAVA_OPTIONS="-Dserver.address=127.0.0.1"),
    "the launcher's options": java(SERVER_PORT="5000", JDK_JAVA_OPTIONS="-Dserver.address=127.0.0.1",
                                   JAVA_TOOL_OPTIONS="-Dserver.address=0.0.0.0"),
    "in a shell's java": {"command": ["sh", "-c", "java -Dserver.port=5000 -Dserver.address=127.0.0.1 -jar a.jar"]},
    "Quarkus": java("-Dquarkus.http.host=127.0.0.1"),
    "Quarkus's program": {"command": ["./notes"], "args": ["-Dquarkus.http.host=127.0.0.1"]},
    "Quarkus's variable": java(QUARKUS_HTTP_HOST="localhost"),
    "Quarkus's options": {"env": variables(JAVA_OPTS_APPEND="-Dquarkus.http.host=localhost")},
    "Micronaut": java("-Dmicronaut.server.host=localhost"),
    "Micronaut's variable": java(MICRONAUT_SERVER_HOST="localhost"),
    "beside another port": java("-Dmanagement.server.port=9090", "-Dserver.address=127.0.0.1"),
    "a host beside another port": {"command": ["/notes", "--host=127.0.0.1", "--metrics-port=9090"]},
}  # fmt: skip


@pytest.mark.parametrize("name", WITHIN_THE_POD)
def test_an_app_that_is_told_to_listen_within_the_pod_is_not_opened(name: str) -> None:
    assert code(WITHIN_THE_POD[name]) == "loopback-only"


TO_ALL = {
    "ASP.NET Core": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://+:5000")},
    "a star": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://*:5000")},
    "a host's name": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://notes.example:5000")},
    "ports": {**DOTNET, "env": variables(ASPNETCORE_HTTP_PORTS="5000;5001")},
    "ports by the image's program": {"env": variables(ASPNETCORE_HTTP_PORTS="5000")},
    "several": {**DOTNET, "env": variables(ASPNETCORE_URLS="http://localhost:5001;http://0.0.0.0:5000")},
    "TLS on another port": {**DOTNET, "env": variables(ASPNETCORE_URLS="https://+:5001;http://+:5000")},
    "a port of its own for TLS": {**DOTNET, "env": variables(ASPNETCORE_HTTP_PORTS="5000",
                                                             ASPNETCORE_HTTPS_PORTS="5001")},
    "TLS beside the image's port": {"env": variables(ASPNETCORE_HTTPS_PORTS="5001")},
    "a flag": {"command": ["dotnet", "notes.dll", "--urls", "http://0.0.0.0:5000"],
               "env": variables(ASPNETCORE_URLS="http://localhost:5000")},
    "untold": DOTNET,
    "a callback": {**DOTNET, "env": variables(CALLBACK="http://localhost:5000/done")},
    "pages that are fetched": {"env": variables(URLS="http://localhost:8000;http://localhost:8001")},
    "Spring Boot": java("-Dserver.address=0.0.0.0"),
    "Spring Boot's variable": java(SERVER_ADDRESS="0.0.0.0", JAVA_TOOL_OPTIONS="-Dhttp.proxyHost=127.0.0.1"),
    "Quarkus": {"env": variables(JAVA_OPTS_APPEND="-Dquarkus.http.host=0.0.0.0", QUARKUS_HTTP_HOST="localhost")},
    "another server": {"env": variables(SERVER_ADDRESS="localhost:9000")},
    "another server's host": {"env": variables(SERVER_ADDRESS="localhost", SERVER_PORT="9000")},
}  # fmt: skip


@pytest.mark.parametrize("name", TO_ALL)
def test_an_app_that_is_told_to_listen_to_all_gets_the_sidecar(name: str) -> None:
    assert code(TO_ALL[name]) == ""


TLS = {
    "a URL": {**DOTNET, "env": variables(ASPNETCORE_URLS="https://+:5000")},
    "on loopback": {**DOTNET, "env": variables(ASPNETCORE_URLS="https://localhost:5000")},
    "one of several": {**DOTNET, "env": variables(DOTNET_URLS="http://+:5001;https://+:5000")},
    "all of them": {**DOTNET, "env": variables(ASPNETCORE_URLS="https://+;https://+:5001")},
    "a flag": {"command": ["dotnet", "notes.dll", "--urls=https://0.0.0.0:5000"]},
    "a flag of its own program": {"command": ["./Notes", "--urls=http://+:5001;https://0.0.0.0:5000"]},
    "ports": {**DOTNET, "env": variables(ASPNETCORE_HTTP_PORTS="5001", ASPNETCORE_HTTPS_PORTS="5000")},
    "an endpoint": {"env": variables(Kestrel__Endpoints__Web__Url="https://+:5000")},
    "a variable": {"env": variables(URLS="https://localhost:5000")},
    "a key store": java(SERVER_SSL_KEYSTORE="/k", SERVER_PORT="5000"),
    "a key store as it was written": java(SERVER_SSL_KEY_STORE="/k"),
    "a key store of the image's program": {"env": variables(SERVER_SSL_KEYSTORE="/k")},
    "a bundle": java("-Dserver.port=5000", "-Dserver.ssl.bundle=web"),
    "a property": java("-Dserver.ssl.key-store=/k"),
    "an argument": {"command": [*JAVA["command"], "--server.ssl.key-store=/k"]},
    "options": {"env": variables(JAVA_TOOL_OPTIONS="-Dserver.ssl.key-store=/k")},
    "in a shell": {"command": ["sh", "-c", "exec java -Dserver.ssl.key-store=/k -jar notes.jar"]},
    "set by a shell": {"command": ["sh", "-c", "export SERVER_SSL_KEYSTORE=/k; exec java -jar notes.jar"]},
}  # fmt: skip


@pytest.mark.parametrize("name", TLS)
def test_an_app_that_is_told_to_speak_tls_is_left_alone(name: str) -> None:
    assert code(TLS[name]) == "tls"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ASPNETCORE_URLS", "http://localhost:5000", "ASPNETCORE_URLS=http://0.0.0.0:5000"),
        ("SERVER_ADDRESS", "127.0.0.1", "SERVER_ADDRESS=0.0.0.0"),
        ("LISTEN_ADDR", "localhost:5000", "LISTEN_ADDR=0.0.0.0:5000"),
    ],
)
def test_a_refusal_says_how_the_variable_would_have_to_be_written(name: str, value: str, told: str) -> None:
    made = outcome({"env": variables(**{name: value})})
    assert made.refusal is not None
    assert f"tell it to listen on 0.0.0.0 ({told})" in made.refusal.fix


def test_a_port_that_code_may_overrule_is_moved_only_where_the_owner_says_so() -> None:
    app = {**DOTNET, "env": variables(ASPNETCORE_URLS="http://+:5000", PORT="5000"), "ports": [{"containerPort": 5000}]}
    assert code(app) == "no-takeover"
    made = outcome(app, app_port_env="ASPNETCORE_URLS")
    assert made.plan is not None
    assert made.plan.takeover == "port-swap"
    held = {item["name"]: item["value"] for item in made.pod["spec"]["containers"][0]["env"]}
    assert held["ASPNETCORE_URLS"] == "http://+:9083"


@pytest.mark.parametrize("value", ["http://localhost:5001;http://0.0.0.0:5000", "http://[::]:5000;http://[::1]:5001"])
def test_a_plain_address_for_the_port_is_enough_of_gunicorns(value: str) -> None:
    binds = [word for text in value.replace("http://", "").split(";") for word in ("--bind", text)]
    assert code({"command": ["gunicorn", "a:b", *binds]}) == ""
    assert code({"command": ["gunicorn", "a:b", *binds], "ports": [{"name": "http", "containerPort": 5001}]}) != ""
