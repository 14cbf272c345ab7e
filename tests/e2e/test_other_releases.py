"""Control planes of other releases of Kubernetes: which one, what is compiled, and from which versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from e2e.cluster import binaries, control_plane, other_releases

THEIRS = """module k8s.io/kubernetes

go 1.26.0

require (
	go.etcd.io/etcd/server/v3 v3.6.8 // indirect
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/streaming => ./staging/src/k8s.io/streaming
)
"""
MAIN = (binaries.SOURCE / "main.go").read_text()


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that `go`, first on PATH, answers from: `source` is each module's, `built` what was given to build."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "go.mod").write_text(THEIRS)
    (tmp_path / "source" / "go.sum").write_text("sums\n")
    script = tmp_path / "bin" / "go"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = env ] && { echo go1.26.0; exit; }\n'
        f'echo "$*" >> {tmp_path}/asked\n'
        f'[ "$1" = mod ] && {{ echo {json.dumps(json.dumps({"Dir": str(tmp_path / "source")}))}; exit; }}\n'
        f"cp -r . {tmp_path}/built\n"
        'while [ "$1" != -o ]; do shift; done\n'
        'echo executable > "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(("asked", "version"), [("1.36.3", "v1.36.3"), ("v1.28.15", "v1.28.15")])
def test_the_environment_says_which_release(monkeypatch: pytest.MonkeyPatch, asked: str, version: str) -> None:
    monkeypatch.setenv(other_releases.VARIABLE, asked)
    assert other_releases.wanted() == version


@pytest.mark.parametrize("asked", [None, ""])
def test_without_it_the_release_is_that_of_go_mod(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    monkeypatch.delenv(other_releases.VARIABLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(other_releases.VARIABLE, asked)
    assert f"k8s.io/kubernetes {other_releases.wanted()}" in (binaries.SOURCE / "go.mod").read_text()


@pytest.mark.parametrize("asked", ["1.36", "latest", "2.0.0", "1.36.3-rc.1", "v1.36.3\n"])
def test_what_is_no_release_is_named(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(other_releases.VARIABLE, asked)
    with pytest.raises(ValueError, match=r"CARPOOL_KUBERNETES is .*; it takes a release of Kubernetes, such as 1"):
        other_releases.wanted()


def test_a_release_is_built_once_from_its_own_versions(go: Path) -> None:
    built = other_releases.provide("v1.36.3")
    assert built.read_text() == "executable\n"
    assert other_releases.provide("v1.36.3") == built
    fetched, compiled = (go / "asked").read_text().splitlines()
    assert fetched.endswith("k8s.io/kubernetes@v1.36.3")
    assert [each for each in ("gitVersion=v1.36.3", "gitMinor=36", " -mod=mod ") if each not in compiled] == []
    assert (go / "built" / "go.sum").read_text() == "sums\n"
    assert (go / "built" / "go.mod").read_text() == other_releases.go_mod(THEIRS, "v1.36.3")
    assert list((go / "cache" / "carpool" / "e2e").glob("tmp*")) == []


def test_two_releases_lie_side_by_side(go: Path) -> None:
    assert other_releases.provide("v1.36.3") != other_releases.provide("v1.28.15")


def test_libraries_that_kubernetes_develops_in_its_tree_are_of_the_same_release() -> None:
    made = other_releases.go_mod(THEIRS, "v1.36.3")
    assert made.startswith("module cluster\n")
    assert "\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/streaming => k8s.io/streaming v0.36.3\n" in made
    assert made.endswith("\nrequire k8s.io/kubernetes v1.36.3\n")
    assert "etcd/server/v3 v3.6.8" in made


@pytest.mark.parametrize("theirs", ["", "module k8s.io/kubernetes\n", THEIRS.replace("staging/src", "staging/go")])
def test_a_go_mod_of_another_form_is_an_error(theirs: str) -> None:
    with pytest.raises(binaries.BuildFailed, match=r"go\.mod of k8s\.io/kubernetes v1\.36\.3"):
        other_releases.go_mod(theirs, "v1.36.3")


def test_a_control_plane_without_nodes_is_what_is_compiled() -> None:
    main = other_releases.without_nodes(MAIN)
    for component in ("kube-apiserver", "kube-controller-manager", "etcd"):
        assert f'\t"{component}":' in main
    for left_out in ("kubelet", "kube-proxy", "scheduler", "context"):
        assert left_out not in main
    assert len(MAIN.splitlines()) - len(main.splitlines()) == 7


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("v1.33.6", {}),
        (
            "v1.34.4",
            {
                "feature-gates": "MutatingAdmissionPolicy=true",
                "runtime-config": "admissionregistration.k8s.io/v1beta1=true",
            },
        ),
        ("v1.36.3", {}),
    ],
)
def test_mutating_policies_are_switched_on_where_they_are_off(
    tmp_path: Path, version: str, flags: dict[str, str]
) -> None:
    plane = control_plane.ControlPlane(tmp_path / "cluster", tmp_path, version)
    given = plane._api_server("http://127.0.0.1:1").flags
    assert {key: given[key] for key in ("feature-gates", "runtime-config") if key in given} == flags


@pytest.mark.parametrize(
    ("version", "validating", "mutating"),
    [
        ("v1.28.15", False, ""),
        ("v1.30.14", True, ""),
        ("v1.35.4", True, "admissionregistration.k8s.io/v1beta1"),
        ("v1.36.3", True, "admissionregistration.k8s.io/v1"),
    ],
)
def test_what_a_release_serves_for_the_chart_is_known(
    tmp_path: Path, version: str, validating: bool, mutating: str
) -> None:
    plane = control_plane.ControlPlane(tmp_path / "cluster", tmp_path, version)
    assert (plane.validating_policies, plane.mutating_policies) == (validating, mutating)
