"""What a machine needs to host a cluster: all that is missing is named at once, and what the first time costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from e2e.cluster import __main__, binaries, engines, node_image, product_images, requirements
from tests.e2e import fakes

pytestmark = pytest.mark.usefixtures("kind_cache")


@pytest.fixture(autouse=True)
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, with a Go that is new enough."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "go").write_text("#!/bin/sh\necho go1.26.0\n")
    (programs / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return programs / "go"


def missing(machine: fakes.Machine, here: engines.Machine = fakes.ORDINARY, trial: str = "") -> list[str]:
    return requirements.missing(machine, lambda: here, lambda _: trial)


def test_nothing_is_missing_where_an_engine_answers_and_can_run_a_node() -> None:
    assert missing(fakes.Machine("docker")) == []


def test_an_engine_that_cannot_run_a_node_is_told_in_its_words() -> None:
    assert missing(fakes.Machine("docker"), trial="no cgroups") == ["docker cannot run a node: no cgroups"]


def test_all_packages_are_asked_for_at_once_those_of_the_images_too() -> None:
    lacks = dataclasses.replace(fakes.ORDINARY, helpers=frozenset({"netavark"}), unified=False)
    assert missing(fakes.Machine("podman"), lacks) == [
        "podman lacks aardvark-dns, iptables, runc",
        "packages of Debian for all of it, the images too: apt-get install"
        " aardvark-dns buildah iptables mmdebstrap runc",
    ]


def test_what_only_the_images_need_is_a_package_to_install_and_no_obstacle() -> None:
    assert missing(fakes.Machine("docker")) == []
    assert requirements.missing_packages(fakes.Machine("docker")) == sorted(product_images.PROGRAMS)


def test_without_go_the_reason_says_what_to_install(go: Path) -> None:
    go.unlink()
    (reason, _) = missing(fakes.Machine("docker"))
    assert "no `go` on PATH" in reason


def test_the_command_tells_a_reason_on_each_line_with_a_status_and_the_packages_alone() -> None:
    asked = CliRunner().invoke(__main__.main, ["requirements"])
    packages = CliRunner().invoke(__main__.main, ["requirements", "--packages"])
    assert asked.exit_code == 1
    assert [line.partition(";")[0] for line in asked.output.splitlines()] == [
        "neither docker nor podman answers, and kind needs one",
        f"packages of Debian for all of it, the images too: apt-get install {packages.output.strip()}",
    ]
    assert packages.exit_code == 0
    assert set(packages.output.split()) == {*engines.PACKAGES, *product_images.PROGRAMS}


def test_the_cost_names_what_is_not_built_yet_and_the_sum_of_its_minutes() -> None:
    said = requirements.cost()
    assert "kubernetes, kubeadm, coredns" in said
    whole = node_image.MINUTES + sum(binaries.PROGRAMS[name].minutes for name in requirements.FIRST)
    assert f"up to {whole:.0f} minutes" in said
    binaries.path_of(binaries.KUBERNETES).touch()
    assert "kubernetes" not in requirements.cost()
    for name in requirements.FIRST:
        binaries.path_of(name).touch()
    assert "for nodes" in requirements.cost()
    node_image.archive().touch()
    assert requirements.cost() == ""
