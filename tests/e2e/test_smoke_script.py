"""`.ci/smoke` tells a machine that cannot, a failure and a hang apart, and leaves no cluster behind."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "smoke"
STEPS = ["cluster", "cluster-images", "e2e-smoke"]


class Stage:
    """Stand-ins for make and for the virtual environment's Python, which note what they are asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.notes = folder / "notes"
        self.make("exit 0")
        self.python("exit 0")

    def make(self, body: str) -> None:
        """What `make WORD` does: a script that has the word as $word."""
        self._script("programs/make", f'word="${{@: -1}}"; echo "$word" >>"{self.notes}"; {body}')

    def python(self, body: str, packages: str = "", cost: str = "") -> None:
        """What the check of the machine does, the packages that it wants installed, and what has to be built first."""
        told = "".join(
            f'[[ "$*" == *{option} ]] && {{ echo "{answer}"; exit 0; }}; '
            for option, answer in {"--packages": packages, "--cost": cost}.items()
        )
        self._script("venv/bin/python", told + body)

    def apt_get(self, body: str, user: int = 0) -> None:
        """What `apt-get` does, for a user with that number."""
        self._script("programs/apt-get", body)
        self._script("programs/id", f"echo {user}")

    def run(self, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self._folder}/programs:{os.environ['PATH']}", "VENV": f"{self._folder}/venv"}
        return subprocess.run(
            [SCRIPT], capture_output=True, text=True, env={**os.environ, **environment, **settings}, timeout=30
        )

    @property
    def made(self) -> list[str]:
        """The words that make was called with, after the virtual environment."""
        return self.notes.read_text().splitlines()[1:]

    def _script(self, name: str, body: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_it_makes_a_cluster_and_images_runs_the_tests_and_removes_the_cluster(stage: Stage) -> None:
    done = stage.run()
    assert done.returncode == 0
    assert stage.made == [*STEPS, "cluster-down"]


def test_the_cluster_is_one_of_its_own_whatever_somebody_works_with(stage: Stage) -> None:
    stage.make('echo "cluster=$CARPOOL_CLUSTER"')
    names = [set(re.findall("cluster=(.*)", stage.run(CARPOOL_CLUSTER=name).stdout)) for name in ("", "mine")]
    assert all(len(each) == 1 for each in names)
    assert names[0].isdisjoint(names[1] | {"mine"})


def test_a_check_of_the_machine_that_breaks_is_no_reason_to_pass(stage: Stage) -> None:
    stage.python("echo Traceback >&2; exit 1")
    done = stage.run()
    assert done.returncode == 1
    assert "gave no answer" in done.stdout
    assert stage.made == []


def test_a_machine_that_cannot_host_a_cluster_is_told_why_on_one_line_and_passes(stage: Stage) -> None:
    stage.python("echo no root; echo no namespaces; exit 1")
    done = stage.run()
    assert done.returncode == 0
    assert done.stdout == "smoke: skipped, since this machine cannot host a cluster: no root; no namespaces\n"
    assert stage.made == []


def test_where_kubernetes_would_be_built_first_it_passes_at_once_unless_nothing_may_be_skipped(stage: Stage) -> None:
    stage.python("exit 0", packages="podman", cost="first it makes, once: kubernetes; up to 21 minutes")
    stage.apt_get("echo called >&2; exit 1")
    done = stage.run()
    assert done.returncode == 0
    assert done.stdout.startswith("smoke: skipped, since no cluster was made here before: first it makes, once: kub")
    assert stage.made == []
    assert stage.run(CARPOOL_E2E_NO_SKIPS="1").returncode == 0
    assert stage.made[-4:] == [*STEPS, "cluster-down"]


def test_it_fails_there_where_nothing_may_be_skipped(stage: Stage) -> None:
    stage.python("echo no root; exit 1")
    done = stage.run(CARPOOL_E2E_NO_SKIPS="1")
    assert done.returncode == 1
    assert "this machine cannot host a cluster, and CARPOOL_E2E_NO_SKIPS is set: no root" in done.stdout
    assert stage.run(CARPOOL_E2E_NO_SKIPS="0").returncode == 0


@pytest.mark.parametrize("failing", STEPS)
def test_a_failure_ends_it_with_status_1_and_names_the_step(stage: Stage, failing: str) -> None:
    stage.make(f'[ "$word" != {failing} ]')
    done = stage.run()
    assert done.returncode == 1
    assert f"smoke: failed: `make --silent {failing}`" in done.stdout
    assert stage.made == [*STEPS[: STEPS.index(failing) + 1], "cluster-down"]


def test_a_hang_ends_it_with_a_status_of_its_own(stage: Stage) -> None:
    stage.make('[ "$word" != e2e-smoke ] || sleep 20')
    done = stage.run(SMOKE_SECONDS="2")
    assert done.returncode == 124
    assert "stopped in `make --silent e2e-smoke`: the 2 s for all of it were up" in done.stdout
    assert stage.made == [*STEPS, "cluster-down"]


def test_missing_packages_are_installed_by_root_without_a_question(stage: Stage) -> None:
    stage.python("exit 0", packages="podman runc")
    stage.apt_get(f'echo "$DEBIAN_FRONTEND: $*" >>"{stage.notes}"')
    done = stage.run()
    assert done.returncode == 0
    assert stage.made[:2] == [
        "noninteractive: update",
        "noninteractive: install --yes --no-install-recommends podman runc",
    ]


def test_nothing_is_installed_where_nothing_is_missing_or_the_user_is_not_root(stage: Stage) -> None:
    stage.apt_get("echo called >&2; exit 1")
    assert "apt-get" not in stage.run().stdout
    stage.python("exit 0", packages="podman")
    stage.apt_get("echo called >&2; exit 1", user=1000)
    assert "apt-get" not in stage.run().stdout


def test_packages_that_cannot_be_had_are_told_and_the_machine_is_asked_all_the_same(stage: Stage) -> None:
    stage.python("echo no engine answers; exit 1", packages="podman")
    stage.apt_get("echo E: no network >&2; exit 100")
    done = stage.run()
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "smoke: installing podman",
        "smoke: apt-get failed; its last words:",
        "E: no network",
        "smoke: skipped, since this machine cannot host a cluster: no engine answers",
    ]
