"""The image of kind's nodes: which one is taken, and what is in one that is made here."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import archives, binaries, engines, node_image
from tests.e2e import fakes

DOCKER = engines.Engine("docker", {})
PUBLISHED = node_image.published()
# The parts of kind's own that are changed.
CONTAINERD = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  # restrict_oom_score_adj needs to be true
  restrict_oom_score_adj = false
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def machine() -> fakes.Machine:
    return fakes.Machine("docker")


def provided(machine: fakes.Machine) -> str:
    return node_image.provide(DOCKER, machine)


# --- Which one -----------------------------------------------------------------------------------------------------


def test_the_published_image_is_taken_where_the_engine_has_it(machine: fakes.Machine) -> None:
    assert provided(machine) == PUBLISHED
    assert not [line for line in machine.asked if "pull" in line or "load" in line]


def test_it_is_pulled_where_nothing_is_here_yet(machine: fakes.Machine) -> None:
    machine.images = set()
    assert provided(machine) == PUBLISHED
    assert machine.asked[-1] == f"docker pull --quiet {node_image.by_digest(PUBLISHED)}"


def test_the_name_that_an_engine_is_asked_for_is_one_that_podman_takes_too() -> None:
    asked = node_image.by_digest(PUBLISHED)
    assert asked.startswith("docker.io/kindest/node@sha256:"), "no short name, and not both a tag and a digest"
    assert asked.rpartition("@")[2] == PUBLISHED.rpartition("@")[2]


def test_one_is_made_and_loaded_where_it_cannot_be_pulled_and_older_ones_go(
    machine: fakes.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.broken = ("pull",)
    monkeypatch.setattr(node_image, "make", lambda: node_image.archive().touch())
    machine.images = {f"{node_image.NAME}:v1.33.0-old", "localhost/somebody-elses:v1"}
    assert provided(machine) == f"{node_image.NAME}:{node_image.state()}"
    assert machine.asked[-3:] == [
        f"docker load --input {node_image.archive()}",
        "docker images --format {{.Repository}}:{{.Tag}}",
        f"docker rmi {node_image.NAME}:v1.33.0-old",
    ]


def test_one_that_was_made_is_taken_without_another_try_to_pull(machine: fakes.Machine) -> None:
    machine.images = set()
    node_image.archive().touch()
    assert provided(machine).startswith(node_image.NAME)
    assert not [line for line in machine.asked if "pull" in line]


def test_an_archive_that_does_not_load_is_a_failure_with_the_engines_words(machine: fakes.Machine) -> None:
    machine.images, machine.broken = set(), ("load",)
    node_image.archive().touch()
    with pytest.raises(binaries.BuildFailed, match=r"docker does not load .*: ERROR: no load today"):
        provided(machine)


def test_without_mmdebstrap_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(binaries.Unavailable, match="apt-get install mmdebstrap"):
        node_image.make()


# --- What is in it -------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image of small stand-ins for Debian, kind's files and the programs; the folder with what its archive holds."""
    base = tmp_path / "kind" / "images" / "base" / "files"
    for name in ("usr/local/bin/entrypoint", "kind/bin/undo-mount-hacks.sh", "etc/systemd/system/kubelet.service"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(name)
    (base / "etc" / "containerd").mkdir()
    (base / "etc" / "containerd" / "config.toml").write_text(CONTAINERD)
    root = tmp_path / "root.tar"
    container = json.dumps({"process": {"rlimits": [{"type": "RLIMIT_NOFILE"}]}, "root": {}}).encode()
    files = [archives.File("./kind/container.json", container), archives.File("./kind/proxy/usr/sbin/iptables", b"")]
    archives.write_layer(files, root)
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    monkeypatch.setattr(node_image, "provide_root", lambda: root)
    monkeypatch.setattr(binaries, "fetch", lambda *_: tmp_path / "kind")
    monkeypatch.setattr(binaries, "provide", lambda _: program)
    monkeypatch.setattr(binaries, "tool", lambda _: program)
    names = [f"registry.k8s.io/{name}:v1.34.4" for name in node_image.KUBERNETES_COMPONENTS]
    wanted = [*names, "registry.k8s.io/coredns/coredns:v1.12.1", "registry.k8s.io/pause:3.10.1"]
    monkeypatch.setattr(node_image, "wanted_images", lambda: wanted)
    return unpacked(node_image.make(), tmp_path / "made")


def unpacked(archive: Path, folder: Path) -> Path:
    node_image.unpack(archive, "", folder)
    return folder


def layer(made: Path) -> dict[str, tarfile.TarInfo]:
    """The members of the last layer."""
    with tarfile.open(made / manifest(made)[0]["Layers"][-1]) as opened:
        return {each.name: each for each in opened}


def manifest(made: Path) -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = json.loads((made / "manifest.json").read_text())
    return found


def text(made: Path, name: str) -> str:
    with tarfile.open(made / manifest(made)[0]["Layers"][-1]) as opened:
        content = opened.extractfile(name)
        assert content is not None
        return content.read().decode()


def test_it_starts_as_kinds_own_image_does(made: Path) -> None:
    (image,) = manifest(made)
    config = json.loads((made / str(image["Config"])).read_text())["config"]
    assert config["Entrypoint"] == ["/usr/local/bin/entrypoint", "/sbin/init"]
    assert config["StopSignal"] == "SIGRTMIN+3"
    assert image["RepoTags"] == [f"{node_image.NAME}:{node_image.state()}"]


def test_programs_may_be_run_and_stand_where_kubeadm_and_the_units_look_for_them(made: Path) -> None:
    members = layer(made)
    for name in ("usr/local/bin/entrypoint", "kind/bin/undo-mount-hacks.sh", "kind/bin/pod-network.sh"):
        assert members[name].mode == 0o755
    assert members["usr/bin/kubelet"].linkname == "/usr/local/bin/cluster"
    assert {"usr/bin/kubeadm", "usr/bin/kubectl", "usr/local/bin/cluster"} <= set(members)
    assert members["etc/systemd/system/kubelet.service"].mode == 0o644


def test_every_unit_that_is_enabled_is_in_the_image_and_ours_are_all_enabled(made: Path) -> None:
    wants = "etc/systemd/system/multi-user.target.wants/"
    enabled = {name.removeprefix(wants) for name in layer(made) if name.startswith(wants)}
    ours = {file.name for file in (node_image.SOURCE / "files" / "etc" / "systemd" / "system").glob("*.service")}
    assert ours <= enabled == {f"{unit}.service" for unit in node_image.UNITS}


def test_containerd_is_told_of_the_network_and_may_not_be_able_to_lower_scores(made: Path) -> None:
    told = text(made, "etc/containerd/config.toml")
    assert "  restrict_oom_score_adj = true\n" in told
    assert 'conf_template = "/etc/cni/pods.conflist.template"' in told
    assert "etc/cni/pods.conflist.template" in layer(made)


def test_containers_have_no_limits_of_containerds_own(made: Path) -> None:
    assert json.loads(text(made, "etc/containerd/cri-base.json")) == {"process": {}, "root": {}}


def test_the_images_that_kubeadm_and_containerd_ask_for_are_in_it(made: Path, tmp_path: Path) -> None:
    node_image.unpack(made / manifest(made)[0]["Layers"][-1], "kind/images.tar", tmp_path / "inner")
    images = manifest(unpacked(tmp_path / "inner" / "kind" / "images.tar", tmp_path / "images"))
    tags = {tag for image in images for tag in image["RepoTags"]}
    assert tags == {*node_image.wanted_images(), "registry.k8s.io/pause:3.10"}
    (proxy,) = [image for image in images if "registry.k8s.io/kube-proxy:v1.34.4" in image["RepoTags"]]
    with tarfile.open(tmp_path / "images" / proxy["Layers"][-1]) as opened:
        assert "usr/sbin/iptables" in opened.getnames()


def test_another_containerd_configuration_of_kinds_is_an_error_and_no_broken_node() -> None:
    with pytest.raises(binaries.BuildFailed, match="configures containerd in another way"):
        node_image.adapted("version = 3\n")
    with pytest.raises(binaries.BuildFailed, match="no sandbox_image"):
        node_image.sandbox("version = 3\n")


def test_old_images_give_way_to_a_new_one(made: Path) -> None:
    node_image.archive().unlink()
    old = node_image.folder() / "node-v1.33.0-old.tar"
    old.touch()
    node_image.make()
    assert not old.exists()
    assert node_image.archive().exists()
