"""Which objects the API server sends to the injector: the registration's selectors and conditions, evaluated."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from cel_expr_python import cel

from tests.charts import helm, objects

LABEL, STATUS = "carpool.dev/inject", "carpool.dev/status"
BATCHER, ISVC = "internal.serving.kserve.io/batcher", "serving.kserve.io/inferenceservice"
KSERVE_BATCHER = "carpool.dev/kserve-batcher"
SYSTEM = ("kube-system", "kube-public", "kube-node-lease", "cert-manager", helm.NAMESPACE)


def entries(kind: str, *more: str) -> list[objects.Object]:
    found: list[objects.Object] = objects.one(objects.rendered(*more), kind)["webhooks"]
    return found


def mutating(*more: str) -> list[objects.Object]:
    return entries("MutatingWebhookConfiguration", *more)


def selects(selector: objects.Object | None, labels: dict[str, str]) -> bool:
    """As k8s.io/apimachinery/pkg/labels: NotIn holds for a key that is not there."""
    found = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    return all(
        found[each["operator"]](each["key"], each.get("values"))
        for each in (selector or {}).get("matchExpressions", ())
    )


@functools.cache
def program(expression: str) -> cel.Expression:
    return cel.NewEnv(variables={"object": cel.Type.DYN}).compile(expression)


def holds(expression: str, thing: objects.Object) -> bool:
    """What the API server gets for a condition; an error is one here as well."""
    found = program(expression).eval(data={"object": thing})
    assert found.type() == cel.Type.BOOL, found.value()
    return bool(found.value())


def sent_by(
    entries: list[objects.Object], thing: objects.Object, namespace: dict[str, str] | None = None, name: str = "ml"
) -> list[str]:
    """The entries for which the API server asks the injector about this object in a namespace with these labels."""
    place = {"kubernetes.io/metadata.name": name, **(namespace or {})}
    return [
        entry["name"]
        for entry in entries
        if selects(entry.get("namespaceSelector"), place)
        and selects(entry.get("objectSelector"), thing["metadata"].get("labels") or {})
        and all(holds(condition["expression"], thing) for condition in entry.get("matchConditions", ()))
    ]


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> objects.Object:
    metadata: dict[str, Any] = {"name": "p"}
    metadata |= {"labels": labels} if labels is not None else {}
    metadata |= {"annotations": annotations} if annotations is not None else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c"}]}}


KSERVE_POD = pod({ISVC: "iris"}, {BATCHER: "true"})
ON_THE_NODE = {**pod({LABEL: "true"}), "spec": {"hostNetwork": True, "containers": [{"name": "c"}]}}
NOBODY: list[str] = []
BY_LABEL, BY_ANNOTATION = ["label.pods.carpool.dev"], ["annotation.pods.carpool.dev"]
BY_NAMESPACE, BY_BATCHER = ["namespace.pods.carpool.dev"], ["kserve-batcher.pods.carpool.dev"]

PODS = {
    "says nothing": (pod(), {}, NOBODY),
    "has labels of others": (pod({"app": "x"}, {"note": "y"}), {}, NOBODY),
    "asks by label": (pod({LABEL: "true"}), {}, BY_LABEL),
    "asks by label, in a word that is none": (pod({LABEL: "yes"}), {}, BY_LABEL),
    "says no by label": (pod({LABEL: "false"}), {}, NOBODY),
    "says no by label, and by annotation yes": (pod({LABEL: "false"}, {LABEL: "true"}), {}, NOBODY),
    "says no by label in a namespace that asks": (pod({LABEL: "false"}), {LABEL: "enabled"}, NOBODY),
    "says no by label, but has the sidecar": (pod({LABEL: "false"}, {STATUS: "{}"}), {}, BY_LABEL),
    "asks by label and has the sidecar": (pod({LABEL: "true"}, {STATUS: "{}"}), {}, BY_LABEL),
    # Those that cannot have it are sent as well: the injector tells them why.
    "asks by label, on the node's network": (ON_THE_NODE, {}, BY_LABEL),
    "says nothing, on the node's network": ({**ON_THE_NODE, "metadata": {"name": "p"}}, {}, NOBODY),
    "asks by annotation": (pod(None, {LABEL: "true"}), {}, BY_ANNOTATION),
    "says no by annotation": (pod(None, {LABEL: "false"}), {}, NOBODY),
    "says no by annotation in a namespace that asks": (pod(None, {LABEL: "false"}), {LABEL: "true"}, NOBODY),
    "says no by annotation, but has the sidecar": (pod(None, {LABEL: "false", STATUS: "{}"}), {}, BY_ANNOTATION),
    "asks by label and annotation": (pod({LABEL: "true"}, {LABEL: "true"}), {}, BY_LABEL),
    "is in a namespace that asks": (pod(), {LABEL: "enabled"}, BY_NAMESPACE),
    "is in a namespace that asks with true": (pod({"app": "x"}, {"note": "y"}), {LABEL: "true"}, BY_NAMESPACE),
    "is in a namespace that says no": (pod(), {LABEL: "disabled"}, NOBODY),
    "asks in a namespace that says no": (pod({LABEL: "true"}), {LABEL: "disabled"}, BY_LABEL),
    "asks in a namespace that asks": (pod({LABEL: "true"}), {LABEL: "enabled"}, BY_LABEL),
    "has KServe's batcher": (KSERVE_POD, {}, NOBODY),
    "has KServe's batcher, which the namespace hands over": (KSERVE_POD, {KSERVE_BATCHER: "takeover"}, BY_BATCHER),
    "has KServe's batcher, which the namespace keeps": (KSERVE_POD, {KSERVE_BATCHER: "leave"}, NOBODY),
    "has KServe's batcher, handed over where the namespace asks for all": (
        KSERVE_POD, {KSERVE_BATCHER: "takeover", LABEL: "enabled"}, BY_NAMESPACE,
    ),
    "has KServe's batcher, handed over where the namespace says no": (
        KSERVE_POD, {KSERVE_BATCHER: "takeover", LABEL: "disabled"}, NOBODY,
    ),
    "had KServe's batcher and has the sidecar": (
        pod({ISVC: "iris"}, {STATUS: "{}"}), {KSERVE_BATCHER: "takeover"}, BY_BATCHER,
    ),
    "is KServe's, without a batcher": (pod({ISVC: "iris"}, {}), {KSERVE_BATCHER: "takeover"}, NOBODY),
}  # fmt: skip


@pytest.mark.parametrize("case", PODS)
def test_a_pod_is_sent_when_somebody_asks_and_only_then(case: str) -> None:
    thing, namespace, wanted = PODS[case]
    assert sent_by(mutating(), thing, namespace) == wanted


@pytest.mark.parametrize("case", PODS)
def test_no_pod_of_a_system_namespace_is_ever_sent(case: str) -> None:
    thing, namespace, _ = PODS[case]
    assert {name: sent_by(mutating(), thing, namespace, name) for name in SYSTEM} == dict.fromkeys(SYSTEM, NOBODY)


def test_the_releases_own_namespace_is_left_alone_whatever_its_name() -> None:
    things = objects.rendered(namespace="elsewhere")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for entry in objects.one(things, kind)["webhooks"]:
            assert not selects(entry["namespaceSelector"], {"kubernetes.io/metadata.name": "elsewhere"})


def test_more_namespaces_can_be_left_alone() -> None:
    more = ("--set", "webhook.excludedNamespaces={databases}")
    assert sent_by(mutating(*more), pod({LABEL: "true"}), name="databases") == NOBODY
    assert sent_by(mutating(*more), pod({LABEL: "true"}), name="ml") == BY_LABEL


def test_namespaces_can_be_narrowed_down() -> None:
    scenario = objects.one(objects.scenario("everything"), "MutatingWebhookConfiguration")["webhooks"]
    assert sent_by(scenario, pod({LABEL: "true"}), {"team": "a"}) == BY_LABEL
    assert sent_by(scenario, pod({LABEL: "true"}), {"team": "c"}) == NOBODY


def test_where_the_chart_takes_kserves_batchers_over_a_namespace_can_keep_its_own() -> None:
    entries = mutating("--set", "config.kserveBatcher=takeover")
    assert sent_by(entries, KSERVE_POD) == BY_BATCHER
    assert sent_by(entries, KSERVE_POD, {KSERVE_BATCHER: "takeover"}) == BY_BATCHER
    assert sent_by(entries, KSERVE_POD, {KSERVE_BATCHER: "leave"}) == NOBODY
    assert sent_by(entries, pod({ISVC: "iris"})) == NOBODY


def workload(kind: str, where: str, what: dict[str, str]) -> objects.Object:
    template: objects.Object = {"metadata": {}, "spec": {}}
    metadata: objects.Object = {"name": "w"}
    if where == "itself":
        metadata |= {"annotations": what}
    elif where == "template":
        template["metadata"] = {"annotations": what}
    elif where == "template's labels":
        template["metadata"] = {"labels": what}
    spec = {"jobTemplate": {"spec": {"template": template}}} if kind == "CronJob" else {"template": template}
    return {"kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
@pytest.mark.parametrize("where", ["itself", "template", "template's labels", "nowhere"])
def test_a_workload_is_looked_at_when_it_speaks_of_carpool(kind: str, where: str) -> None:
    name = "cronjobs.carpool.dev" if kind == "CronJob" else "workloads.carpool.dev"
    rule = next(each for each in entries("ValidatingWebhookConfiguration") if each["name"] == name)
    said = workload(kind, where, {"carpool.dev/max-batch-size": "16"})
    assert sent_by([rule], said) == ([] if where == "nowhere" else [name])
    assert sent_by([rule], workload(kind, where, {"example.com/x": "y"})) == []


SERVICES: dict[str, tuple[objects.Object, bool]] = {
    "says nothing": ({"metadata": {"name": "i"}, "spec": {"predictor": {"model": {}}}}, False),
    "asks itself": ({"metadata": {"name": "i", "labels": {LABEL: "true"}}, "spec": {"predictor": {}}}, True),
    "asks at its predictor": ({"metadata": {"name": "i"}, "spec": {"predictor": {"labels": {LABEL: "true"}}}}, True),
    "sets something": ({"metadata": {"name": "i", "annotations": {"carpool.dev/slo": "5"}}, "spec": {}}, True),
    "has a batcher": ({"metadata": {"name": "i"}, "spec": {"predictor": {"batcher": {}}}}, True),
}


@pytest.mark.parametrize("case", SERVICES)
def test_an_inferenceservice_is_looked_at_when_it_concerns_us(case: str) -> None:
    thing, wanted = SERVICES[case]
    name = "inferenceservices.carpool.dev"
    rule = next(each for each in entries("ValidatingWebhookConfiguration") if each["name"] == name)
    assert sent_by([rule], thing) == ([name] if wanted else [])


def test_pods_of_kserve_are_sent_after_kserve_has_changed_them() -> None:
    name = objects.one(objects.rendered(), "MutatingWebhookConfiguration")["metadata"]["name"]
    assert name > "inferenceservice.serving.kserve.io"
    assert {entry["reinvocationPolicy"] for entry in mutating()} == {"IfNeeded"}


def test_only_what_changes_pods_can_block_anything() -> None:
    things = objects.scenario("ha")
    assert {e["failurePolicy"] for e in objects.one(things, "MutatingWebhookConfiguration")["webhooks"]} == {"Fail"}
    assert {e["failurePolicy"] for e in objects.one(things, "ValidatingWebhookConfiguration")["webhooks"]} == {"Ignore"}


@pytest.mark.parametrize("name", objects.SCENARIOS)
def test_the_ca_bundle_is_written_only_where_nobody_else_does(name: str) -> None:
    things = objects.scenario(name)
    configurations = [each for each in things if each["kind"].endswith("WebhookConfiguration")]
    written = {"caBundle" in entry["clientConfig"] for each in configurations for entry in each["webhooks"]}
    injected = {
        "cert-manager.io/inject-ca-from" in (each["metadata"].get("annotations") or {}) for each in configurations
    }
    assert written == {name == "existing-secret"}
    assert injected == {name in ("cert-manager", "issuer")}


@pytest.mark.parametrize("name", ["cert-manager", "issuer"])
def test_cert_manager_is_asked_for_the_name_that_the_api_server_calls(name: str) -> None:
    things = objects.scenario(name)
    leaf = objects.one(things, "Certificate", "carpool-injector")
    client = objects.one(things, "MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]
    assert leaf["spec"]["dnsNames"][0] == f"{client['name']}.{client['namespace']}.svc"
    issuers = {each["metadata"]["name"] for each in objects.of_kind(things, "Issuer")}
    assert leaf["spec"]["issuerRef"]["name"] in issuers | {"internal"}
    annotations = objects.one(things, "MutatingWebhookConfiguration")["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"{helm.NAMESPACE}/{leaf['metadata']['name']}"


@pytest.mark.parametrize("name", objects.SCENARIOS)
def test_a_secret_of_the_chart_has_no_data_so_that_upgrades_leave_what_others_put_in(name: str) -> None:
    secrets = objects.of_kind(objects.scenario(name), "Secret")
    assert [secret.keys() & {"data", "stringData"} for secret in secrets] == [set()] * len(secrets)
    volumes = objects.one(objects.scenario(name), "Deployment")["spec"]["template"]["spec"]["volumes"]
    mounted = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert mounted <= {secret["metadata"]["name"] for secret in secrets} | {"carpool-tls"}
