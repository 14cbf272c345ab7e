"""Other people's programs: how they are fetched and built, with a `go` that writes down what it is asked."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from e2e.cluster import binaries

MODULES_SOURCE = "module-source"


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file with what `go` was asked, a line for each time; it is first on PATH and builds without compiling."""
    asked = tmp_path / "asked"
    source = tmp_path / MODULES_SOURCE
    source.mkdir()
    script = (
        "#!/bin/sh\n"
        '[ "$1" = env ] && { echo go1.26.0; exit; }\n'
        f'echo "$PWD CGO=$CGO_ENABLED $*" >> {asked}\n'
        f'[ "$1" = mod ] && {{ echo \'{{"Dir": "{source}"}}\'; exit; }}\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'echo "built $3" > "$2"\n'
    )
    install(tmp_path, monkeypatch, script)
    return asked


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "go").write_text(script)
    (bin_folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def test_a_program_is_built_static_in_its_own_modules_folder(go: Path, tmp_path: Path) -> None:
    built = binaries.provide("kserve-agent")
    _, asked = go.read_text().splitlines()
    assert asked.startswith(f"{tmp_path / MODULES_SOURCE} CGO=0 build ")
    assert built.read_text() == "built ./cmd/agent\n"


def test_the_module_is_asked_for_in_the_version_of_the_table(go: Path) -> None:
    binaries.provide("hey")
    assert "mod download -json github.com/rakyll/hey@v0.1.4" in go.read_text()


def test_a_program_is_built_once(go: Path) -> None:
    first = binaries.provide("hey")
    asked = go.read_text()
    assert binaries.provide("hey") == first
    assert go.read_text() == asked


def test_an_executable_is_named_with_its_version(go: Path) -> None:
    assert binaries.provide("kserve-agent").name == f"kserve-agent-{binaries.KSERVE_VERSION}"


def traefik_source(folder: Path) -> Path:
    """What counts of it, read-only as in Go's cache."""
    acme, ecs = folder / "pkg" / "provider" / "acme", folder / "pkg" / "provider" / "ecs"
    for package in (acme, ecs):
        package.mkdir(parents=True)
    (acme / "provider.go").write_text(f'package acme\n\nimport "{binaries.DNS_PROVIDERS}"\n')
    (ecs / "config.go").write_text('package ecs\n\nimport "github.com/aws/aws-sdk-go-v2/aws"\n')
    for each in (ecs / "config.go", ecs, acme):
        each.chmod(0o555)
    return folder


def test_traefik_is_built_without_the_software_of_clouds(go: Path, tmp_path: Path) -> None:
    copy = binaries.without_clouds(traefik_source(tmp_path / "traefik"), tmp_path / "copy")
    written = {str(file.relative_to(copy)): file.read_text() for file in copy.rglob("*.go")}
    assert sorted(written) == [f"pkg/provider/{name}" for name in ("acme/dns/dns.go", "acme/provider.go", "ecs/ecs.go")]
    assert "traefik/v3/pkg/provider/acme/dns" in written["pkg/provider/acme/provider.go"]
    assert not any(cloud in text for text in written.values() for cloud in ("aws", binaries.DNS_PROVIDERS))

    traefik_source(tmp_path / MODULES_SOURCE)
    assert binaries.provide("traefik").name == "traefik-v3.5.3"
    assert f"{tmp_path / MODULES_SOURCE} " not in go.read_text()


def test_another_traefik_that_keeps_its_dns_providers_elsewhere_is_told(tmp_path: Path) -> None:
    source = traefik_source(tmp_path / "traefik")
    (source / "pkg" / "provider" / "acme" / "provider.go").write_text("package acme\n")
    with pytest.raises(binaries.BuildFailed, match="keeps its DNS providers elsewhere"):
        binaries.without_clouds(source, tmp_path / "copy")


def test_pause_is_built_from_our_own_source(go: Path) -> None:
    assert binaries.provide("pause").name.startswith("pause-")
    (asked,) = go.read_text().splitlines()
    assert asked.startswith(f"{binaries.SOURCE / 'pause'} ")


def test_a_name_that_is_not_in_the_table_is_an_error(go: Path) -> None:
    with pytest.raises(KeyError, match="nginx"):
        binaries.provide("nginx")


def test_a_build_that_fails_shows_what_the_compiler_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = f'echo \'{{"Dir": "{tmp_path}"}}\''
    says = f'case "$1" in env) echo go1.26.0;; mod) {source};; *) echo no space left; exit 1;; esac'
    install(tmp_path, monkeypatch, f"#!/bin/sh\n{says}\n")
    with pytest.raises(binaries.BuildFailed, match="no space left"):
        binaries.provide("hey")
    assert [each.name for each in binaries.folder().iterdir() if not each.name.endswith(".lock")] == []


def test_a_module_that_cannot_be_had_is_told_with_the_proxys_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    says = 'case "$1" in env) echo go1.26.0;; *) echo \'{"Error": "410 Gone"}\'; exit 1;; esac'
    install(tmp_path, monkeypatch, f"#!/bin/sh\n{says}\n")
    with pytest.raises(binaries.Unavailable, match=r"hey@v0\.1\.4.*410 Gone"):
        binaries.provide("hey")


@pytest.mark.parametrize("name", binaries.PROGRAMS)
def test_every_program_of_others_has_one_fixed_version_and_every_one_of_ours_a_source(name: str) -> None:
    program = binaries.PROGRAMS[name]
    assert program.package == "." or program.package.startswith("./")
    if program.module:
        assert re.fullmatch(r"v\d+\.\d+\.\d+", program.version)
    else:
        folder = binaries.SOURCE / (program.package if name in binaries.OF_KUBERNETES else name)
        assert (folder / "main.go").is_file()


def test_a_link_is_made_anew_when_its_target_changes(tmp_path: Path) -> None:
    for version in ("hey-v1", "hey-v2"):
        binaries.link(tmp_path / "hey", tmp_path / version)
        assert (tmp_path / "hey").readlink() == tmp_path / version
    assert [each.name for each in tmp_path.iterdir()] == ["hey"]


def test_a_link_is_never_made_to_itself(tmp_path: Path) -> None:
    binaries.link(tmp_path / "kubectl", tmp_path / "kubectl-v1")
    binaries.link(tmp_path / "kubectl", tmp_path / "kubectl")
    assert (tmp_path / "kubectl").readlink() == tmp_path / "kubectl-v1"
