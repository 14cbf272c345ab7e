"""A cluster: what it asks of kind, of the engine and of the API server, in which order, and its own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel import yaml

from e2e.cluster import binaries, clusters, engines, node_image
from tests.e2e import fakes

IMAGE = node_image.published()


pytestmark = pytest.mark.usefixtures("kind_cache")


@pytest.fixture
def machine() -> fakes.Machine:
    return fakes.Machine("kind", "docker")


@pytest.fixture
def cluster(machine: fakes.Machine) -> clusters.Cluster:
    return made(machine)


def made(machine: fakes.Machine, name: str = "demo") -> clusters.Cluster:
    return clusters.Cluster(
        name,
        run=machine,
        connect=machine.connect,
        machine=lambda: fakes.ORDINARY,
        trial=lambda _: "",
        kind=lambda: "kind",
    )


# --- Up ------------------------------------------------------------------------------------------------------------


def test_up_makes_the_cluster_of_the_config_and_writes_no_kubeconfig_but_ours(
    cluster: clusters.Cluster, machine: fakes.Machine, kind_cache: Path
) -> None:
    cluster.up()
    ours = f"--name demo --kubeconfig {kind_cache}/carpool/e2e/kind/clusters/demo/kubeconfig"
    assert machine.asked == [
        "kind get clusters",
        f"kind delete cluster {ours}",
        "docker network inspect kind-demo",
        f"docker image inspect --format {{{{.Id}}}} {node_image.by_digest(IMAGE)}",
        f"kind create cluster {ours} --config {node_image.CONFIG} --image {IMAGE} --wait 3m",
    ]
    assert cluster.is_up()


def test_a_cluster_has_a_network_of_its_own_which_goes_with_it(
    cluster: clusters.Cluster, machine: fakes.Machine
) -> None:
    cluster.up()
    assert machine.networks == {"kind-demo"}
    cluster.down()
    assert machine.networks == set()


def test_a_cluster_that_is_up_stays_as_it_is(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    server, machine.asked = machine.clusters["demo"], []
    cluster.up()
    assert machine.clusters["demo"] is server
    assert not [line for line in machine.asked if "create" in line or "delete" in line]


def test_a_lost_kubeconfig_is_written_again(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    server = machine.clusters["demo"]
    cluster.kubeconfig.unlink()
    cluster.up()
    assert cluster.is_up()
    assert machine.clusters["demo"] is server


def test_a_cluster_that_does_not_answer_is_made_anew(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    machine.clusters["demo"].answers = False
    assert not cluster.is_up()
    cluster.up()
    assert cluster.is_up()


def test_what_kind_said_is_in_the_error_with_the_command(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    machine.broken = ("create",)
    with pytest.raises(
        clusters.Problem, match=r"cannot make the cluster: `kind create cluster .*: ERROR: no create today"
    ):
        cluster.up()


def test_a_node_that_does_not_become_ready_is_named(
    cluster: clusters.Cluster, machine: fakes.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "NODES_SECONDS", 0.0)
    cluster.up()
    machine.clusters["demo"].nodes["demo-worker"]["status"]["conditions"][0]["status"] = "False"
    with pytest.raises(clusters.Problem, match=r"not demo-worker; see: kind export logs --name demo"):
        cluster.up()


# --- Down ----------------------------------------------------------------------------------------------------------


def test_down_removes_the_cluster_and_its_kubeconfig(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    cluster.down()
    assert machine.clusters == {}
    assert not cluster.kubeconfig.exists()
    assert not cluster.is_up()


def test_down_does_nothing_and_builds_nothing_where_there_is_no_cluster() -> None:
    machine = fakes.Machine("none")
    made(machine).down()
    assert machine.asked == []


def test_down_tells_when_the_engine_that_has_the_cluster_does_not_answer(
    cluster: clusters.Cluster, machine: fakes.Machine
) -> None:
    cluster.up()
    machine.tools = ("kind",)
    with pytest.raises(binaries.Unavailable, match="neither docker nor podman answers"):
        made(machine).down()
    assert cluster.kubeconfig.exists()


# --- Use -----------------------------------------------------------------------------------------------------------


def test_the_ingress_is_at_the_port_that_the_engine_names(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    assert cluster.ingress == f"http://127.0.0.1:{fakes.PORT}"
    assert machine.asked[-1] == "docker port demo-control-plane 30080/tcp"


def test_a_cluster_without_a_port_for_the_ingress_says_so(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    machine.broken = ("port",)
    with pytest.raises(clusters.Problem, match="demo-control-plane has no port for the ingress: ERROR: no port today"):
        _ = cluster.ingress


def test_archives_are_loaded_into_all_nodes(cluster: clusters.Cluster, machine: fakes.Machine, tmp_path: Path) -> None:
    archive = tmp_path / "images.tar"
    archive.touch()
    cluster.load(archive)
    assert machine.asked[-1] == f"kind load image-archive {archive} --name demo"


def test_an_archive_that_is_missing_is_named(cluster: clusters.Cluster, tmp_path: Path) -> None:
    with pytest.raises(clusters.Problem, match=r"there is no archive .*images\.tar"):
        cluster.load(tmp_path / "images.tar")


def test_the_api_server_is_restarted_by_ending_its_container(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    machine.asked = []
    cluster.restart_api_server()
    ctr = "docker exec demo-control-plane ctr --namespace k8s.io"
    look = [f'{ctr} containers list --quiet labels."io.kubernetes.container.name"==kube-apiserver', f"{ctr} tasks list"]
    assert machine.asked == [*look, f"{ctr} tasks kill --signal SIGKILL kube-apiserver-1", *look]


# --- Engines -------------------------------------------------------------------------------------------------------


def test_with_podman_alone_kind_is_told_to_use_it() -> None:
    machine = fakes.Machine("kind", "podman")
    made(machine).up()
    told = {engines.PROVIDER: "podman", "KIND_EXPERIMENTAL_PODMAN_NETWORK": "kind-demo"}
    assert [each for line, each in asked_of_kind(machine)] == [told] * 3


def test_with_docker_kind_is_told_the_network_alone(cluster: clusters.Cluster, machine: fakes.Machine) -> None:
    cluster.up()
    assert [each for line, each in asked_of_kind(machine)] == [{"KIND_EXPERIMENTAL_DOCKER_NETWORK": "kind-demo"}] * 3


def asked_of_kind(machine: fakes.Machine) -> list[tuple[str, dict[str, str]]]:
    asked = zip(machine.asked, machine.environments, strict=True)
    return [(line, environment) for line, environment in asked if line.startswith("kind ")]


def test_without_an_engine_the_reason_says_what_to_start_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, kind_cache: Path
) -> None:
    with pytest.raises(binaries.Unavailable, match=r"neither docker nor podman answers.*start docker, or install pod"):
        made(fakes.Machine("kind")).up()
    monkeypatch.setenv(engines.PROVIDER, "podman")
    with pytest.raises(binaries.Unavailable, match=r"podman, which KIND_EXPERIMENTAL_PROVIDER names, does not answer"):
        made(fakes.Machine("kind", "docker")).up()
    assert not list(kind_cache.rglob("demo"))


def test_an_engine_that_cannot_run_a_node_is_told_before_anything_is_built(machine: fakes.Machine) -> None:
    cluster = clusters.Cluster(
        "demo", run=machine, machine=lambda: fakes.ORDINARY, trial=lambda _: "no cgroups", kind=lambda: "kind"
    )
    with pytest.raises(binaries.Unavailable, match="docker cannot run a node: no cgroups"):
        cluster.up()
    assert not [line for line in machine.asked if "create" in line or "image" in line]


@pytest.mark.parametrize("name", ["/", "..", "../demo", "/etc", "a/b", "a b", "-demo", "Demo", "d" * 51, "demo\n"])
def test_names_that_kind_would_refuse_or_that_lead_out_of_a_folder_are_refused(name: str) -> None:
    with pytest.raises(clusters.Problem, match="cannot be a cluster's name"):
        clusters.Cluster(name)


# --- The config file -----------------------------------------------------------------------------------------------


def test_the_config_has_the_nodes_and_the_port_that_tests_ask_for() -> None:
    config = yaml.YAML(typ="safe").load(node_image.CONFIG)
    assert [each["role"] for each in config["nodes"]] == ["control-plane", "worker", "worker"]
    assert [each.get("labels", {}) for each in config["nodes"]] == [{}, {}, clusters.GPU_NODE_LABEL]
    mapping = {"containerPort": clusters.INGRESS_NODE_PORT, "listenAddress": "127.0.0.1"}
    assert [each.get("extraPortMappings", []) for each in config["nodes"]] == [[mapping], [], []]


def test_the_network_of_pods_in_the_config_is_the_one_that_nodes_make_ways_for() -> None:
    config = yaml.YAML(typ="safe").load(node_image.CONFIG)
    script = (node_image.SOURCE / "files" / "kind" / "bin" / "pod-network.sh").read_text()
    assert f"\npods={config['networking']['podSubnet']}\n" in script


def test_the_published_image_and_the_one_made_here_are_of_the_same_minor_release_of_kubernetes() -> None:
    config = yaml.YAML(typ="safe").load(node_image.CONFIG)
    built = binaries.kubernetes_version(binaries.go_mod())
    images = {each["image"] for each in config["nodes"]}
    assert len(images) == 1
    assert images.pop().startswith(f"kindest/node:{built.rpartition('.')[0]}.")


def test_the_environment_names_the_cluster_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clusters.Cluster().name == "carpool"
    monkeypatch.setenv("CARPOOL_CLUSTER", "other")
    assert clusters.Cluster().name == "other"
    assert clusters.Cluster("mine").name == "mine"
