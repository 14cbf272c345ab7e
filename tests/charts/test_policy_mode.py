"""Mode policy: no server, nothing that can block, and settings that the sidecar takes."""

from __future__ import annotations

import re

import pydantic
import pytest
from ruamel.yaml import YAML

from carpool_injector.core import model, pods
from carpool_injector.core import settings as injector_settings
from tests.charts import helm, objects

KINDS = {
    "ConfigMap", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
# One value that each form lets through, and the injector has to take as it is.
EXAMPLES = ("1", "2", "16", "0", "0.5", "2.25", "true", "false", "auto", "window", "batch", "json", "info", "/healthz")


def rendered(*more: str) -> list[objects.Object]:
    return objects.rendered("--set", "mode=policy", "--kube-version", "1.36", *more)


def forms() -> dict[str, str]:
    """The settings of mode policy in their order, with what a value has to match."""
    text = (helm.CHART / "templates" / "_settings.tpl").read_text()
    policy = objects.one(rendered(), "MutatingAdmissionPolicy")["spec"]
    flags = next(each["expression"] for each in policy["variables"] if each["name"] == "flags")
    found = dict(re.findall(r"\[\['([a-z-]+)', value, r'\^\((.*?)\)\$'\]\]", flags))
    assert len(found) == len(re.findall(r"(?m)^[a-z-]+: ", text))
    return found


def test_there_is_no_server_and_no_webhook() -> None:
    assert {thing["kind"] for thing in rendered()} == KINDS


def test_a_pod_with_containers_of_others_that_change_the_plan_is_left_alone() -> None:
    policy = objects.one(rendered(), "MutatingAdmissionPolicy")["spec"]
    plain = next(each["expression"] for each in policy["variables"] if each["name"] == "podIsPlain")
    assert [name for name in pods.MESH_PROXIES if f"'{name}'" not in plain] == []


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
    assert objects.one(things, "MutatingAdmissionPolicy")["apiVersion"] == f"admissionregistration.k8s.io/{api}"


def test_an_older_cluster_is_told() -> None:
    with pytest.raises(helm.Failed, match=r"mode policy needs Kubernetes 1\.34"):
        helm.template("--set", "mode=policy", "--kube-version", "1.33")


def test_its_settings_are_the_injectors_in_the_injectors_order() -> None:
    flags = [
        str(info.alias)
        for info in injector_settings.Settings.model_fields.values()
        if info.json_schema_extra["flag"]  # type: ignore[index]
    ]
    assert list(forms()) == [name for name in flags if name in forms()]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_value_that_a_form_lets_through_reaches_the_sidecar_as_it_is(example: str) -> None:
    taken = [name for name, form in forms().items() if re.fullmatch(form, example)]
    assert taken
    for name in taken:
        extra = {"max-latency": "0.1"} if name == "timeout" else {}
        try:
            flags = dict(injector_settings.Settings.model_validate({name: example, **extra}).flags())
        except pydantic.ValidationError as error:
            pytest.fail(f"{name}={example}: {error}")
        assert flags[f"--{name}"] == example


def test_the_policy_reads_the_same_configuration_as_the_injector() -> None:
    values = ("--set", "config.defaults.log-level=debug,config.port=19081,config.imagePullSecrets={a,b}")
    data = objects.one(rendered(*values), "ConfigMap")["data"]
    assert {data[key] for key in ("default.log-level", "port", "imagePullSecrets")} == {"debug", "19081", "a,b"}
    (config,) = YAML(typ="safe", pure=True).load_all(
        objects.one(objects.rendered(*values), "ConfigMap")["data"]["config.yaml"]
    )
    assert data["image"] == config["image"]
    assert data["hash"] != objects.one(rendered(), "ConfigMap")["data"]["hash"]


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
    assert selector(rendered(*more), "MutatingAdmissionPolicyBinding") == wanted
    assert model.PREFIX == "carpool.dev/"
