"""What has to pass before anything is published, and what is tried every night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = Path(__file__).parents[2] / ".github" / "workflows"


def jobs(name: str) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())["jobs"])


def needed(among: dict[str, dict[str, Any]], job: str) -> set[str]:
    """The jobs without whose success this one does not run."""
    direct = among[job].get("needs", [])
    direct = [direct] if isinstance(direct, str) else direct
    return {*direct, *(each for name in direct for each in needed(among, name))}


def runs(job: dict[str, Any], command: str) -> bool:
    """Whether the job fails if this command fails, or skips anything."""
    steps = [step for step in job["steps"] if command in step.get("run", "")]
    may_fail = job.get("continue-on-error") or any(step.get("continue-on-error") or step.get("if") for step in steps)
    return bool(steps) and not may_fail and "if" not in job


@pytest.mark.parametrize("job", ["publish", "package-index"])
@pytest.mark.parametrize("command", ["make attack", "make lint type test", ".ci/release.py check"])
def test_nothing_is_published_that_has_not_passed(job, command):
    release = jobs("release")
    assert any(runs(release[name], command) for name in needed(release, job))
    assert "if" not in release[job]  # a condition such as always() would run it all the same


@pytest.mark.parametrize("workflow", ["nightly", "release"])
def test_attacks_are_tried_without_leaving_any_out(workflow):
    attacking = [job for job in jobs(workflow).values() if runs(job, "make attack")]
    assert attacking
    for job in attacking:
        assert job["env"]["CARPOOL_E2E_NO_SKIPS"] == "1"
        assert not any(flag in step.get("run", "") for step in job["steps"] for flag in ("--only", "--once"))
