"""The kind backend: what it asks of kind, of the engine and of the API server, in which order, and its own words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ruamel import yaml

from e2e.cluster import backends, binaries, interface
from e2e.cluster.kind import backend as kind
from e2e.cluster.kind import engines, node_image
from e2e.cluster.local import node
from tests.e2e import kind_fakes

IMAGE = node_image.published(kind.CONFIG)


pytestmark = pytest.mark.usefixtures("kind_cache")


@pytest.fixture
def machine() -> kind_fakes.Machine:
    return kind_fakes.Machine("kind", "docker")


@pytest.fixture
def cluster(machine: kind_fakes.Machine) -> kind.Kind:
    return made(machine)


def made(machine: kind_fakes.Machine, name: str = "demo") -> kind.Kind:
    return kind.Kind(name, "", machine, machine.connect, lambda: kind_fakes.ORDINARY, lambda _: "")


# --- Up ------------------------------------------------------------------------------------------------------------


def test_up_makes_the_cluster_of_the_config_and_writes_no_kubeconfig_but_ours(
    cluster: kind.Kind, machine: kind_fakes.Machine, kind_cache: Path
) -> None:
    cluster.up()
    ours = f"--name demo --kubeconfig {kind_cache}/carpool/e2e/kind/clusters/demo/kubeconfig"
    assert machine.asked == [
        "kind get clusters",
        f"kind delete cluster {ours}",
        "docker network inspect kind-demo",
        f"docker image inspect --format {{{{.Id}}}} {node_image.by_digest(IMAGE)}",
        f"kind create cluster {ours} --config {kind.CONFIG} --image {IMAGE} --wait 3m",
    ]
    assert cluster.is_up()


def test_a_cluster_has_a_network_of_its_own_which_goes_with_it(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    assert machine.networks == {"kind-demo"}
    cluster.down()
    assert machine.networks == set()


def test_a_cluster_that_is_up_stays_as_it_is(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    server, machine.asked = machine.clusters["demo"], []
    cluster.up()
    assert machine.clusters["demo"] is server
    assert not [line for line in machine.asked if "create" in line or "delete" in line]


def test_a_lost_kubeconfig_is_written_again(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    server = machine.clusters["demo"]
    cluster.kubeconfig.unlink()
    cluster.up()
    assert cluster.is_up()
    assert machine.clusters["demo"] is server


def test_a_cluster_that_does_not_answer_is_made_anew(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    machine.clusters["demo"].answers = False
    assert not cluster.is_up()
    cluster.up()
    assert cluster.is_up()


def test_what_kind_said_is_in_the_error_with_the_command(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    machine.broken = ("create",)
    with pytest.raises(
        interface.Problem, match=r"cannot make the cluster: `kind create cluster .*: ERROR: no create today"
    ):
        cluster.up()


def test_a_node_that_does_not_become_ready_is_named(
    cluster: kind.Kind, machine: kind_fakes.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "NODES_SECONDS", 0.0)
    cluster.up()
    machine.clusters["demo"].nodes["demo-worker"]["status"]["conditions"][0]["status"] = "False"
    with pytest.raises(interface.Problem, match=r"not demo-worker; see: kind export logs --name demo"):
        cluster.up()


# --- Down ----------------------------------------------------------------------------------------------------------


def test_down_removes_the_cluster_and_its_kubeconfig(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    cluster.down()
    assert machine.clusters == {}
    assert not cluster.kubeconfig.exists()
    assert not cluster.is_up()


def test_down_does_nothing_where_there_is_neither_kind_nor_a_cluster() -> None:
    machine = kind_fakes.Machine("none")
    made(machine).down()
    assert machine.asked == []


def test_down_tells_when_the_engine_that_has_the_cluster_does_not_answer(
    cluster: kind.Kind, machine: kind_fakes.Machine
) -> None:
    cluster.up()
    machine.tools = ("kind",)
    with pytest.raises(interface.Problem, match="neither docker nor podman answers"):
        made(machine).down()
    assert cluster.kubeconfig.exists()


# --- Use -----------------------------------------------------------------------------------------------------------


def test_the_ingress_is_at_the_port_that_the_engine_names(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    assert cluster.ingress == f"http://127.0.0.1:{kind_fakes.PORT}"
    assert cluster.address == "127.0.0.1"
    assert machine.asked[-1] == "docker port demo-control-plane 30080/tcp"


def test_archives_are_loaded_into_all_nodes(cluster: kind.Kind, machine: kind_fakes.Machine, tmp_path: Path) -> None:
    archive = tmp_path / "images.tar"
    archive.touch()
    cluster.load(archive)
    assert machine.asked[-1] == f"kind load image-archive {archive} --name demo"


def test_an_archive_that_is_missing_is_named(cluster: kind.Kind, tmp_path: Path) -> None:
    with pytest.raises(interface.Problem, match=r"there is no archive .*images\.tar"):
        cluster.load(tmp_path / "images.tar")


def test_a_static_pod_is_restarted_by_ending_its_container(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    machine.asked = []
    cluster.restart("kube-apiserver")
    ctr = "docker exec demo-control-plane ctr --namespace k8s.io"
    look = [f'{ctr} containers list --quiet labels."io.kubernetes.container.name"==kube-apiserver', f"{ctr} tasks list"]
    assert machine.asked == [*look, f"{ctr} tasks kill --signal SIGKILL kube-apiserver-1", *look]


def test_kube_proxy_is_restarted_on_every_node(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    cluster.restart("kube-proxy")
    assert [line.split()[2] for line in machine.asked if "kill" in line] == [
        "demo-control-plane",
        "demo-worker",
        "demo-worker2",
    ]


def test_kubelets_are_restarted_by_systemd_and_asked_for_their_health(
    cluster: kind.Kind, machine: kind_fakes.Machine
) -> None:
    cluster.up()
    machine.asked = []
    cluster.restart("kubelet")
    assert machine.asked == [
        line
        for node in ("demo-control-plane", *cluster.nodes)
        for line in (
            f"docker exec {node} systemctl restart kubelet",
            f"docker exec {node} kubectl --server http://127.0.0.1:10248 get --raw /healthz",
        )
    ]


def test_an_unknown_component_is_named_beside_the_known_ones(cluster: kind.Kind) -> None:
    with pytest.raises(interface.Problem, match=r"no 'kubelot' to restart; there are: containerd, etcd, .*kubelet"):
        cluster.restart("kubelot")


# --- Engines -------------------------------------------------------------------------------------------------------


def test_with_podman_alone_kind_is_told_to_use_it() -> None:
    machine = kind_fakes.Machine("kind", "podman")
    made(machine).up()
    told = {engines.PROVIDER: "podman", "KIND_EXPERIMENTAL_PODMAN_NETWORK": "kind-demo"}
    assert [each for line, each in asked_of_kind(machine)] == [told] * 3


def test_with_docker_kind_is_told_the_network_alone(cluster: kind.Kind, machine: kind_fakes.Machine) -> None:
    cluster.up()
    assert [each for line, each in asked_of_kind(machine)] == [{"KIND_EXPERIMENTAL_DOCKER_NETWORK": "kind-demo"}] * 3


def asked_of_kind(machine: kind_fakes.Machine) -> list[tuple[str, dict[str, str]]]:
    asked = zip(machine.asked, machine.environments, strict=True)
    return [(line, environment) for line, environment in asked if line.startswith("kind ")]


def test_without_kind_the_error_says_how_to_get_it() -> None:
    with pytest.raises(interface.Problem, match=r"go install sigs\.k8s\.io/kind@v0\.30\.0.*BACKEND=local"):
        made(kind_fakes.Machine("docker")).up()


def test_without_an_engine_the_error_says_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        interface.Problem,
        match=r"(?s)BACKEND=local.*neither docker nor podman answers.*start docker.*apt-get install podman",
    ):
        made(kind_fakes.Machine("kind")).up()
    monkeypatch.setenv(engines.PROVIDER, "podman")
    with pytest.raises(interface.Problem, match=r"podman, which KIND_EXPERIMENTAL_PROVIDER names, does not answer"):
        made(kind_fakes.Machine("kind", "docker")).up()


@pytest.mark.parametrize("name", ["", "../demo", "Demo", "-demo", "d" * 51])
def test_names_that_kind_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(interface.Problem, match="cannot be a cluster's name"):
        kind.Kind(name)


# --- The config file -----------------------------------------------------------------------------------------------


def test_the_config_agrees_with_what_the_backends_promise() -> None:
    config = yaml.YAML(typ="safe").load(kind.CONFIG)
    assert [each["role"] for each in config["nodes"]] == ["control-plane", "worker", "worker"]
    assert [each.get("labels", {}) for each in config["nodes"]] == [{}, {}, interface.GPU_NODE_LABEL]
    mapping = {"containerPort": interface.INGRESS_NODE_PORT, "listenAddress": "127.0.0.1"}
    assert [each.get("extraPortMappings", []) for each in config["nodes"]] == [[mapping], [], []]


def test_both_backends_translate_services_the_same_way() -> None:
    config = yaml.YAML(typ="safe").load(kind.CONFIG)
    described = node.Node("n", 1, "ipv4", "", "", {}, "", "", "", "", "")
    assert config["networking"]["kubeProxyMode"] == node.proxy_configuration(described)["mode"]


def test_the_network_of_pods_in_the_config_is_the_one_that_nodes_make_ways_for() -> None:
    config = yaml.YAML(typ="safe").load(kind.CONFIG)
    script = (node_image.SOURCE / "files" / "kind" / "bin" / "pod-network.sh").read_text()
    assert f"\npods={config['networking']['podSubnet']}\n" in script


def test_both_backends_run_the_same_minor_release_of_kubernetes() -> None:
    config = yaml.YAML(typ="safe").load(kind.CONFIG)
    built = binaries.kubernetes_version((binaries.SOURCE / "go.mod").read_text())
    images = {each["image"] for each in config["nodes"]}
    assert len(images) == 1
    assert images.pop().startswith(f"kindest/node:{built.rpartition('.')[0]}.")


# --- Which backend -------------------------------------------------------------------------------------------------


def test_a_backend_that_does_not_exist_is_named_beside_those_that_do() -> None:
    with pytest.raises(interface.Problem, match=r"no backend 'minikube'; there are: kind, local"):
        backends.choose("demo", "minikube")


def test_the_environment_names_cluster_and_backend_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_CLUSTER", "other")
    monkeypatch.setenv("CARPOOL_CLUSTER_BACKEND", "kind")
    chosen = backends.choose()
    assert isinstance(chosen, kind.Kind)
    assert chosen.name == "other"
    assert backends.choose("mine").name == "mine"


def test_without_a_word_the_backend_is_kind_only_where_that_costs_no_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CARPOOL_CLUSTER_BACKEND", raising=False)
    monkeypatch.setattr(node_image, "can_be_pulled", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backends.decide("demo") == ("local", "there is no kind on PATH")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}:/usr/bin:/bin")
    write_script(tmp_path / "kind", "exit 0")
    write_script(tmp_path / "podman", "exit 1")
    write_script(tmp_path / "docker", "exit 1")
    assert backends.decide("demo").backend == "local"
    assert "neither docker nor podman answers" in backends.decide("demo").reason
    write_script(tmp_path / "docker", '[ "$1" != image ] && echo 28.2.2')
    assert backends.decide("demo") == (
        "local",
        "a node image for kind would have to be made first (BACKEND=kind makes it)",
    )
    node_image.archive().touch()
    assert backends.decide("demo") == ("kind", "docker works, and a node image is here")
    node_image.archive().unlink()
    monkeypatch.setattr(node_image, "can_be_pulled", lambda: True)
    assert backends.decide("demo") == ("kind", "docker works, and the node image can be pulled")


def test_a_cluster_is_taken_down_by_the_backend_that_made_it_whatever_works_by_then(
    cluster: kind.Kind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CARPOOL_CLUSTER_BACKEND", raising=False)
    cluster.up()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backends.decide("demo") == ("kind", "it has made demo")
    cluster.down()
    assert backends.decide("demo").backend == "local"


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
