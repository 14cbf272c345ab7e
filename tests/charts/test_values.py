"""What can be set: the configuration one to one, every key described, and what is wrong refused in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from carpool_injector import config_file
from carpool_injector.core import config, pod_annotations
from carpool_injector.core import model as injector_model
from tests.charts import flags, helm, objects, pages

DEFAULTS = YAML(typ="safe", pure=True).load((helm.CHART / "values.yaml").read_text())
SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
FORM = dict[str, Any]


def forms(schema: Any, where: str = "$") -> Iterator[tuple[str, FORM]]:
    """Every schema in the schema that describes an object."""
    if isinstance(schema, dict):
        if "object" in str(schema.get("type", "")):
            yield where, schema
        for key, value in schema.items():
            yield from forms(value, f"{where}.{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from forms(value, f"{where}[{index}]")


def resolved(schema: FORM) -> FORM:
    name = schema.get("$ref", "").removeprefix("#/definitions/")
    found: FORM = SCHEMA["definitions"][name] if name else schema
    return found


def test_the_configuration_is_the_injectors_one_to_one() -> None:
    assert DEFAULTS["config"] == config.Config().model_dump(by_alias=True)


def test_rules_for_lists_reach_the_injector_from_values_as_they_are_written(tmp_path: Path) -> None:
    rule = 'mine:\n  path: "**/embed"  # ours\n  list: texts\n  answers: $\n'
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"config": {"defaults": {"lists": rule}}}))
    given = objects.one(objects.rendered(values=values), "ConfigMap")["data"]["config.yaml"]
    file = tmp_path / "config.yaml"
    file.write_text(given)
    assert config_file.load(file).defaults == {"lists": rule}


def test_defaults_of_the_chart_are_those_of_the_flags() -> None:
    chosen = flags.serve_options(objects.container(objects.rendered("--set", "webhook.namePrefix=,logFormat=auto")))
    assert chosen == type(chosen)(config="/etc/carpool/config.yaml")


def test_the_schema_is_one_and_the_defaults_follow_it() -> None:
    # Of a draft that Helm 3 understands as well.
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(DEFAULTS)) == []


def test_no_object_takes_keys_that_nobody_described() -> None:
    # What is Kubernetes' own (and `global`, which Helm puts in) is for others to check.
    theirs = {
        "$.properties.affinity.properties", "$.properties.networkPolicy", "$.properties.global",
        "$.properties.topologySpreadConstraints.items.properties.labelSelector",
    }  # fmt: skip
    open_ones = [where for where, form in forms(SCHEMA) if "additionalProperties" not in form]
    assert [where for where in open_ones if not any(where.startswith(each) for each in theirs)] == []


@pytest.mark.parametrize("path", [each.path for each in pages.values()])
def test_every_value_is_in_the_schema(path: str) -> None:
    form = SCHEMA
    for key in path.split("."):
        form = resolved(form["properties"][key])
    assert form


def test_every_property_of_the_schema_is_a_value() -> None:
    def paths(form: FORM, prefix: str = "") -> Iterator[str]:
        for key, inner in form.get("properties", {}).items():
            inner = resolved(inner)
            yield from paths(inner, f"{prefix}{key}.") if inner.get("properties") else [f"{prefix}{key}"]

    described = {each.path for each in pages.values()}
    # Described where they stand, as Kubernetes has their parts, or as annotations of pods.
    theirs = ("affinity.", "updateStrategy.", "dnsConfig.", "global", "config.defaults.")
    assert [path for path in paths(SCHEMA) if path not in described and not path.startswith(theirs)] == []


def test_defaults_for_pods_may_name_the_settings_that_exist_and_no_others() -> None:
    text = pages.SCHEMA.read_text()
    assert pages.schema(text) == text, "run: python -m tests.charts"
    defaults = SCHEMA["properties"]["config"]["properties"]["defaults"]
    assert defaults["additionalProperties"] is False
    named = defaults["properties"]
    assert {injector_model.PREFIX + key for key in named} == pod_annotations.KNOWN.keys()


REFUSED = {
    "replica=3": "additional properties 'replica' not allowed",
    "webhook.failurePolicy=Sometimes": "'/webhook/failurePolicy': value must be one of 'Ignore', 'Fail'",
    "webhook.timeoutSeconds=31": "'/webhook/timeoutSeconds': maximum: got 31, want 30",
    "replicas=0": "'/replicas': minimum: got 0, want 1",
    "replicas=two": "'/replicas': got string, want integer",
    "securePort=70000": "'/securePort': maximum: got 70,000, want 65,535",
    "extraArgs={serve}": "'/extraArgs/0': 'serve' does not match pattern",
    "service.ipFamilyPolicy=Both": "'/service/ipFamilyPolicy': value must be one of '', 'SingleStack'",
    "image.registry=https://registry.example.com": "'/image/registry': 'https://registry.example.com' does not match",
    "global.imageRegistry=registry.example.com/": "'/global/imageRegistry': 'registry.example.com/' does not match",
    "config.imagePullSecrets={Registry}": "'/config/imagePullSecrets/0': 'Registry' does not match pattern",
    "image.digest=sha256:abc": "'/image/digest': 'sha256:abc' does not match pattern",
    "config.kserveBatcher=yes": "'/config/kserveBatcher': value must be one of 'takeover', 'leave'",
    "config.defaults.max-bach-size=x": "additional properties 'max-bach-size' not allowed",
    "config.defaults.max-batch-size=many": "'/config/defaults/max-batch-size': 'many' does not match pattern",
    "config.defaults.policy=best": "'/config/defaults/policy': 'best' does not match pattern",
    "config.defaults.max-latency=50ms": "'/config/defaults/max-latency': '50ms' does not match pattern",
    "config.defaults.resources-limits-memory=lots": "'/config/defaults/resources-limits-memory': 'lots' does not",
    "config.resources.limits.memory=lots": "'/config/resources/limits/memory': 'lots' does not match pattern",
    "config.images=x": "additional properties 'images' not allowed",
    "certificates.mode=magic": "value must be one of 'selfManaged', 'certManager', 'existingSecret'",
    "certificates.existingSecret.caBundle=abc": "'/certificates/existingSecret/caBundle': 'abc' does not match pattern",
    "dashboard.labels.x=1": "'/dashboard/labels/x': got number, want string",
    "logLevel=loud": "'/logLevel': value must be one of 'debug', 'info', 'warning', 'error'",
}
CONTRADICTIONS = {
    "missedPods.enabled=false,missedPods.restart=true": "missedPods.restart needs missedPods.enabled",
    "replicas=1,webhook.failurePolicy=Fail": "webhook.failurePolicy Fail needs replicas of 2 or more, not 1",
    "serviceMonitor.enabled=true,podMonitor.enabled=true": "serviceMonitor and podMonitor are both enabled",
    "securePort=9444": "securePort and metricsPort are both 9444",
    "config.adminPort=9081": "config.port and config.adminPort are both 9081",
    "gracePeriod=4": "gracePeriod (4 s) must be longer than quietPeriod (5 s)",
    "gracePeriod=30": "terminationGracePeriodSeconds (30) must be longer than gracePeriod (30 s)",
    "maxHeldBytes=1048576": "maxHeldBytes (1048576) must not be below maxBodyBytes (7340032)",
    "certificates.mode=existingSecret": "certificates.mode existingSecret needs certificates.existingSecret.name",
    "certificates.mode=existingSecret,certificates.existingSecret.name=x": "--set-file certificates.existingSecret.caB",
    "certificates.existingSecret.name=x": "but certificates.mode is selfManaged",
    "service.ipFamilies={IPv4,IPv6}": "set service.ipFamilyPolicy to PreferDualStack or RequireDualStack",
    "dnsPolicy=None": "dnsPolicy None needs dnsConfig.nameservers",
    "extraVolumes[0].name=tls": "extraVolumes: tls is the name of a volume of the chart's own",
    "mode=policy,config.sidecarMode=classic": "mode policy makes native sidecars only",
    "mode=policy,config.defaults.lists=mlflow": "config.defaults.lists is none of the settings of mode policy",
    "mode=policy,config.defaults.max-latency=05": 'config.defaults.max-latency is "05", but mode policy takes only',
    "mode=policy,config.port=80": "config.port must be 1024 or more with mode policy",
    "mode=policy,config.adminPort=null": "config.adminPort must be 1024 or more with mode policy",
    "mode=policy,config.resources.guaranteed=null": "config.resources.guaranteed.memory is needed with mode policy",
    "config.resources.requests.cpu=1500m": "config.resources.requests.cpu must not exceed config.resources.limits.cpu",
    "config.resources.guaranteed.memory=128m": "config.resources.guaranteed.memory must be 1Mi or more",
    "mode=policy,config.resources.requests.memory=1.5Gi": "config.resources.requests.memory must not exceed",
    "mode=policy,config.resources.guaranteed.cpu=1500m": "config.resources.guaranteed.cpu must not exceed",
    "mode=policy,config.resources.requests.cpu=900m": "config.resources.requests.cpu must not exceed",
    "priorityQuota=true": "priorityQuota needs priorityClassName",
    "tls.clientCA.names={x}": "tls.clientCA.names need tls.clientCA.configMap",
    "serviceAccount.create=false": "serviceAccount.name must name an existing ServiceAccount",
}


@pytest.mark.parametrize("values", REFUSED)
def test_a_bad_value_is_refused_with_its_place_and_what_is_allowed(values: str) -> None:
    with pytest.raises(helm.Failed) as refused:
        helm.template("--set", values)
    assert REFUSED[values] in str(refused.value)


@pytest.mark.parametrize("values", CONTRADICTIONS)
def test_values_that_exclude_each_other_are_refused_with_the_way_out(values: str) -> None:
    with pytest.raises(helm.Failed) as refused:
        helm.template("--set", values)
    assert CONTRADICTIONS[values] in str(refused.value)


def test_several_contradictions_are_told_at_once() -> None:
    with pytest.raises(helm.Failed) as refused:
        helm.template("--set", "securePort=9444,gracePeriod=4,replicas=1,webhook.failurePolicy=Fail")
    assert str(refused.value).count("\n- ") == 3


def test_a_secret_of_others_needs_no_ca_bundle_where_somebody_else_fills_it_in() -> None:
    by = r"webhook.annotations.cert-manager\.io/inject-ca-from-secret=ns/secret"
    values = ("--set", "certificates.mode=existingSecret,certificates.existingSecret.name=x")
    configuration = objects.one(objects.rendered(*values, "--set", by), "MutatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from-secret": "ns/secret"}


@pytest.mark.parametrize(
    "values", ["--set=config.runAsUser=0", "--set=config.channels.Big=image", "--set=config.image=a b"]
)
def test_what_the_injector_would_refuse_the_schema_refuses_first(values: str) -> None:
    with pytest.raises(helm.Failed):
        helm.template(values)


UMBRELLA = """\
apiVersion: v2
name: platform
version: 1.0.0
dependencies: [{name: carpool, version: "*", condition: CHART.enabled, alias: CHART}]
"""


@pytest.mark.usefixtures("each_helm")
@pytest.mark.parametrize("name", ["carpool", "batching"])
def test_a_chart_may_be_part_of_another_that_switches_it_on_and_off(tmp_path: Path, name: str) -> None:
    shutil.copytree(helm.CHART, tmp_path / "charts" / "carpool")
    (tmp_path / "Chart.yaml").write_text(UMBRELLA.replace("CHART", name))
    (tmp_path / "values.yaml").write_text(json.dumps({name: {"enabled": True}, "global": {"domain": "example.com"}}))
    given = ("template", "p", str(tmp_path), "--namespace", helm.NAMESPACE)
    whole = objects.parse(helm.run(*given))
    assert {each["kind"] for each in whole} == {each["kind"] for each in objects.parse(helm.template())}
    assert objects.parse(helm.run(*given, f"--set={name}.enabled=false")) == []


@pytest.mark.parametrize("name", objects.SCENARIOS)
def test_nothing_is_made_where_the_chart_is_switched_off(name: str) -> None:
    assert objects.rendered("--set", "enabled=false", values=objects.SCENARIOS[name]) == []
    more = "enabled=false,dashboard.enabled=true,podMonitor.enabled=true,prometheusRule.enabled=true"
    assert objects.rendered("--set", more) == []
    assert objects.rendered("--set", "enabled=false,mode=policy", "--kube-version=1.36.0") == []
