"""The parts of the local backend that need no root: control groups, the process table, what a node is told."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import backends, binaries, interface
from e2e.cluster.local import backend, cgroups, network, node, requirements


def version_1(root: Path) -> Path:
    """A control group file system as version 1 shows it: a folder for each controller."""
    for controller in ("memory", "cpuset"):
        (root / controller).mkdir(parents=True)
        (root / controller / "cgroup.procs").touch()
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "systemd-is-no-hierarchy").mkdir()
    return root


def version_2(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    (root / "cgroup.subtree_control").write_text("")
    return root


def folders(root: Path) -> set[str]:
    return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_dir()}


def test_a_group_is_made_in_every_hierarchy_of_version_1(tmp_path: Path) -> None:
    cgroups.make("carpool-x/node-1", version_1(tmp_path))
    assert (tmp_path / "memory" / "carpool-x" / "node-1").is_dir()
    assert (tmp_path / "cpuset" / "carpool-x" / "node-1").is_dir()
    assert not (tmp_path / "systemd-is-no-hierarchy" / "carpool-x").exists()


def test_a_group_of_version_2_is_made_once_and_is_given_all_controllers(tmp_path: Path) -> None:
    cgroups.make("carpool-x", version_2(tmp_path))
    assert folders(tmp_path) == {"carpool-x"}
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_a_new_cpuset_has_the_processors_of_the_one_around_it(tmp_path: Path) -> None:
    group = version_1(tmp_path) / "cpuset" / "carpool-x"
    group.mkdir()
    (group / "cpuset.cpus").write_text("\n")  # as the kernel makes it
    cgroups.make("carpool-x", tmp_path)
    assert (group / "cpuset.cpus").read_text() == "0-1\n"


def test_removing_a_group_removes_what_is_below_it_and_nothing_else(tmp_path: Path) -> None:
    version_1(tmp_path)
    before = folders(tmp_path)
    for name in ("carpool-x/node-1/pod", "carpool-x/node-2"):
        for hierarchy in cgroups.hierarchies(tmp_path):
            (hierarchy / name).mkdir(parents=True)
    cgroups.remove("carpool-x", tmp_path)
    assert folders(tmp_path) == before


def test_removing_a_group_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    before = folders(version_1(tmp_path))
    cgroups.remove("carpool-x", tmp_path)
    assert folders(tmp_path) == before


@pytest.fixture
def sleeper() -> Iterator[tuple[int, list[str]]]:
    """A process with a command that no other has, which waits until it is let go."""
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "a", "cluster's name"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then the kernel may show no command for it
        yield process.pid, words


def test_a_process_is_found_by_the_ends_of_its_command(sleeper: tuple[int, list[str]]) -> None:
    pid, words = sleeper
    assert backend.of_command(words[0], ["a", "cluster's name"]) == [pid]
    assert backend.of_command(words[0], ["cluster's name", "a"]) == []
    assert backend.of_command("another", ["a", "cluster's name"]) == []


def test_processes_are_found_in_the_same_namespace_alone(sleeper: tuple[int, list[str]], tmp_path: Path) -> None:
    pid, words = sleeper
    assert backend.beside(pid, words[:4]) == [pid]
    for number, namespace in ((1, "pid:[1]"), (2, "pid:[1]"), (3, "pid:[3]")):
        folder = tmp_path / str(number)
        (folder / "ns").mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"cluster\0kubelet\0--v=1\0")
        (folder / "ns" / "pid").symlink_to(namespace)
    assert sorted(backend.beside(1, ["cluster", "kubelet"], tmp_path)) == [1, 2]
    assert backend.beside(4, ["cluster", "kubelet"], tmp_path) == []


def test_a_process_that_has_ended_and_was_not_waited_for_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"")
    assert list(backend.running(tmp_path)) == []


def described(tmp_path: Path, number: int = 2, family: str = "ipv4") -> node.Node:
    plan = network.Plan(family, 9)
    return node.Node(
        name=f"node-{number}",
        number=number,
        family=family,
        address=plan.node(number),
        pods=plan.pods(number),
        labels=interface.GPU_NODE_LABEL,
        cgroup=f"carpool-x/node-{number}",
        executable="/bin/cluster",
        kubeconfig="/kubelet.kubeconfig",
        certificate_authority="/ca.crt",
        folder=str(tmp_path / f"node-{number}"),
    )


def test_what_a_node_is_told_is_what_it_reads(tmp_path: Path) -> None:
    made = described(tmp_path)
    made.write()
    assert node.read(tmp_path / "node-2") == made


@pytest.mark.parametrize(
    ("family", "ranges_of_pods"),
    [
        ("ipv4", {"10.244.1.0/24", "10.244.2.0/24"}),
        ("ipv6", {"fd00:10:244:1::/64", "fd00:10:244:2::/64"}),
    ],
)
def test_nodes_share_no_address_no_pods_and_no_folder(tmp_path: Path, family: str, ranges_of_pods: set[str]) -> None:
    plan = network.Plan(family, 9)
    one, two = described(tmp_path, 1, family), described(tmp_path, 2, family)
    assert len({one.address, two.address, plan.control_plane, plan.this_machine}) == 4
    assert (one.address, one.pods, one.folder, one.cgroup) != (two.address, two.pods, two.folder, two.cgroup)
    ranges = {node.network_configuration(each)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for each in (one, two)}
    assert ranges == ranges_of_pods


def test_a_node_of_ipv6_is_told_no_address_of_ipv4_but_its_loopback(tmp_path: Path) -> None:
    made = described(tmp_path, family="ipv6")
    told = json.dumps(
        [
            node.network_configuration(made),
            node.kubelet_configuration(made),
            node.proxy_configuration(made),
            node.commands(made),
        ]
    )
    assert "fd00:10:244:2::/64" in told
    assert "[2001:2:0:9::12]:10256" in told, "a port comes after brackets"
    assert set(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", told)) == {"127.0.0.1"}


def test_containerd_kubelet_and_kube_proxy_start_in_this_order_with_their_own_files(tmp_path: Path) -> None:
    commands = node.commands(described(tmp_path))
    assert list(commands) == ["containerd", "kubelet", "kube-proxy"]
    assert f"--config={tmp_path}/node-2/kubelet.json" in commands["kubelet"]
    assert "--node-labels=carpool.dev/gpu=true" in commands["kubelet"]


def test_pods_keep_to_the_control_group_of_their_node(tmp_path: Path) -> None:
    assert node.kubelet_configuration(described(tmp_path))["cgroupRoot"] == "/carpool-x/node-2"


@pytest.mark.parametrize(
    ("family", "routes", "free"),
    [
        ("ipv4", '[{"dst": "default"}]', 1),
        ("ipv4", '[{"dst": "198.18.1.0/24"}, {"dst": "198.18.2.0/24"}]', 3),
        ("ipv4", '[{"dst": "192.0.2.0/24"}]', 1),
        ("ipv6", '[{"dst": "fe80::/64"}, {"dst": "2001:2:0:1::/64"}]', 2),
    ],
)
def test_a_cluster_takes_a_network_that_this_machine_is_not_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, routes: str, free: int
) -> None:
    (tmp_path / "ip").write_text(f"#!/bin/sh\necho '{routes}'\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert network.free_subnet(family) == free


def test_a_command_that_fails_is_told_with_its_own_words() -> None:
    with pytest.raises(interface.Problem, match=r"`ls /no/such/folder` failed: .*No such file"):
        network.run("ls", "/no/such/folder")


def test_a_cluster_that_was_never_made_is_not_up_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cluster = backend.Local("never-made")
    assert not cluster.is_up()
    with pytest.raises(interface.Problem, match="no cluster never-made is up"):
        _ = cluster.ingress


def record(cluster: backend.Local, **facts: object) -> None:
    """Writes the record of a cluster that was made before."""
    cluster.folder.mkdir(parents=True)
    (cluster.folder / "cluster.json").write_text(json.dumps(facts))


def test_a_cluster_keeps_its_family_and_its_ingress_is_an_address_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    record(backend.Local("six"), subnet=3, family="ipv6")
    assert backend.Local("six").family == "ipv6"
    assert backend.Local("six").ingress == "http://[2001:2:0:3::11]:30080"
    record(backend.Local("old"), subnet=3)
    assert backend.Local("old").ingress == "http://198.18.3.11:30080", "its record was written without a family"


def test_a_cluster_that_is_up_is_not_taken_for_one_of_another_family(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(backend.Local, "is_up", lambda _: True)
    record(backend.Local("four"), subnet=3, family="ipv4")
    with pytest.raises(interface.Problem, match="four is up already, with ipv4: `make cluster-down` removes it"):
        backend.Local("four", "ipv6").up()


def test_a_cluster_of_ipv6_is_made_by_the_local_backend_and_refused_by_kind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("CARPOOL_CLUSTER_BACKEND", "CARPOOL_CLUSTER_FAMILY"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(backends.choose("six", family="ipv6"), backend.Local)
    with pytest.raises(interface.Problem, match="ipv6 is what BACKEND=local makes"):
        backends.choose("six", "kind", "ipv6")
    with pytest.raises(interface.Problem, match="there is no family 'ipv5' of addresses; there are: ipv4, ipv6"):
        backends.choose("six", family="ipv5")


@pytest.mark.parametrize("name", ["/", "..", "../..", "/etc", "a/b", "a b", "-x", "A", "x" * 51, "x\n"])
def test_a_name_that_could_lead_out_of_the_clusters_folder_is_refused(name: str) -> None:
    with pytest.raises(interface.Problem, match="cannot be a cluster's name"):
        backend.Local(name)


def test_a_link_is_removed_with_its_own_cluster_and_never_with_another() -> None:
    assert network.is_of("mine", '[{"ifname": "cp-1", "ifalias": "cluster mine"}]')
    assert network.is_of("mine", '[{"ifname": "cp-1"}]'), "its maker was stopped before it named it"
    assert not network.is_of("mine", '[{"ifname": "cp-1", "ifalias": "cluster other"}]')


def test_a_cluster_whose_record_was_cut_short_by_a_full_disk_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cgroups, "remove", lambda _: None)
    cluster = backend.Local("cut-short")
    cluster.folder.mkdir(parents=True)
    (cluster.folder / "cluster.json").write_text("")
    cluster.down()
    assert not cluster.folder.exists()


def test_a_cluster_is_taken_down_by_one_while_another_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def is_held() -> bool:
        with (tmp_path / "carpool" / "e2e" / "clusters.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    meanwhile = []
    monkeypatch.setattr(cgroups, "remove", lambda _: meanwhile.append(is_held()))
    backend.Local("awaited").down()
    assert meanwhile == [True]
    assert not is_held()


def test_a_cluster_whose_kubeconfig_is_just_being_written_is_not_up_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = binaries.cache_folder() / "clusters" / "early"
    folder.mkdir(parents=True)
    first_process = [*backend.SHELL, "python", "-m", "e2e.cluster.local.supervisor", str(folder)]
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "cmdline").write_text("\0".join([*first_process, ""]))
    cluster = backend.Local("early", proc=tmp_path / "proc")
    cluster.kubeconfig.write_text("")
    assert not cluster.is_up()


def test_a_machine_that_cannot_host_a_cluster_says_why_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(requirements, "missing", lambda: ["you are not root: use sudo"])
    cluster = backend.Local("never-made")
    with pytest.raises(binaries.Unavailable, match="you are not root: use sudo"):
        cluster.up()
    assert not cluster.folder.exists()
