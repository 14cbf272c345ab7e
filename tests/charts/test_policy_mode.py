"""Mode policy: no server, nothing that can block, and of each pod what the injector makes of it, or nothing at all."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from carpool_injector import config_file
from carpool_injector.core import config, injection, model, pods, servers
from carpool_injector.core import settings as injector_settings
from carpool_injector.diagnosis import cluster_state, places
from tests.charts import helm, injected, objects, policies
from tests.charts.policy_cases import ASKS, DONE, LEFT, app, asking, settings
from tests.injector import api_defaults, strategies
from tests.injector.golden import cases

KINDS = {
    "PodTemplate", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
# One value that each form lets through, and the injector has to take as it is.
EXAMPLES = ("1", "2", "16", "0", "0.5", "2.25", "true", "false", "auto", "window", "batch", "json", "info", "/healthz")
# Two configurations, as values of the chart: the second one says all that it can.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "image": "registry.example/sidecar@sha256:0", "imagePullPolicy": "Always", "runAsUser": 1000650000,
        "port": 19081, "adminPort": 19082, "imagePullSecrets": ["registry", "mirror"],
        "defaults": {"log-level": "debug", "max-batch-size": "8"},
        "resources": {
            "requests": {"cpu": "600m", "memory": "200Mi"}, "limits": {"memory": "1Gi", "cpu": None},
            "guaranteed": {"cpu": "1", "memory": "256Mi"},
        },
    },
}  # fmt: skip


def rendered(*more: str) -> list[objects.Object]:
    return objects.rendered("--set", "mode=policy", "--kube-version", "1.36", *more)


@functools.cache
def policy(configuration: str = "default") -> policies.Policy:
    values = (f"--set-json=config.{key}={json.dumps(value)}" for key, value in CONFIGURATIONS[configuration].items())
    return policies.Policy(rendered(*values))


@functools.cache
def admin(configuration: str = "default") -> config.Config:
    values = YAML(typ="safe", pure=True).load((helm.CHART / "values.yaml").read_text())["config"]
    return config_file.parse(values | CONFIGURATIONS[configuration])


def comparable(pod: objects.Object) -> objects.Object:
    """The pod as an API server stores it, without what differs between configurations, and texts of JSON as values."""
    found = api_defaults.defaulted(pod)
    annotations = found["metadata"].get("annotations") or {}
    if "carpool.dev/status" in annotations:
        annotations["carpool.dev/status"] = {**json.loads(annotations["carpool.dev/status"]), "config": "…"}
    for container in found["spec"].get("initContainers") or ():
        for variable in container.get("env") or ():
            if variable["name"] == "SERVING_READINESS_PROBE":
                variable["value"] = json.loads(variable["value"])
    found["spec"] = {key: value for key, value in found["spec"].items() if value != []}
    return found


def outcome(pod: objects.Object, annotations: dict[str, str] | None = None, configuration: str = "default") -> str:
    """What the policy makes of a pod, beside what the injector makes of it: "the same", "left alone", or "other"."""
    given = api_defaults.defaulted(pod)
    by_policy = policy(configuration).apply(given, annotations)
    if by_policy is given:
        return "left alone"
    namespace = model.Namespace("models", annotations=annotations or {})
    by_injector = injection.inject(given, admin(configuration), namespace, model.Capabilities())
    return "the same" if comparable(by_policy) == comparable(by_injector.pod) else "other"


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("case", DONE)
def test_the_policy_makes_of_a_pod_what_the_injector_makes_of_it(case: str, configuration: str) -> None:
    assert outcome(DONE[case], configuration=configuration) == "the same"


@pytest.mark.parametrize("case", LEFT)
def test_a_pod_for_which_that_is_not_certain_is_left_alone(case: str) -> None:
    assert outcome(LEFT[case]) == "left alone"


def explicit(case: cases.Case) -> Iterator[objects.Object]:
    """The pod of a case as it is, and saying all that mode policy wants to know, of each of its ports and containers.

    Of each it says so as it is, where the kubelet asks that port, and without the other containers.
    """
    yield case.pod
    for container in case.pod["spec"]["containers"]:
        ports = [{"name": f"p{port['containerPort']}", **port} for port in container.get("ports") or ()]
        for port, probed, alone in itertools.product(ports or [{"name": "http", "containerPort": 8080}], *[(0, 1)] * 2):
            pod = copy.deepcopy(case.pod)
            metadata = pod["metadata"]
            metadata["labels"] = {**(metadata.get("labels") or {}), "carpool.dev/inject": "true"}
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **ASKS, "carpool.dev/port": port["name"]}
            [mine] = [each for each in pod["spec"]["containers"] if each["name"] == container["name"]]
            mine["ports"] = ports or [port]
            if probed:
                mine["readinessProbe"] = {"httpGet": {"path": "/ready", "port": port["containerPort"]}}
            pod["spec"]["containers"] = [mine] if alone else pod["spec"]["containers"]
            yield pod


def test_of_the_injectors_golden_cases_the_policy_makes_what_the_injector_makes_or_nothing() -> None:
    found = [
        (case.name, outcome(pod, dict(case.namespace.annotations)))
        for case in cases.load_all()
        for pod in explicit(case)
    ]
    assert [name for name, what in found if what == "other"] == []
    assert len([name for name, what in found if what == "the same"]) > 20


@given(strategies.situations())
def test_of_any_pod_the_policy_makes_what_the_injector_makes_or_nothing(situation: strategies.Situation) -> None:
    pod = copy.deepcopy(situation.pod)
    pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), "carpool.dev/inject": "true"}
    first = pod["spec"]["containers"][0]
    port = (first.get("ports") or [{}])[0]
    named = str(port.get("name") or port.get("containerPort") or "http")
    annotations = pod["metadata"].get("annotations") or {}
    pod["metadata"]["annotations"] = {**annotations, **ASKS, "carpool.dev/port": named}
    assert outcome(pod, dict(situation.namespace.annotations)) != "other"


def combined(*pods_of_cases: objects.Object) -> objects.Object:
    """A pod with what is special about each of these; of two that disagree, the last one counts."""
    metadata: objects.Object = {"name": "combined"}
    spec: objects.Object = {}
    first: objects.Object = {}
    for pod in copy.deepcopy(pods_of_cases):
        for key in ("labels", "annotations"):
            metadata[key] = {**metadata.get(key, {}), **pod["metadata"].get(key, {})}
        first |= {key: value for key, value in pod["spec"]["containers"][0].items() if value != app().get(key)}
        spec |= pod["spec"]
    spec["containers"] = [app(**first), *spec["containers"][1:]]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


TOGETHER = st.lists(st.sampled_from([*DONE.values(), *DONE.values(), *LEFT.values()]), min_size=2, max_size=4)


@given(TOGETHER, st.sampled_from(list(CONFIGURATIONS)))
def test_of_cases_together_the_policy_makes_what_the_injector_makes_or_nothing(
    together: list[objects.Object], configuration: str
) -> None:
    assert outcome(combined(*together), configuration=configuration) != "other"


HOSTS = ("127.0.0.1", "0.0.0.0", "10.1.2.3", "unix:/s", "8000")


def starts(server: servers.Server) -> Iterator[objects.Object]:
    """Containers that run a server: by its first program, and by its first image."""
    for program, more in itertools.product(server.programs[:1], server.subcommands or ("",)):
        yield app(command=[program, *more.split()])
    for image in (*server.images[:1], *server.opened_by[:1]):
        yield app(image=f"registry.example/{image}:1")
    for mark in server.marks:
        yield app(args=[f"{mark}=8000"]) if mark.startswith("-") else app(env=[{"name": mark, "value": "8000"}])


def told(container: objects.Object, name: str, value: str) -> Iterator[objects.Object]:
    """The container with a flag, a subcommand or a variable of this value, written in each way."""
    if name.isupper() and not name.startswith("-"):
        held = [
            {"name": name, "value": value},
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ]
        yield from ({**container, "env": [*container.get("env", ()), each]} for each in held)
        return
    for words in ([f"{name}={value}"], [name, value], [f"{name}{value}"], [name]):
        yield {**container, "args": [*container.get("args", ()), *words]}


@pytest.mark.parametrize("server", servers.SERVERS, ids=lambda server: server.title)
def test_of_each_known_server_however_told_the_policy_makes_what_the_injector_makes_or_nothing(
    server: servers.Server,
) -> None:
    listeners = [each for each in (server.http, server.grpc) if each]
    names = {name for each in listeners for setting in each.settings for name in setting.names}
    names |= {name for each in listeners for name in (*each.tls, *each.mutual_tls, each.switch) if name}
    every = list(starts(server))
    containers = [*every]
    for start in every:  # where an app listens is told alike however it is started
        hosts = HOSTS if start is every[0] else HOSTS[:2]
        containers += [each for name in names for host in hosts for each in told(start, name, host)]
    containers = list({json.dumps(each): each for each in containers}.values())
    assert [each for each in containers if outcome(asking(each)) == "other"] == []


def test_no_app_is_opened_that_listens_on_loopback_or_that_does_not_show_where_it_listens() -> None:
    silent = [
        app(command=[program, *more.split()], readinessProbe=None)
        for server in servers.SERVERS
        for program, more in itertools.product(server.programs, server.subcommands or ("",))
    ]
    local = [
        app(command=["serve", "--host", host]) for host in ("127.0.0.1", "localhost", "::1", "10.1.2.3", "$(HOST)")
    ]
    local += [app(args=[f"--{name}={host}"]) for name in ("host", "bind", "listen-addr") for host in HOSTS[:1]]
    assert {outcome(asking(each)) for each in [*silent, *local]} == {"left alone"}
    assert outcome(asking(app(command=["serve", "--host", "0.0.0.0"]))) == "the same"


def test_settings_of_a_namespace_come_before_the_admins_and_after_the_pods() -> None:
    of_namespace = {"carpool.dev/max-batch-size": "4", "carpool.dev/log-level": "error"}
    pod = asking(annotations=settings(log_level="info"))
    assert outcome(pod, of_namespace, "everything") == "the same"
    assert outcome(pod, {"carpool.dev/grpc-port": "9000"}) == "left alone"


def test_the_pod_that_check_tries_is_one_that_the_policy_takes() -> None:
    assert outcome(cluster_state.sample(places.Place(policy="carpool"))) == "the same"


def test_what_the_chart_takes_from_the_injector_is_up_to_date() -> None:
    assert injected.TEMPLATE.read_text() == injected.text(), "run: python -m tests.charts"


def test_the_policy_is_short() -> None:
    lines = (helm.CHART / "templates" / "policy.yaml").read_text().splitlines()
    assert len(lines) <= 150


def test_there_is_no_server_and_no_webhook() -> None:
    assert {thing["kind"] for thing in rendered()} == KINDS


@pytest.mark.parametrize("name", pods.MESH_PROXIES)
def test_a_pod_with_a_container_of_others_that_changes_the_plan_is_left_alone(name: str) -> None:
    proxy = {"name": name, "image": "x"}
    assert outcome(asking(app(), proxy, annotations=settings(container="app"))) == "left alone"
    assert outcome(asking(initContainers=[proxy])) == "left alone"
    assert outcome(asking(app(name=name))) == "left alone"


def test_nothing_can_keep_a_pod_from_being_created() -> None:
    things = rendered()
    for kind in ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"):
        assert objects.one(things, kind)["spec"]["failurePolicy"] == "Ignore"
    assert objects.one(things, "ValidatingAdmissionPolicyBinding")["spec"]["validationActions"] == ["Warn", "Audit"]
    reference = objects.one(things, "MutatingAdmissionPolicyBinding")["spec"]["paramRef"]
    assert reference["parameterNotFoundAction"] == "Allow"


@pytest.mark.parametrize(("version", "api"), [("1.34", "v1beta1"), ("1.35", "v1beta1"), ("1.36", "v1")])
def test_the_version_of_the_api_is_the_clusters(version: str, api: str) -> None:
    things = objects.rendered("--set", "mode=policy", "--kube-version", version)
    for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"):
        assert objects.one(things, kind)["apiVersion"] == f"admissionregistration.k8s.io/{api}"
    assert objects.one(things, "ValidatingAdmissionPolicyBinding")["apiVersion"] == "admissionregistration.k8s.io/v1"


def test_an_older_cluster_is_told() -> None:
    with pytest.raises(helm.Failed, match=r"mode policy needs Kubernetes 1\.34"):
        helm.template("--set", "mode=policy", "--kube-version", "1.33")


def forms() -> dict[str, str]:
    """The settings of mode policy in their order, with what a value has to match."""
    text = injected.TEMPLATE.read_text().partition('{{- define "carpool.policySettings" -}}')[2].partition("{{-")[0]
    found: dict[str, str] = YAML(typ="safe", pure=True).load(text)
    return found


def test_its_settings_are_the_injectors_in_the_injectors_order() -> None:
    flags = [str(info.alias) for info in injector_settings.SidecarSettings.model_fields.values()]
    assert list(forms()) == [name for name in flags if name in forms()]
    assert len(forms()) == 20


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_value_that_a_form_lets_through_reaches_the_sidecar_as_it_is(example: str) -> None:
    taken = [name for name, form in forms().items() if re.fullmatch(form, example)]
    assert taken
    for name in taken:
        try:
            flags = dict(injector_settings.Settings.model_validate({name: example}).flags())
        except pydantic.ValidationError as error:
            pytest.fail(f"{name}={example}: {error}")
        assert flags[f"--{name}"] == example
        assert outcome(asking(annotations={**ASKS, f"carpool.dev/{name}": example})) == "the same"


def test_a_window_that_it_takes_is_shorter_than_any_timeout_that_it_takes() -> None:
    longest = dict.fromkeys(("max-latency", "timeout"), "999.99") | {"timeout": "1"}
    assert all(re.fullmatch(forms()[name], value) for name, value in longest.items())
    injector_settings.Settings.model_validate(longest)
    assert not re.fullmatch(forms()["max-latency"], "1000")


def test_the_policy_reads_the_same_configuration_as_the_injector() -> None:
    values = ("--set", "config.defaults.log-level=debug,config.port=19081")
    made = objects.one(rendered(*values), "PodTemplate")
    [sidecar] = made["template"]["spec"]["initContainers"]
    (parsed,) = YAML(typ="safe", pure=True).load_all(
        objects.one(objects.rendered(*values), "ConfigMap")["data"]["config.yaml"]
    )
    assert (sidecar["image"], sidecar["ports"][0]["containerPort"]) == (parsed["image"], 19081)
    assert made["template"]["metadata"]["annotations"]["carpool.dev/log-level"] == "debug"


@pytest.mark.parametrize(
    "change", ["imagePullSecrets={registry}", "defaults.log-level=debug", "port=19081", "image=other"]
)
def test_another_configuration_has_another_hash(change: str) -> None:
    def config_hash(*more: str) -> str:
        status = objects.one(rendered(*more), "PodTemplate")["metadata"]["annotations"]["status"]
        [found] = re.findall(r'"config":"([0-9a-f]{8})"', status)
        return str(found)

    assert config_hash("--set", f"config.{change}") != config_hash()


def test_it_acts_where_the_webhook_would() -> None:
    def selector(things: list[objects.Object], kind: str) -> objects.Object:
        spec = objects.one(things, kind)
        found: objects.Object = (
            spec["spec"]["matchResources"]["namespaceSelector"]
            if "spec" in spec
            else spec["webhooks"][0]["namespaceSelector"]
        )
        return found

    more = ("--set", "webhook.excludedNamespaces={databases}")
    wanted = selector(objects.rendered(*more), "MutatingWebhookConfiguration")
    for kind in ("MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding"):
        assert selector(rendered(*more), kind) == wanted
    assert model.PREFIX == "carpool.dev/"
