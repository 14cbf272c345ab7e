"""The samples do what they are there for: injected as they say, accepted by Kubernetes, about series that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click import testing
from ruamel.yaml import YAML

import carpool_injector
from carpool.program import settings as loader
from carpool_injector import cli
from carpool_injector.core import pod_annotations, values
from carpool_predictor import config as predictor_config
from carpool_sidecar import config
from carpool_sidecar.protocols.lists import rules
from tests.charts import metric_names
from tests.charts.helm import ROOT
from tests.injector import pod_rules

SAMPLES = ROOT / "manifests" / "samples"
Object = dict[str, Any]

# What becomes of the pods of each sample: takeover, the port callers reach, and the app's afterwards.
TAKEOVERS = {
    "deployment.yaml": ("port-swap", 8080, 9083),
    "fastapi.yaml": ("port-swap", 8000, 9083),
    "gpu.yaml": ("port-swap", 8080, 9083),
    "gpu-dra.yaml": ("port-swap", 8080, 9083),
    "gpu-mig.yaml": ("port-swap", 8080, 9083),
    "gpu-shared.yaml": ("port-swap", 8080, 9083),
    "gpu-two-models.yaml": ("port-swap", 8080, 9083),
    "inferenceservice.yaml": ("port-swap", 8080, 9083),
    "inferenceservice-batcher.yaml": ("kserve-agent", 9081, 8080),
    "inferenceservice-custom.yaml": ("port-swap", 8080, 9083),
    "inferenceservice-huggingface.yaml": ("port-swap", 8080, 9083),
    "inferenceservice-knative.yaml": ("queue-proxy", 9081, 8080),
    "inferenceservice-mlserver.yaml": ("port-swap", 8080, 9083),
    "inferenceservice-torchserve.yaml": ("port-swap", 8080, 9083),
    "inferenceservice-triton.yaml": ("port-swap", 8080, 9083),
    "inferenceservice-triton-grpc.yaml": ("port-swap", 8080, 9083),
    "mlflow.yaml": ("port-swap", 8080, 9083),
    "triton.yaml": ("port-swap", 8000, 9083),
    "triton-v1.yaml": ("port-swap", 8000, 9083),
}
# Likewise for gRPC, of those that have a port for it.
GRPC = {
    "inferenceservice-mlserver.yaml": (9000, 9084),
    "inferenceservice-torchserve.yaml": (9000, 9084),
    "inferenceservice-triton.yaml": (9000, 9084),
    "inferenceservice-triton-grpc.yaml": (9000, 9084),
    "triton.yaml": (8001, 9084),
}
WITHOUT_PODS = {"hpa.yaml", "keda.yaml", "kserve-agent-image.yaml", "networkpolicy.yaml"}
# What the server of each asks for on a GPU node, by limits or claims.
DEVICES = {
    "gpu.yaml": "nvidia.com/gpu",
    "gpu-dra.yaml": "gpu",
    "gpu-mig.yaml": "nvidia.com/mig-1g.10gb",
    "gpu-shared.yaml": "nvidia.com/gpu.shared",
    "gpu-two-models.yaml": "nvidia.com/gpu",
}
# The first version that has what a sample uses, where that is not all versions.
SINCE = {"gpu-dra.yaml": "1.34"}


def read(name: str) -> list[Object]:
    return [each for each in YAML(typ="safe", pure=True).load_all((SAMPLES / name).read_text()) if each]


def explain(name: str) -> list[Object]:
    """What `carpool-injector explain` says about a sample, in a namespace as the sample has it."""
    labels = [
        f"--namespace-labels={key}={value}"
        for each in read(name)
        if each.get("kind") == "Namespace"
        for key, value in each["metadata"]["labels"].items()
    ]
    result = testing.CliRunner().invoke(cli.program, ["explain", "--output=json", *labels, str(SAMPLES / name)])
    assert result.exit_code == 0, result.output
    found: list[Object] = json.loads(result.stdout)
    return found


def test_every_sample_is_looked_at_here() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == TAKEOVERS.keys() | WITHOUT_PODS


def test_every_sample_is_listed() -> None:
    page = (SAMPLES.parent / "README.md").read_text()
    assert set(re.findall(r"\]\(samples/([^)]+)\)", page)) == {path.name for path in SAMPLES.iterdir()}


@pytest.mark.parametrize("name", TAKEOVERS)
def test_a_sample_gets_the_sidecar_in_the_way_it_is_there_to_show(name: str) -> None:
    (found,) = explain(name)
    assert (found["result"], found["refusal"]) == ("injected", None)
    plan = found["plan"]
    assert (plan["takeover"], plan["listenPort"], plan["appPort"]) == TAKEOVERS[name]
    assert (plan["grpcListenPort"], plan["grpcAppPort"]) == GRPC.get(name, (None, None))
    assert found["warnings"] == []


@pytest.mark.parametrize("name", sorted(WITHOUT_PODS))
def test_what_makes_no_pods_is_none_of_the_injectors_business(name: str) -> None:
    assert explain(name) == []


@pytest.mark.parametrize("name", TAKEOVERS)
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_samples_follow_the_published_schemas(name: str, version: str) -> None:
    version = max(version, SINCE.get(name, version))
    known = [each for each in read(name) if "kserve" not in each["apiVersion"]]
    assert [problem for each in known for problem in pod_rules.off_schema(each, version)] == []


@pytest.mark.parametrize("name", TAKEOVERS)
def test_samples_name_only_annotations_that_exist(name: str) -> None:
    keys = {key for each in read(name) for key in keys_of_ours(each)}
    assert keys
    assert keys <= pod_annotations.KNOWN.keys() | {pod_annotations.INJECT, pod_annotations.KSERVE_BATCHER}


def keys_of_ours(thing: Any) -> set[str]:
    if isinstance(thing, dict):
        return {key for key in thing if key.startswith("carpool.dev/")}.union(*map(keys_of_ours, thing.values()))
    return set().union(*map(keys_of_ours, thing)) if isinstance(thing, list) else set()


DEPLOYMENTS = ["deployment.yaml", "fastapi.yaml", "mlflow.yaml", "triton.yaml", "triton-v1.yaml", *DEVICES]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pods_of_a_sample_are_spread_and_no_drain_takes_them_all(name: str) -> None:
    things = {each["kind"]: each.get("spec") for each in read(name)}
    wanted = things["Deployment"]["selector"]
    budget = things["PodDisruptionBudget"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, wanted)
    if name == "gpu-shared.yaml":  # whose pods are to share a GPU
        return
    spec = things["Deployment"]["template"]["spec"]
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (zones,) = spec["topologySpreadConstraints"]
    assert term["podAffinityTerm"] == {"topologyKey": "kubernetes.io/hostname", "labelSelector": wanted}
    assert (zones["topologyKey"], zones["labelSelector"]) == ("topology.kubernetes.io/zone", wanted)
    assert zones["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize("name", DEVICES)
def test_a_gpu_sample_fits_a_node_with_two_cpus_or_says_what_it_needs(name: str) -> None:
    injected = testing.CliRunner().invoke(cli.program, ["inject", str(SAMPLES / name)]).stdout
    spec = deployment_of(list(YAML(typ="safe", pure=True).load_all(injected)))["spec"]["template"]["spec"]
    amounts = [each["resources"]["requests"]["cpu"] for each in (*spec["containers"], *spec["initContainers"])]
    needed = float(sum(values.amount(each) for each in amounts))
    said = re.search(r"Needs a node with (\d+) CPUs", (SAMPLES / name).read_text())
    assert needed + 0.4 < (int(said[1]) if said else 2), "what a node's own pods request is left"


def test_the_network_policy_leaves_the_admin_port_to_monitoring_and_the_app_to_its_sidecar() -> None:
    (policy,) = read("networkpolicy.yaml")
    assert pod_rules.off_schema(policy, "1.33") == []
    injected = testing.CliRunner().invoke(cli.program, ["inject", str(SAMPLES / "deployment.yaml")]).stdout
    template = deployment_of(list(YAML(typ="safe", pure=True).load_all(injected)))["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (sidecar,) = template["spec"]["initContainers"]
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    open_, watched = policy["spec"]["ingress"]
    assert ("from" in open_, "from" in watched) == (False, True)
    assert [port["port"] for port in open_["ports"]] == [ports["http"]]
    assert [port["port"] for port in watched["ports"]] == ["carpool-admin"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_services_find_the_pods_and_their_ports(name: str) -> None:
    things = {each["kind"]: each for each in read(name)}
    template, service = things["Deployment"]["spec"]["template"], things["Service"]["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert things["Deployment"]["spec"]["selector"]["matchLabels"] == service["selector"]
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports


def test_the_sample_for_v1_clients_has_them_answered_by_a_server_that_speaks_v2_only() -> None:
    injected = testing.CliRunner().invoke(cli.program, ["inject", str(SAMPLES / "triton-v1.yaml")]).stdout
    deployment = deployment_of(list(YAML(typ="safe", pure=True).load_all(injected)))
    (sidecar,) = deployment["spec"]["template"]["spec"]["initContainers"]
    settings = config.load(sidecar["args"])
    assert (settings.port, settings.component_port, settings.upstream) == (8000, 9083, "triton-http")


# The rule that batches what the sample's comment sends.
LISTS = {
    "fastapi.yaml": "embedder",
    "inferenceservice-huggingface.yaml": "openai-embeddings",
    "mlflow.yaml": "mlflow",
}


@pytest.mark.parametrize("name", LISTS)
def test_what_the_comment_of_a_sample_sends_is_a_list_by_the_rule_that_is_in_force(name: str) -> None:
    (found,) = explain(name)
    value = next(each["value"] for each in found["settings"] if each["key"] == "carpool.dev/lists")
    chosen = config.load([f"--lists={value}"]).lists
    said = "".join(line.removeprefix("#").strip() for line in (SAMPLES / name).read_text().splitlines()[:12])
    path, body = re.search(r"curl [^/]*?(/\S+) .*?-d '(\{[^']*\})'", said.replace("\\", "")).groups()  # type: ignore[union-attr]
    (rule,) = [each for each in rules.load(chosen) if each.matches(path)]
    assert rule.name == LISTS[name]
    payload = json.loads(body)
    for place in rule.rows:
        held = payload
        for step in place.names:
            held = held.get(step, {})
        if isinstance(held, list):
            break
    assert len(held) == 2, "two rows"


def test_the_sample_for_grpc_stands_behind_queue_proxy_with_knative() -> None:
    given = (
        (SAMPLES / "inferenceservice-triton-grpc.yaml").read_text().replace("Mode: RawDeployment", "Mode: Serverless")
    )
    result = testing.CliRunner().invoke(cli.program, ["explain", "--output=json"], input=given)
    (found,) = json.loads(result.stdout)
    plan = found["plan"]
    assert (plan["takeover"], plan["grpcListenPort"], plan["grpcAppPort"]) == ("queue-proxy", 9083, 9000)


def test_the_sample_to_start_with_is_restricted() -> None:
    pod = read("deployment.yaml")[0]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod_rules.not_restricted(pod, container) == []


@pytest.mark.parametrize("name", DEVICES)
def test_a_gpu_stays_with_the_server(name: str) -> None:
    (container,) = deployment_of(read(name))["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    assert DEVICES[name] in {*resources["limits"], *(claim["name"] for claim in resources.get("claims", ()))}
    arguments = ["inject", str(SAMPLES / name)]
    written = testing.CliRunner().invoke(cli.program, arguments).stdout
    spec = deployment_of(list(YAML(typ="safe", pure=True).load_all(written)))["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == resources
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    (sidecar,) = spec["initContainers"]
    assert sidecar["resources"].keys() == {"requests", "limits"}
    assert sidecar["resources"]["limits"].keys() == sidecar["resources"]["requests"].keys() == {"cpu", "memory"}


def deployment_of(things: list[Object]) -> Object:
    (found,) = [each for each in things if each["kind"] == "Deployment"]
    return found


@pytest.mark.parametrize("name", DEVICES)
def test_the_predictor_starts_with_the_arguments_of_a_sample(name: str) -> None:
    (container,) = deployment_of(read(name))["spec"]["template"]["spec"]["containers"]
    settings = loader.load(predictor_config.Settings, container["args"])
    assert settings.device == ("cuda",)
    named = [spec.name for spec in settings.specs()]
    probed = container["readinessProbe"]["httpGet"]["path"].removeprefix("/v1/models/")
    assert probed in [*named, "/readyz"]
    if settings.gpu_memory:
        assert len(named) * float(settings.gpu_memory.removesuffix("%")) < 100


def test_a_claim_is_made_from_the_template_of_the_sample() -> None:
    template, deployment, *_ = read("gpu-dra.yaml")
    (claim,) = deployment["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]


def test_the_shared_gpu_is_the_one_that_the_plugin_is_told_to_offer() -> None:
    """The plugin appends `.shared` to the names of what it offers several times."""
    plugin, *_ = read("gpu-shared.yaml")
    told = {name: YAML(typ="safe", pure=True).load(text) for name, text in plugin["data"].items()}
    assert all(each["version"] == "v1" for each in told.values())
    for name, way in (("time-slicing-4", "timeSlicing"), ("mps-4", "mps")):
        sharing = told[name]["sharing"][way]
        assert sharing["renameByDefault"]
        (resource,) = sharing["resources"]
        assert f"{resource['name']}.shared" == DEVICES["gpu-shared.yaml"]
        assert name.endswith(f"-{resource['replicas']}")
    assert (
        f"nvidia.com/device-plugin.config={next(name for name in told if name.startswith('time'))}"
        in (SAMPLES / "gpu-shared.yaml").read_text()
    )


def test_the_hpa_scales_the_sample_on_a_series_that_exists() -> None:
    (hpa,) = read("hpa.yaml")
    assert pod_rules.off_schema(hpa, "1.33") == []
    names = [metric["pods"]["metric"]["name"] for metric in hpa["spec"]["metrics"]]
    assert names
    assert [problem for name in names for problem in metric_names.problems(name)] == []
    assert hpa["spec"]["scaleTargetRef"]["name"] == read("deployment.yaml")[0]["metadata"]["name"]


def test_keda_asks_for_a_series_that_exists_and_scales_the_same_pods() -> None:
    (scaled,) = read("keda.yaml")
    deployment = read("deployment.yaml")[0]["metadata"]["name"]
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"] == {"name": deployment}
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "prometheus"
        assert metric_names.problems(trigger["metadata"]["query"]) == []
        assert metric_names.named(trigger["metadata"]["query"])
        assert f'pod=~"{deployment}-[a-z0-9]+-[a-z0-9]+"' in trigger["metadata"]["query"]
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"


def test_keda_scales_down_no_faster_than_the_hpa() -> None:
    """KEDA's own cooldownPeriod counts for the way from one pod to none only."""
    (scaled,) = read("keda.yaml")
    (hpa,) = read("hpa.yaml")
    assert scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (
        hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"],
    )  # fmt: skip
    assert "cooldownPeriod" not in scaled["spec"]


def test_comments_of_the_scalers_name_series_that_exist() -> None:
    for name in ("hpa.yaml", "keda.yaml"):
        assert metric_names.mentioned((SAMPLES / name).read_text()) == []


def test_the_agents_image_is_ours_and_all_that_kserve_reads_of_it_is_there() -> None:
    (patch,) = read("kserve-agent-image.yaml")
    agent = json.loads(patch["data"]["agent"])
    # pkg/webhook/admission/pod/agent_injector.go of kserve/kserve: a missing quantity fails every pod.
    assert agent.keys() == {"image", "cpuRequest", "cpuLimit", "memoryRequest", "memoryLimit"}
    assert agent["image"] == f"carpool-sidecar:{carpool_injector.__version__}"


def test_images_of_ours_are_of_this_version() -> None:
    said = "".join(path.read_text() for path in SAMPLES.iterdir())
    tags = {word.partition(":")[2] for word in said.replace('"', " ").split() if word.startswith("carpool-")} - {""}
    assert tags == {carpool_injector.__version__, f"{carpool_injector.__version__}-cuda"} or tags == {
        carpool_injector.__version__
    }
