"""SERVING_READINESS_PROBE: what Knative and KServe write is understood, anything else told in one line."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import yarl

from carpool_sidecar.upstream import probes

PORT = 8080


def parse(*values: Any) -> tuple[probes.Probe, ...]:
    return probes.parse(json.dumps(values[0] if len(values) == 1 else values), PORT)


@pytest.fixture
def grpcio() -> None:
    pytest.importorskip("grpc", reason="grpc probes need the extra: pip install 'carpool-sidecar[grpc]'")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_local_probe_asks_where_the_predictor_listens(host: str) -> None:
    local = '[{"tcpSocket": {"port": 1}}, {"httpGet": {"host": "127.0.0.1"}}, {"tcpSocket": {"host": "10.0.0.9"}}]'
    first, second, third = probes.parse(local, PORT, host)
    assert first == probes.TcpSocket(host, 1)
    assert isinstance(second, probes.HttpGet)
    assert second.url.host == host
    assert third == probes.TcpSocket("10.0.0.9", PORT)
    assert probes.parse("", PORT, host) == (probes.TcpSocket(host, PORT),)


@pytest.mark.parametrize("text", ["", "  ", "null"])
def test_without_a_probe_the_component_port_must_accept_connections(text: str) -> None:
    assert probes.parse(text, PORT) == (probes.TcpSocket("127.0.0.1", PORT),)


def test_an_http_probe_is_read_with_all_it_says() -> None:
    probe = {
        "httpGet": {
            "path": "/v1/models/m?deep=1",
            "port": 8081,
            "scheme": "HTTPS",
            "host": "10.0.0.1",
            "httpHeaders": [{"name": "Host", "value": "model"}, {"name": "X-Empty"}],
        },
        "timeoutSeconds": 3,
    }
    assert parse(probe) == (
        probes.HttpGet(yarl.URL("https://10.0.0.1:8081/v1/models/m?deep=1"), (("Host", "model"), ("X-Empty", "")), 3.0),
    )


def test_what_is_left_out_gets_kubernetes_defaults() -> None:
    assert parse({"httpGet": {}}) == (probes.HttpGet(yarl.URL("http://127.0.0.1:8080/"), (), 1.0),)
    zeros = {"path": "", "port": 0, "scheme": "", "host": "", "httpHeaders": None}
    assert parse({"httpGet": zeros, "timeoutSeconds": 0}) == parse({"httpGet": {}})


def test_tcp_and_grpc_probes_are_read(grpcio: None) -> None:
    assert parse({"tcpSocket": {"port": 1, "host": "::1"}}) == (probes.TcpSocket("::1", 1),)
    assert parse({"grpc": {"port": 2, "service": "m"}}) == (probes.Grpc("127.0.0.1", 2, "m"),)
    assert parse({"grpc": {"port": 2, "service": None}}) == (probes.Grpc("127.0.0.1", 2, ""),)


@pytest.mark.parametrize("action", ["httpGet", "tcpSocket", "grpc"])
@pytest.mark.parametrize("port", [0, "0", "", None])
def test_a_port_of_zero_means_the_component_port(grpcio: None, action: str, port: Any) -> None:
    assert parse({action: {"port": port}}) == parse({action: {"port": PORT}})


def test_a_port_may_be_a_numeric_string() -> None:
    assert parse({"tcpSocket": {"port": "9000"}}) == parse({"tcpSocket": {"port": 9000}})


def test_a_list_is_read_as_all_its_probes() -> None:
    assert parse({"tcpSocket": {}}, {"httpGet": {"path": "/up"}}) == (
        probes.TcpSocket("127.0.0.1", PORT),
        probes.HttpGet(yarl.URL("http://127.0.0.1:8080/up")),
    )


def test_members_it_does_not_know_are_ignored() -> None:
    probe = {"tcpSocket": {"port": 1, "new": 2}, "periodSeconds": 0, "successThreshold": 1, "newer": {}}
    assert parse(probe) == parse({"tcpSocket": {"port": 1}})


REFUSED = [
    ("{", "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
    ("3", "must be an object"),
    ("[]", "must be an object"),
    ('[{"tcpSocket": {}}, 3]', r"probe\[1\]: must be an object"),
    ("{}", "no actions; give exactly one of httpGet, tcpSocket, grpc"),
    ('{"httpGet": {}, "tcpSocket": {}}', "2 actions; give exactly one"),
    ('{"exec": {"command": ["cat"]}}', "exec probes cannot be run from a sidecar; use httpGet, tcpSocket or grpc"),
    ('{"httpGet": {"port": "http"}}', "httpGet.port: got 'http': named ports .* give a number from 1 to 65535"),
    ('{"tcpSocket": {"port": 65536}}', "tcpSocket.port: got 65536: must be less than or equal to 65535"),
    ('{"httpGet": {"scheme": "ftp"}}', "httpGet.scheme: got 'ftp': must be 'http' or 'https'"),
    ('{"httpGet": {"httpHeaders": [{"value": "x"}]}}', "httpHeaders.0.name"),
    ('{"tcpSocket": {}, "timeoutSeconds": -1}', "timeoutSeconds: got -1: must be greater than or equal to 0"),
    ('{"httpGet": "/"}', "httpGet: got '/'"),
]


@pytest.mark.parametrize(("text", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_a_bad_probe_is_refused_in_one_clear_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        probes.parse(text, PORT)
    assert type(refusal.value) is ValueError
    assert str(refusal.value).startswith("readiness probe")
    assert "\n" not in str(refusal.value)


def test_a_grpc_probe_without_grpcio_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)  # how Python itself marks a package as absent
    with pytest.raises(ValueError, match=r"carpool-sidecar\[grpc\]"):
        parse({"grpc": {"port": 1}})


def test_a_health_path_is_a_get_on_the_component_port() -> None:
    assert probes.http_path_probe("/ready?x=1", PORT) == probes.HttpGet(yarl.URL("http://127.0.0.1:8080/ready?x=1"))
    with pytest.raises(ValueError, match="must begin with '/'"):
        probes.http_path_probe("ready", PORT)


def test_probes_are_described_as_a_person_would(grpcio: None) -> None:
    probe = {"httpGet": {"path": "/a", "host": "::1"}}, {"tcpSocket": {"port": 1}}, {"grpc": {"service": "m"}}
    assert [str(found) for found in parse(*probe)] == [
        "httpGet http://[::1]:8080/a",
        "tcpSocket 127.0.0.1:1",
        "grpc 127.0.0.1:8080 service m",
    ]
