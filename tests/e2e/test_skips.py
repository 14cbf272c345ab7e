"""Under `CARPOOL_E2E_NO_SKIPS` a run in which something was skipped is no success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

SAMPLES = """
import pytest

@pytest.fixture
def server():
    pytest.skip("no server here")

def test_runs(): pass
def test_lacks_a_server(server): pass
def test_skips_itself(): pytest.skip("not today")

@pytest.mark.skip(reason="switched off")
def test_is_switched_off(): pass

@pytest.mark.xfail(reason="a known fault of another project's", strict=True)
def test_fails_as_known(): assert False

@pytest.mark.may_skip("some parameters are no questions here")
def test_may_skip_itself(): pytest.skip("no such pod")

@pytest.mark.may_skip("some parameters are no questions here")
def test_may_skip_itself_but_lacks_a_server(server): pass
"""
MODULE = "import pytest\npytest.importorskip('no_such_package')\n"


@pytest.fixture
def outcomes(tmp_path: Path):
    """Runs the samples with the variable set so; whether the run counts as passed, and each test's outcome."""
    (tmp_path / "test_samples.py").write_text(SAMPLES)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "test_module.py").write_text(MODULE)

    def run(value: str | None, part: str = "test_samples.py") -> tuple[bool, dict[str, str], str]:
        environment = {key: value for key, value in os.environ.items() if key != "CARPOOL_E2E_NO_SKIPS"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the others only take time
        if value is not None:
            environment["CARPOOL_E2E_NO_SKIPS"] = value
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "e2e.skips", "-p", "no:cacheprovider", "-c", os.devnull, "-v",
             "-rfs", "--rootdir", str(tmp_path), str(tmp_path / part)],
            capture_output=True, text=True, cwd=ROOT, env=environment, timeout=50, check=False,
        )  # fmt: skip
        lines = [line.split("::test_")[1].split() for line in done.stdout.splitlines() if "%]" in line]
        return done.returncode == 0, {line[0]: line[1] for line in lines}, done.stdout

    return run


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_the_variable_what_cannot_run_is_skipped(outcomes, value):
    is_passed, told, _ = outcomes(value)
    assert is_passed
    assert told == {
        "runs": "PASSED", "lacks_a_server": "SKIPPED", "skips_itself": "SKIPPED", "is_switched_off": "SKIPPED",
        "fails_as_known": "XFAIL", "may_skip_itself": "SKIPPED", "may_skip_itself_but_lacks_a_server": "SKIPPED",
    }  # fmt: skip
    assert outcomes(value, "modules")[0] is False  # nothing was collected: no success by itself


def test_with_it_a_skip_is_a_failure_with_its_reason_unless_the_test_is_marked(outcomes):
    is_passed, told, said = outcomes("1")
    assert not is_passed
    assert told == {
        "runs": "PASSED", "lacks_a_server": "ERROR", "skips_itself": "FAILED", "is_switched_off": "ERROR",
        "fails_as_known": "XFAIL", "may_skip_itself": "SKIPPED", "may_skip_itself_but_lacks_a_server": "ERROR",
    }  # fmt: skip
    assert "no server here" in said
    assert "CARPOOL_E2E_NO_SKIPS is set: nothing may be skipped here" in said


def test_with_it_a_module_that_cannot_be_imported_is_a_failure_too(outcomes):
    is_passed, _, said = outcomes("1", "modules")
    assert not is_passed
    assert "no_such_package" in said


def test_all_end_to_end_tests_of_the_workflow_are_run_with_it():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [(job, step) for job in workflow["jobs"].values() for step in job["steps"]]
    found = [step.get("run", "") for _, step in steps if "e2e" in step.get("run", "") or "smoke" in step.get("run", "")]
    assert found == [".ci/smoke", "make e2e-triton", "make e2e-lists", "make e2e-page"]
    for job, step in steps:
        if step.get("run") in found:
            assert (job.get("env", {}) | step.get("env", {}))["CARPOOL_E2E_NO_SKIPS"] == "1"


@pytest.mark.parametrize("folder", [".", "triton", "lists", "live/journey"])
def test_the_end_to_end_tests_use_it_wherever_they_are_begun(folder):
    asked = [sys.executable, "-m", "pytest", "--markers", "-p", "no:cacheprovider", f"e2e/{folder}"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, timeout=50, check=True)
    assert "@pytest.mark.may_skip(why)" in done.stdout
