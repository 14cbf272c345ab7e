"""The engine for kind: found where it works, given what it lacks by environment, and explained where it cannot work."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from e2e.cluster import engines, processes
from tests.e2e import fakes

# A container of an old machine without systemd, whose root may not raise limits.
BARE = dataclasses.replace(
    fakes.ORDINARY, systemd=False, unified=False, may_raise_limits=False, files=20_000, processes=30_000
)


pytestmark = pytest.mark.usefixtures("kind_cache")


@pytest.mark.parametrize(
    ("tools", "wanted", "found"),
    [
        (("docker", "podman"), "", "docker"),
        (("podman",), "", "podman"),
        (("none",), "", ""),
        (("docker", "podman"), "podman", "podman"),
        (("docker",), "podman", ""),
    ],
)
def test_the_engine_is_one_that_answers(
    tools: tuple[str, ...], wanted: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engines.PROVIDER, wanted)
    engine = engines.find(fakes.Machine(*tools), lambda: fakes.ORDINARY)
    assert (engine.name if engine else "") == found


def test_podman_that_fits_its_machine_is_left_as_it_is(kind_cache: Path) -> None:
    engine = engines.find(fakes.Machine("podman"), lambda: fakes.ORDINARY)
    assert engine == ("podman", {engines.PROVIDER: "podman"})
    assert list(kind_cache.iterdir()) == []


def test_podman_gets_a_configuration_of_ours_where_its_own_does_not_fit() -> None:
    machine = fakes.Machine("podman")
    machine.facts["networkBackend"] = "cni"
    engine = engines.find(machine, lambda: BARE)
    assert engine is not None
    assert tomllib.loads(Path(engine.environment[engines.CONFIGURATION]).read_text()) == {
        "containers": {"default_ulimits": ["nofile=20000:20000", "nproc=30000:30000"]},
        "engine": {"cgroup_manager": "cgroupfs", "events_logger": "file", "runtime": "runc"},
        "network": {"network_backend": "netavark"},
    }


def test_what_podman_has_of_its_own_and_fits_is_in_that_configuration_too() -> None:
    machine = fakes.Machine("podman")
    engine = engines.find(machine, lambda: dataclasses.replace(fakes.ORDINARY, systemd=False))
    assert engine is not None
    written = tomllib.loads(Path(engine.environment[engines.CONFIGURATION]).read_text())
    assert written["engine"] == {"cgroup_manager": "cgroupfs", "events_logger": "file", "runtime": "crun"}


def test_a_configuration_that_somebody_named_is_not_replaced_but_its_missing_lines_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(engines.CONFIGURATION, "/mine.conf")
    assert engines.find(fakes.Machine("podman"), lambda: BARE) is None
    assert engines.lacking(fakes.Machine("podman"), lambda: BARE) == [
        f"in /mine.conf, which CONTAINERS_CONF names, [engine] lacks {line} ({why}); add it, or unset CONTAINERS_CONF"
        for line, why in (
            ('cgroup_manager = "cgroupfs"', "no systemd runs here that could make control groups"),
            ('events_logger = "file"', "no journal runs here"),
            ('runtime = "runc"', "crun refuses control groups of version 1 beside version 2"),
        )
    ]


def test_packages_and_the_folder_that_podman_lacks_are_named() -> None:
    lacks = dataclasses.replace(BARE, helpers=frozenset({"netavark"}), modules=False)
    machine = fakes.Machine("podman")
    assert engines.find(machine, lambda: lacks) is None
    assert engines.lacking(machine, lambda: lacks) == [
        "podman lacks aardvark-dns, iptables, runc",
        "there is no folder /lib/modules, which kind shows to its nodes (it may be empty)",
    ]
    assert engines.missing_packages(machine, lambda: lacks) == ["aardvark-dns", "iptables", "runc"]


def test_either_program_for_rules_of_networks_will_do() -> None:
    for name in engines.FIREWALLS:
        helpers = frozenset({"aardvark-dns", "netavark", "runc", name})
        assert engines.packages_for(dataclasses.replace(BARE, helpers=helpers)) == []


def test_the_folder_that_kind_shows_to_nodes_is_made_where_that_is_allowed(tmp_path: Path) -> None:
    assert engines.provide_modules(tmp_path / "modules")
    assert (tmp_path / "modules").is_dir()
    assert not engines.provide_modules(tmp_path / "none" / "modules")


def test_without_an_engine_all_packages_of_podman_are_missing_and_with_docker_none() -> None:
    assert engines.missing_packages(fakes.Machine("none")) == list(engines.PACKAGES)
    assert engines.missing_packages(fakes.Machine("docker")) == []


def test_a_trial_starts_a_container_as_kind_does_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.archives, "pause_archive", lambda: Path("/pause.tar"))
    machine = fakes.Machine("docker")
    assert engines.failing_trial(engines.Engine("docker", {}), machine) == ""
    assert [line.split()[1] for line in machine.asked] == ["load", "run", "rm", "rmi"]
    assert "--privileged" in machine.asked[1]
    assert "--volume=/lib/modules:/lib/modules:ro" in machine.asked[1]


def test_a_trial_that_fails_tells_the_command_and_the_engines_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.archives, "pause_archive", lambda: Path("/pause.tar"))
    machine = fakes.Machine("docker")
    machine.broken = ("run",)
    words = engines.failing_trial(engines.Engine("docker", {}), machine)
    assert words.startswith("`docker run --detach --privileged")
    assert words.endswith("failed: ERROR: no run today")
    assert [line.split()[1] for line in machine.asked] == ["load", "run", "rm", "rmi"]


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    here = engines.look(modules=tmp_path / "modules")
    assert here.files > 0
    assert here.processes > 0
    assert engines.podman_facts(lambda *_, **__: processes.Done(0, "no JSON")) is None
