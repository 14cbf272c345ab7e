"""What the chart renders is what Kubernetes accepts, restricted Pod Security admits and the injector understands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from carpool_injector import config_file
from carpool_injector.commands import check
from tests.charts import custom_resources, flags, helm, objects
from tests.injector import pod_rules

# The oldest that Chart.yaml allows, some in between, and the newest that is published.
VERSIONS = ("1.28", "1.30", "1.33", "1.37")
CLUSTER_WIDE = {
    "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
# Kinds that older versions do not have, and are not given.
SINCE = {"ValidatingAdmissionPolicy": "1.30", "ValidatingAdmissionPolicyBinding": "1.30"}
every_scenario = pytest.mark.parametrize("name", objects.SCENARIOS)


def pods(things: list[objects.Object]) -> list[objects.Object]:
    """The pods that come of these objects: the injector's, and that of `helm test`."""
    template = objects.one(things, "Deployment")["spec"]["template"]
    return [{"apiVersion": "v1", "kind": "Pod", **template}, *objects.of_kind(things, "Pod")]


@every_scenario
def test_helm_lint_has_nothing_to_say(name: str) -> None:
    path = objects.SCENARIOS[name]
    said = helm.lint([path] if path else [])
    assert "WARNING" not in said
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize("version", VERSIONS)
@every_scenario
def test_every_object_follows_the_published_schemas(name: str, version: str) -> None:
    things = objects.rendered("--kube-version", version, values=objects.SCENARIOS[name])
    found = {
        f"{thing['kind']} {thing['metadata']['name']}": custom_resources.problems(thing)
        if custom_resources.is_custom(thing)
        else pod_rules.off_schema(thing, version)
        for thing in things
        if SINCE.get(thing["kind"], version) <= version
    }
    assert {what: problems for what, problems in found.items() if problems} == {}


def test_an_older_version_is_given_only_kinds_that_it_has() -> None:
    assert SINCE.keys() <= {thing["kind"] for thing in objects.rendered()}
    older = {thing["kind"] for thing in objects.rendered("--kube-version", "1.29")}
    assert not older & {kind for kind, version in SINCE.items() if version > "1.29"}


@every_scenario
def test_the_pods_are_valid_and_restricted(name: str) -> None:
    for pod in pods(objects.scenario(name)):
        assert pod_rules.invalid(pod) == []
        assert [problem for each in pod["spec"]["containers"] for problem in pod_rules.not_restricted(pod, each)] == []
        assert pod["spec"]["automountServiceAccountToken"] is False


@every_scenario
def test_only_the_token_that_is_mounted_by_hand_is_there_and_it_ends_within_hours(name: str) -> None:
    for pod in pods(objects.scenario(name)):
        (token,) = [
            source["serviceAccountToken"]
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", ())
            if "serviceAccountToken" in source
        ]
        assert token["expirationSeconds"] <= 4000
        mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert "/var/run/secrets/kubernetes.io/serviceaccount" in mounts


@every_scenario
def test_requests_and_limits_are_set_everywhere(name: str) -> None:
    for pod in pods(objects.scenario(name)):
        for container in pod["spec"]["containers"]:
            kinds = container["resources"]
            assert {"cpu", "memory"} <= kinds["requests"].keys() & kinds["limits"].keys()


@every_scenario
def test_objects_are_in_the_releases_namespace_or_in_none(name: str) -> None:
    things = objects.scenario(name)
    elsewhere = {
        (thing["kind"], thing["metadata"].get("namespace"))
        for thing in objects.installed(things)
        if thing["metadata"].get("namespace") != (None if thing["kind"] in CLUSTER_WIDE else helm.NAMESPACE)
    }
    assert elsewhere == set()


@every_scenario
def test_no_two_objects_have_one_name(name: str) -> None:
    names = [
        (thing["kind"], thing["metadata"].get("namespace"), thing["metadata"]["name"])
        for thing in objects.scenario(name)
    ]
    assert len(names) == len(set(names))


@every_scenario
def test_every_object_can_be_found_by_its_labels(name: str) -> None:
    for thing in objects.scenario(name):
        labels = thing["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == helm.RELEASE
        assert labels["app.kubernetes.io/part-of"] == "carpool"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


@every_scenario
def test_rendering_is_the_same_each_time(name: str) -> None:
    path = objects.SCENARIOS[name]
    again = helm.template("--set=check.enabled=true", values=[path] if path else [])
    assert objects.parse(again) == objects.scenario(name)


@every_scenario
def test_the_flags_of_the_deployment_are_real_and_go_together(name: str) -> None:
    chosen = flags.serve_options(objects.container(objects.scenario(name)))
    assert chosen.problems() == []
    assert chosen.namespace == helm.NAMESPACE


@every_scenario
def test_ports_agree_from_the_flag_to_the_webhook(name: str) -> None:
    things = objects.scenario(name)
    container = objects.container(things)
    chosen = flags.serve_options(container)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"https": chosen.port, "metrics": chosen.metrics_port}
    service = objects.one(things, "Service", chosen.service_name)
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == "https"
    clients = [
        entry["clientConfig"]["service"]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for found in objects.of_kind(things, kind)
        for entry in found["webhooks"]
    ]
    assert clients
    assert {(each["namespace"], each["name"], each["port"]) for each in clients} == {
        (helm.NAMESPACE, chosen.service_name, port["port"])
    }


@every_scenario
def test_the_webhooks_that_the_injector_is_told_of_are_those_that_exist(name: str) -> None:
    things = objects.scenario(name)
    chosen = flags.serve_options(objects.container(things))
    if chosen.certificates == "files":  # then it has nothing to do with them
        return
    assert chosen.mutating_webhook == objects.one(things, "MutatingWebhookConfiguration")["metadata"]["name"]
    names = {each["metadata"]["name"] for each in objects.of_kind(things, "ValidatingWebhookConfiguration")}
    assert {chosen.validating_webhook} - {None} == names
    assert chosen.secret_name == objects.one(things, "Secret")["metadata"]["name"]


@every_scenario
def test_selectors_find_the_pods(name: str) -> None:
    things = objects.scenario(name)
    deployment = objects.one(things, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    spreads = deployment["spec"]["template"]["spec"].get("topologySpreadConstraints") or ()
    affinity = deployment["spec"]["template"]["spec"]["affinity"].get("podAntiAffinity") or {}
    apart = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        *(each["spec"]["selector"] for each in objects.of_kind(things, "Service")),
        *(each["spec"]["selector"]["matchLabels"] for each in objects.of_kind(things, "PodDisruptionBudget")),
        *(each["spec"]["podSelector"]["matchLabels"] for each in objects.of_kind(things, "NetworkPolicy")),
        *(each["labelSelector"]["matchLabels"] for each in spreads),
        *(each["podAffinityTerm"]["labelSelector"]["matchLabels"] for each in apart),
    ]
    assert [selector for selector in selectors if not selector.items() <= labels] == []
    test_pod = next(each for each in things if each["kind"] == "Pod")
    assert not selectors[0].items() <= test_pod["metadata"]["labels"].items(), "helm test's pod is no endpoint"


@every_scenario
def test_the_configuration_in_the_config_map_is_one_the_injector_reads(name: str) -> None:
    things = objects.scenario(name)
    name_of_it = objects.one(things, "Deployment")["metadata"]["name"]
    (values,) = objects.parse(objects.one(things, "ConfigMap", name_of_it)["data"]["config.yaml"])
    assert config_file.parse(values).model_dump(by_alias=True, exclude_none=True) == values


def test_another_configuration_means_other_pods_and_nothing_else_does() -> None:
    def checksum(*more: str) -> Any:
        template = objects.one(objects.rendered(*more), "Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/config"]

    plain = checksum()
    assert checksum("--set", "config.kserveBatcher=takeover") != plain
    assert checksum("--set", "replicas=5", "--set", "webhook.failurePolicy=Fail") == plain


@every_scenario
def test_helm_test_runs_check_with_flags_that_exist(name: str) -> None:
    things = objects.scenario(name)
    (container,) = next(each for each in things if each["kind"] == "Pod")["spec"]["containers"]
    command, *arguments = container["args"]
    assert command == "check"
    given = check.check.make_context("check", arguments).params
    chosen = flags.serve_options(objects.container(things))
    assert given["mutating"] == objects.one(things, "MutatingWebhookConfiguration")["metadata"]["name"]
    assert given["service"] == chosen.service_name
    assert container["image"] == objects.container(things)["image"]


@every_scenario
def test_whoever_applies_what_is_rendered_gets_no_hooks_unless_they_are_asked_for(name: str) -> None:
    path = objects.SCENARIOS[name]
    things = objects.parse(helm.template(values=[path] if path else []))
    assert [thing["metadata"]["name"] for thing in things if objects.is_test(thing)] == []


@every_scenario
def test_what_helm_test_makes_goes_with_it(name: str) -> None:
    hooks = [thing for thing in objects.scenario(name) if objects.is_test(thing)]
    assert {thing["kind"] for thing in hooks} >= {"Pod", "ServiceAccount", "ClusterRole", "Role"}
    for thing in hooks:
        annotations = thing["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        policies = set(annotations["helm.sh/hook-delete-policy"].split(","))
        assert {"before-hook-creation", "hook-succeeded", "hook-failed"} == policies


@every_scenario
def test_nothing_stays_behind_on_purpose(name: str) -> None:
    kept = [
        thing["metadata"]["name"]
        for thing in objects.scenario(name)
        if "helm.sh/resource-policy" in (thing["metadata"].get("annotations") or {})
    ]
    assert kept == []


def test_the_image_is_named_by_tag_or_by_digest() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4

    def image(*values: str) -> Any:
        return objects.container(objects.rendered(*(word for each in values for word in ("--set", each))))["image"]

    assert re.fullmatch(r"carpool-injector:\d+\.\d+\.\d+", image())
    assert image("image.registry=registry.example.com:5000", "image.tag=next") == (
        "registry.example.com:5000/carpool-injector:next"
    )
    assert image("image.tag=next", f"image.digest={digest}") == f"carpool-injector@{digest}"


def test_one_registry_is_that_of_all_images_that_name_none() -> None:
    def images(*values: str) -> list[str]:
        things = objects.rendered(*(word for each in values for word in ("--set", each)))
        (config,) = objects.parse(objects.one(things, "ConfigMap")["data"]["config.yaml"])
        return [objects.container(things)["image"], config["image"], *config["channels"].values()]

    mirror = "global.imageRegistry=registry.example.com:5000/team/mirror"
    at = "registry.example.com:5000/team/mirror"
    channels = "config.channels.a=team/b:1,config.channels.c=localhost/d:2,config.channels.e=other:5000/f"
    assert images(mirror, channels) == [
        f"{at}/carpool-injector:0.1.0", f"{at}/carpool-sidecar:0.1.0", f"{at}/team/b:1", "localhost/d:2",
        "other:5000/f",
    ]  # fmt: skip
    assert images(mirror, "config.image=ghcr.io/x/y:1")[1] == "ghcr.io/x/y:1"
    assert images(mirror, "image.registry=own.example.com/path")[0] == "own.example.com/path/carpool-injector:0.1.0"
    assert images()[:2] == ["carpool-injector:0.1.0", "carpool-sidecar:0.1.0"]


def test_what_the_chart_does_not_know_of_can_be_added() -> None:
    things = objects.scenario("everything")
    pod = objects.one(things, "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert flags.serve_options(container).read_timeout == 0.75, "what stands last counts"
    assert {each["name"] for each in container["env"]} == {"POD_NAMESPACE", "PYTHONWARNINGS", "NODE"}
    assert {"name": "spool", "mountPath": "/spool"} in container["volumeMounts"]
    assert {"name": "spool", "emptyDir": {"sizeLimit": "1Mi"}} in pod["volumes"]
    assert (pod["dnsPolicy"], pod["dnsConfig"]["nameservers"]) == ("None", ["10.0.0.10"])
    assert pod["runtimeClassName"] == "gvisor"
    service = objects.one(things, "Service")["spec"]
    assert (service["ipFamilyPolicy"], service["ipFamilies"]) == ("PreferDualStack", ["IPv6", "IPv4"])


def test_the_chart_tells_catalogues_what_it_is() -> None:
    (chart,) = objects.parse((helm.CHART / "Chart.yaml").read_text())
    assert chart["icon"].startswith("data:image/svg+xml;base64,")
    assert [each["name"] for each in chart["maintainers"]]
    (images,) = objects.parse(chart["annotations"]["artifacthub.io/images"])
    (config,) = objects.parse(objects.one(objects.rendered(), "ConfigMap")["data"]["config.yaml"])
    assert [each["image"] for each in images] == [objects.container(objects.rendered())["image"], config["image"]]


def test_a_critical_injector_has_the_quota_that_some_clusters_want_for_its_class() -> None:
    things = objects.scenario("ha")
    deployment = objects.one(things, "Deployment")["spec"]
    quota = objects.one(things, "ResourceQuota")["spec"]
    (scope,) = quota["scopeSelector"]["matchExpressions"]
    assert (scope["scopeName"], scope["values"]) == (
        "PriorityClass",
        [deployment["template"]["spec"]["priorityClassName"]],
    )
    assert int(quota["hard"]["pods"]) >= 2 * deployment["replicas"]
    assert objects.of_kind(objects.rendered(), "ResourceQuota") == []


HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
Nodes = list[dict[str, str]]


def placed(pod: objects.Object, nodes: Nodes, number: int) -> Nodes:
    """Where the scheduler puts so many pods one by one, as far as it is for what is soft: on the first of the best.

    A soft constraint passes over nodes that lack the label of any of them (podtopologyspread/scoring.go in Kubernetes).
    """
    constraints = pod["topologySpreadConstraints"]
    terms = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    taken: Nodes = []

    def burden(node: dict[str, str]) -> float:
        def there(key: str) -> int:
            return sum(each.get(key) == node.get(key) for each in taken if key in node)

        counts = all(each["topologyKey"] in node for each in constraints)
        spread = sum(there(each["topologyKey"]) for each in constraints) if counts else 0
        return spread + sum(each["weight"] * there(each["podAffinityTerm"]["topologyKey"]) for each in terms)

    for _ in range(number):
        taken.append(min(nodes, key=burden))
    return taken


def test_injectors_go_to_different_hosts_and_zones_also_where_nodes_have_no_zone() -> None:
    pod = objects.one(objects.rendered(), "Deployment")["spec"]["template"]["spec"]
    hosts: Nodes = [{HOST: name} for name in "abc"]
    assert len({node[HOST] for node in placed(pod, hosts, 2)}) == 2
    zones = [{HOST: f"{zone}{number}", ZONE: zone} for zone in "xy" for number in range(3)]
    assert len({node[ZONE] for node in placed(pod, zones, 2)}) == 2
    assert len({node[HOST] for node in placed(pod, [*hosts, *zones], 3)}) == 3


def test_an_affinity_of_ones_own_takes_the_place_of_the_charts() -> None:
    given = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    pod = objects.one(objects.rendered("--set-json", f"affinity={json.dumps(given)}"), "Deployment")["spec"]["template"]
    assert pod["spec"]["affinity"] == given


def test_on_the_nodes_network_the_old_pod_makes_room_for_the_new_one() -> None:
    deployment = objects.one(objects.scenario("host-network"), "Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert deployment["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_names_are_the_releases_own() -> None:
    def names(release: str, *more: str) -> set[str]:
        things = objects.parse(helm.template(*more, release=release))
        return {each["metadata"]["name"] for each in objects.of_kind(things, "Deployment")}

    assert names("carpool") == {"carpool-injector"}
    assert names("blue") == {"blue-carpool-injector"}
    assert names("blue", "--set", "fullnameOverride=green") == {"green-injector"}
    (longest,) = names("a" * 53)
    assert len(longest) <= 52, "with -certificates and the like it has to stay below 64"


def test_the_packaged_chart_makes_the_same(tmp_path: Path) -> None:
    helm.run("package", str(helm.CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.iterdir()
    names = ("--set", "dashboard.enabled=true,check.enabled=true")
    packaged = helm.run("template", helm.RELEASE, str(package), "--namespace", helm.NAMESPACE, *names)
    assert objects.parse(packaged) == objects.rendered(*names)
