"""Pods in a service mesh whose proxy answers the kubelet: the detour of each probe leads to where the app is."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector.core import config, injection, model, references
from tests.injector import (
    admission_simulator,
    api_defaults,
    istio_model,
    meshes,
    pod_rules,
    pods,
    strategies,
)

Object = dict[str, Any]
OURS_FIRST, OURS_LAST = "a-carpool", "zz-carpool"
ADMIN_PORT = 9082


def inject(pod: Object) -> model.Outcome:
    return injection.inject(pod, config.Config(), model.Namespace("models"), model.Capabilities())


def admitted(pod: Object, ours: str, istio: istio_model.Settings, reinvoked: bool = False) -> Object:
    webhooks = [
        admission_simulator.ours(inject, ours),
        admission_simulator.kserve(),
        admission_simulator.istio(istio, reinvoked),
    ]
    return admission_simulator.admit(pod, webhooks).pod


def probers(pod: Object) -> Object:
    env = pods.container(pod, istio_model.PROXY)["env"]
    text = next((each["value"] for each in env if each["name"] == istio_model.PROBERS), "{}")
    found: Object = json.loads(text)
    return found


def asked(pod: Object) -> Iterator[tuple[str, str, Object]]:
    """Container, probe or hook, and what is asked in the end, wherever that stands."""
    for each in api_defaults.containers(pod):
        lifecycle = each.get("lifecycle") or {}
        handlers = [(name, each.get(name)) for name in ("readinessProbe", "livenessProbe", "startupProbe")]
        for name, handler in [*handlers, *((name, lifecycle.get(name)) for name in ("preStop", "postStart"))]:
            if not handler or each["name"] == istio_model.PROXY:
                continue
            path = (handler.get("httpGet") or {}).get("path") or ""
            yield each["name"], name, probers(pod)[path] if path.startswith("/app-") else handler


every_istio = pytest.mark.parametrize(
    "istio",
    [istio_model.Settings(native=native, cni=cni) for native in (True, False) for cni in (True, False)],
    ids=["native-cni", "native", "classic-cni", "classic"],
)
every_order = pytest.mark.parametrize("ours", [OURS_FIRST, OURS_LAST], ids=["we come first", "Istio comes first"])
every_policy = pytest.mark.parametrize("reinvoked", [False, True], ids=["never again", "again if needed"])
every_mode = pytest.mark.parametrize("make", [pods.kserve, pods.knative, pods.plain])


@every_istio
@every_order
@every_policy
def test_readiness_asks_the_predictor_where_it_moved_and_not_the_port_that_the_sidecar_took(
    istio: istio_model.Settings, ours: str, reinvoked: bool
) -> None:
    pod = admitted(pods.kserve(pods.sklearn()), ours, istio, reinvoked)
    found = {(name, probe): action for name, probe, action in asked(pod)}
    assert found["kserve-container", "readinessProbe"] == {"tcpSocket": {"port": 9083}, "timeoutSeconds": 1}
    variable = next(each for each in pods.container(pod, model.CONTAINER)["env"])
    assert json.loads(variable["value"]) == {"tcpSocket": {"port": 9083}, "timeoutSeconds": 1}


@every_istio
@every_order
@every_policy
@every_mode
def test_the_kubelet_asks_istios_agent_only_and_that_asks_the_sidecar(
    istio: istio_model.Settings, ours: str, reinvoked: bool, make: Any
) -> None:
    """With strict mutual TLS nothing else answers it."""
    pod = admitted(make(pods.sklearn()), ours, istio, reinvoked)
    for each in api_defaults.containers(pod):
        if each["name"] != istio_model.PROXY:
            assert [action["port"] for action in container_actions(each)] in (
                [],
                [15020] * len(container_actions(each)),
            )
    found = {(name, probe): action for name, probe, action in asked(pod)}
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        action = found[model.CONTAINER, probe]
        assert (action["httpGet"]["path"], action["httpGet"]["port"]) == (path, ADMIN_PORT)
    assert pod_rules.invalid(pod) == []


def container_actions(each: Object) -> list[Object]:
    handlers = [each.get(name) for name in ("readinessProbe", "livenessProbe", "startupProbe")]
    handlers += (each.get("lifecycle") or {}).values()
    return [
        handler[kind] for handler in handlers if handler for kind in ("httpGet", "tcpSocket", "grpc") if kind in handler
    ]


@every_istio
@every_order
@every_policy
def test_the_app_waits_through_istios_agent_until_the_sidecar_has_drained(
    istio: istio_model.Settings, ours: str, reinvoked: bool
) -> None:
    pod = admitted(pods.kserve(pods.sklearn()), ours, istio, reinvoked)
    hook = pods.container(pod, "kserve-container")["lifecycle"]["preStop"]["httpGet"]
    assert (hook["path"], hook["port"]) == ("/app-lifecycle/kserve-container/prestopz", 15020)
    # Without a timeout the agent waits as long as the kubelet does.
    drained = {"path": references.DRAINED, "port": ADMIN_PORT, "scheme": "HTTP"}
    assert probers(pod)[hook["path"]] == {"httpGet": drained}


@every_istio
@every_mode
def test_both_orders_with_istio_store_the_same_pod(istio: istio_model.Settings, make: Any) -> None:
    first, last = (admitted(make(pods.sklearn()), name, istio) for name in (OURS_FIRST, OURS_LAST))
    assert unordered(first) == unordered(last)


def unordered(pod: Object) -> Object:
    """Less the order of containers and what Istio lists of the containers it saw, which nothing reads back."""
    spec = copy.deepcopy(pod["spec"])
    for each in api_defaults.containers({"spec": spec}):
        listed = ("ISTIO_META_POD_PORTS", "ISTIO_META_APP_CONTAINERS")
        env = {item["name"]: item for item in each.get("env") or () if item["name"] not in listed}
        each["env"] = env
    for key in ("containers", "initContainers", "volumes"):
        spec[key] = {each["name"]: each for each in spec.get(key) or ()}
    return {**pod, "spec": spec}


@every_istio
@every_order
@every_policy
@every_mode
def test_what_is_stored_is_at_rest(istio: istio_model.Settings, ours: str, reinvoked: bool, make: Any) -> None:
    pod = admitted(make(pods.sklearn()), ours, istio, reinvoked)
    assert inject(pod).patch == []
    again = inject(api_defaults.defaulted(istio_model.mutate(pod, istio)))
    assert again.patch == []


@every_order
def test_the_sidecar_is_no_native_one_beside_a_proxy_that_starts_after_it(ours: str) -> None:
    """Its startup probe would wait for the proxy's agent, and the proxy for the sidecar to have started."""
    pod = admitted(pods.kserve(pods.sklearn()), ours, istio_model.Settings(native=False))
    assert model.CONTAINER in [each["name"] for each in pod["spec"]["containers"]]
    pod = admitted(pods.kserve(pods.sklearn()), ours, istio_model.Settings(native=True))
    assert [each["name"] for each in pod["spec"]["initContainers"]][:2] == ["istio-init", "istio-proxy"]


@given(strategies.situations(), st.sampled_from(["native", "classic"]), st.sampled_from([OURS_FIRST, OURS_LAST]))
def test_whatever_the_pod_no_probe_of_istios_agent_asks_the_sidecars_data_port(
    situation: strategies.Situation, kind: str, ours: str
) -> None:
    pod = copy.deepcopy(situation.pod)
    if any(each["name"] in ("istio-proxy", "kuma-sidecar") for each in api_defaults.containers(pod)):
        return
    istio = istio_model.Settings(native=kind == "native")
    webhooks = [admission_simulator.ours(situation.inject, ours), admission_simulator.istio(istio)]
    stored = admission_simulator.admit(pod, webhooks).pod
    again = situation.inject(stored)
    assert again.patch == []
    if again.plan is None or again.plan.takeover != "port-swap":
        return
    taken = {again.plan.listen_port, again.plan.grpc_listen_port}
    actions = [(name, action) for name, _, action in asked(stored) if name == again.plan.container]
    assert [
        each for each in actions if {a["port"] for a in each[1].values() if isinstance(a, dict) and "port" in a} & taken
    ] == []


@given(strategies.situations())
def test_uninjecting_leaves_what_istio_alone_would_have_made(situation: strategies.Situation) -> None:
    pod = copy.deepcopy(situation.pod)
    if any(each["name"] in ("istio-proxy", "kuma-sidecar") for each in api_defaults.containers(pod)):
        return
    given_pod = api_defaults.defaulted(istio_model.mutate(api_defaults.defaulted(pod)))
    done = situation.inject(given_pod)
    if done.plan is not None and done.plan.takeover in ("port-swap", "none", "named-port"):
        back = injection.uninject(done.pod).pod
        assert back["spec"] == given_pod["spec"]


def test_an_app_without_probes_gets_istios_variable_for_the_sidecars_own() -> None:
    """And loses it again with the sidecar."""
    given_pod = istio_model.mutate(pods.plain(pods.sklearn()))
    assert probers(given_pod) == {}
    done = inject(given_pod)
    assert set(probers(done.pod)) == {
        "/app-health/carpool/livez",
        "/app-health/carpool/readyz",
        "/app-health/carpool/startupz",
        "/app-lifecycle/kserve-container/prestopz",
    }
    assert injection.uninject(done.pod).pod == given_pod


@pytest.mark.parametrize(
    ("given_pod", "istio", "port"),
    [
        (
            pods.plain(pods.sklearn(), annotations={"status.sidecar.istio.io/port": "16020"}),
            istio_model.Settings(),
            16020,
        ),
        (pods.plain(pods.sklearn()), istio_model.Settings(status_port=17020), 17020),
        (pods.kserve(pods.sklearn()), istio_model.Settings(status_port=17020), 17020),
    ],
)
def test_probes_go_to_the_port_where_that_pods_agent_answers(
    given_pod: Object, istio: istio_model.Settings, port: int
) -> None:
    done = inject(istio_model.mutate(given_pod, istio))
    assert pods.container(done.pod, model.CONTAINER)["startupProbe"]["httpGet"]["port"] == port


@pytest.mark.parametrize(
    ("given_pod", "istio"),
    [
        (
            pods.kserve(pods.sklearn(), annotations={"sidecar.istio.io/rewriteAppHTTPProbers": "false"}),
            istio_model.Settings(),
        ),
        (pods.kserve(pods.sklearn()), istio_model.Settings(rewrites_probes=False)),
        (pods.plain(pods.sklearn(), annotations={"status.sidecar.istio.io/port": "0"}), istio_model.Settings()),
    ],
)
def test_where_istio_leaves_probes_alone_so_do_we_and_name_the_annotation_for_strict_tls(
    given_pod: Object, istio: istio_model.Settings
) -> None:
    done = inject(istio_model.mutate(given_pod, istio))
    assert pods.container(done.pod, model.CONTAINER)["startupProbe"]["httpGet"]["port"] == ADMIN_PORT
    assert [text for text in done.warnings if 'traffic.sidecar.istio.io/excludeInboundPorts: "9082"' in text]
    given_pod["metadata"].setdefault("annotations", {})["traffic.sidecar.istio.io/excludeInboundPorts"] = (
        "443, 9000-9100"
    )
    assert inject(istio_model.mutate(given_pod, istio)).warnings == ()


def test_a_pod_of_the_ambient_mesh_is_injected_as_any_other() -> None:
    """Its proxy is the node's, and Istio's agent there lets the kubelet through."""
    labels = {"istio.io/dataplane-mode": "ambient"}
    with_label, without = pods.kserve(pods.sklearn(), **labels), pods.kserve(pods.sklearn())
    assert inject(with_label).pod["spec"] == inject(without).pod["spec"]


@pytest.mark.parametrize("text", ["{", "[]", '{"/app-health/kserve-container/readyz": 1}', "9" * 5000, "[" * 100_000])
def test_a_variable_of_istios_that_cannot_be_read_changes_nothing_but_where_it_is_used(text: str) -> None:
    given_pod = istio_model.mutate(pods.kserve(pods.sklearn()))
    variable = next(
        each for each in pods.container(given_pod, "istio-proxy")["env"] if each["name"] == istio_model.PROBERS
    )
    variable["value"] = text
    assert inject(given_pod).plan is not None


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_what_is_no_json_in_istios_variable_stays_as_it_is(number: str) -> None:
    """Istio's agent could not read it either, and nothing may be made of it that it cannot read."""
    given_pod = istio_model.mutate(pods.kserve(pods.sklearn()))
    env = pods.container(given_pod, "istio-proxy")["env"]
    next(each for each in env if each["name"] == istio_model.PROBERS)["value"] = f'{{"/other": {{"x": {number}}}}}'
    before = copy.deepcopy(env)
    assert pods.container(inject(given_pod).pod, "istio-proxy")["env"] == before


def test_a_port_that_can_be_none_is_not_what_probes_are_sent_to() -> None:
    annotated = pods.plain(pods.sklearn(), annotations={"status.sidecar.istio.io/port": "99999"})
    sidecar = pods.container(inject(istio_model.mutate(annotated)).pod, model.CONTAINER)
    assert sidecar["startupProbe"]["httpGet"]["port"] == 15020
    given_pod = meshes.with_kuma(pods.kserve(pods.sklearn()))
    given_pod["metadata"]["annotations"]["kuma.io/application-probe-proxy-port"] = "99999"
    sidecar = pods.container(inject(given_pod).pod, model.CONTAINER)
    assert sidecar["startupProbe"]["httpGet"]["port"] == ADMIN_PORT


@pytest.mark.parametrize(
    "probe",
    [
        {"httpGet": {"path": "/health", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 3},
        {"httpGet": {"path": "/", "port": 8080, "httpHeaders": [{"name": "Host", "value": "a.b"}], "scheme": "HTTP"}},
        {"tcpSocket": {"port": 8080}, "timeoutSeconds": 1},
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_kumas_proxy_asks_the_app_where_it_moved_and_the_sidecar_where_it_listens(probe: Object, native: bool) -> None:
    done = inject(meshes.with_kuma(pods.kserve(pods.sklearn(readinessProbe=copy.deepcopy(probe))), native))
    moved = json.loads(json.dumps(probe).replace("8080", "9083"))
    expected = meshes.with_kuma(pods.plain(pods.sklearn(readinessProbe=moved)))["spec"]["containers"][0]
    assert done.pod["spec"]["containers"][0]["readinessProbe"] == expected["readinessProbe"]
    sidecar = pods.container(done.pod, model.CONTAINER)
    assert sidecar["startupProbe"]["httpGet"] == {
        "path": "/9082/livez",
        "port": 9001,
        "scheme": "HTTP",
        "httpHeaders": [{"name": "X-Kuma-Probes-Timeout", "value": "5"}],
    }
    [variable] = sidecar["env"]
    told = json.loads(variable["value"])
    assert next(iter(told.values()))["port"] == 9083
    assert (sidecar.get("restartPolicy") == "Always") is native
    assert inject(done.pod).patch == []


def test_linkerds_open_policies_need_nothing_and_a_strict_one_gets_the_annotation_told() -> None:
    given_pod = pods.kserve(pods.sklearn())
    assert inject(meshes.with_linkerd(given_pod)).warnings == ()
    [warning] = inject(meshes.with_linkerd(given_pod, "deny")).warnings
    assert 'config.linkerd.io/skip-inbound-ports: "9082"' in warning
    given_pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-ports"] = "9082"
    assert inject(meshes.with_linkerd(given_pod, "deny")).warnings == ()


def test_consul_is_refused_until_the_admin_port_is_excluded() -> None:
    given_pod = pods.kserve(pods.sklearn())
    refusal = inject(meshes.with_consul(given_pod)).refusal
    assert refusal is not None
    assert refusal.code == "mesh-in-between"
    assert 'transparent-proxy-exclude-inbound-ports: "9082"' in refusal.fix
    assert inject(meshes.with_consul(given_pod, ("9082",))).plan is not None
    given_pod["metadata"]["annotations"]["consul.hashicorp.com/transparent-proxy-exclude-inbound-ports"] = "9082"
    assert inject(meshes.with_consul(given_pod)).plan is not None


@pytest.mark.parametrize("ports", [5, True, {"9082": 1}, "9082", None, [9082]], ids=str)
def test_consuls_redirection_that_excludes_nothing_readable_excludes_nothing(ports: Any) -> None:
    annotations = {"consul.hashicorp.com/redirect-traffic-config": json.dumps({"ExcludeInboundPorts": ports})}
    refusal = inject(pods.kserve(pods.sklearn(), annotations=annotations)).refusal
    assert refusal is not None
    assert refusal.code == "mesh-in-between"
