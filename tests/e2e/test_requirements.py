"""What a machine needs to host a local cluster: each thing that is missing is named with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from e2e.cluster import __main__, processes
from e2e.cluster.kind import engines, node_image
from e2e.cluster.local import requirements


def installed(*lacking: str) -> requirements.Which:
    """A machine that has every program but these."""
    return lambda name: None if name in lacking else f"/usr/bin/{name}"


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    for name in requirements.PLUGIN_PROGRAMS:
        (tmp_path / name).touch()
    return tmp_path


class Shell:
    """Runs nothing (`commands.Run`): remembers the scripts, and fails those that contain a word."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.scripts: list[str] = []

    def __call__(self, *words: str, **_: object) -> processes.Done:
        assert words[:-3] == requirements.NAMESPACES
        assert words[-3:-1] == ("sh", "-ec")
        self.scripts.append(words[-1])
        fails = any(word in words[-1] for word in self.failing)
        return processes.Done(1, errors="Operation\nnot permitted") if fails else processes.Done(0)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def test_nothing_is_missing_where_all_programs_are_there(plugins: Path) -> None:
    assert requirements.missing_programs(installed(), plugins) == []
    assert requirements.missing_packages(installed(), plugins) == []


def test_programs_are_named_with_the_packages_that_bring_them(plugins: Path) -> None:
    (plugins / "ptp").unlink()
    assert requirements.missing_programs(installed("ctr", "containerd", "nft"), plugins) == [
        f"there is no containerd, ctr, nft, {plugins}/ptp; "
        "Debian: apt-get install containerd containernetworking-plugins nftables"
    ]


def test_all_packages_are_asked_for_at_once_those_of_the_images_too(plugins: Path) -> None:
    assert requirements.missing_programs(installed("nft", "buildah", "mmdebstrap"), plugins) == [
        "there is no nft; Debian: apt-get install buildah mmdebstrap nftables"
    ]


def test_what_only_the_images_need_is_a_package_to_install_and_no_obstacle(plugins: Path) -> None:
    lacking = installed("buildah", "mmdebstrap")
    assert requirements.missing_programs(lacking, plugins) == []
    assert requirements.missing_packages(lacking, plugins) == ["buildah", "mmdebstrap"]


def test_a_machine_that_allows_everything_has_no_failing_probe() -> None:
    shell = Shell()
    assert requirements.failing_probes(shell) == []
    assert len(shell.scripts) == len(requirements.PROBES)


def test_without_namespaces_nothing_else_is_tried() -> None:
    shell = Shell("true")
    assert requirements.failing_probes(shell) == [
        "cannot make network, mount and process namespaces (Operation not permitted); "
        "in a container, start that one with --privileged"
    ]
    assert shell.scripts == ["true"]


def test_everything_that_fails_is_named_with_its_way_out(cache: Path) -> None:
    bridges, overlays = requirements.failing_probes(Shell("bridge", "overlay"))
    assert bridges.endswith("(Operation not permitted); load the kernel modules bridge and veth")
    assert overlays.startswith(f"cannot mount overlays on {cache}")
    assert "XDG_CACHE_HOME" in overlays


def test_probes_leave_no_folder(cache: Path) -> None:
    requirements.failing_probes(Shell("overlay"))
    assert list((cache / "carpool" / "e2e").iterdir()) == []


def test_control_groups_of_version_1_are_enough_with_the_controllers_that_limit_pods(tmp_path: Path) -> None:
    for controllers in ("cpu,cpuacct", "memory", "pids"):
        (tmp_path / controllers).mkdir()
        (tmp_path / controllers / "cgroup.procs").touch()
    assert requirements.unusable_cgroups(tmp_path) == []
    (tmp_path / "pids" / "cgroup.procs").unlink()
    assert requirements.unusable_cgroups(tmp_path) == [
        f"control groups in {tmp_path} cannot limit pids; see {tmp_path}/cgroup.subtree_control"
    ]


def test_a_machine_without_control_groups_is_told_so(tmp_path: Path) -> None:
    nowhere = tmp_path / "cgroup"
    assert requirements.unusable_cgroups(nowhere) == [
        f"cannot make control groups in {nowhere} (No such file or directory); "
        "in a container, start that one with --privileged --cgroupns=private"
    ]


def test_with_kind_another_list_is_asked_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_CLUSTER_BACKEND", "kind")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(engines.PROVIDER, raising=False)
    monkeypatch.setattr(node_image, "can_be_pulled", lambda: False)
    asked = CliRunner().invoke(__main__.main, ["requirements"])
    packages = CliRunner().invoke(__main__.main, ["requirements", "--packages"])
    assert asked.exit_code == 1
    assert [line.partition(";")[0] for line in asked.output.splitlines()] == [
        "there is no kind",
        "neither docker nor podman answers, and kind needs one",
    ]
    assert set(packages.output.split()) == {*engines.PACKAGES, "buildah", "mmdebstrap"}


def test_a_machine_that_lacks_programs_gets_a_line_and_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_CLUSTER_BACKEND", "local")
    monkeypatch.setenv("PATH", "")
    asked = CliRunner().invoke(__main__.main, ["requirements"])
    packages = CliRunner().invoke(__main__.main, ["requirements", "--packages"])
    assert asked.exit_code == 1
    assert asked.output.startswith("there is no containerd, ctr, runc, ip, ")
    assert packages.exit_code == 0
    assert {"containerd", "buildah"} <= set(packages.output.split())
