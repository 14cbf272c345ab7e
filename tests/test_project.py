"""Facts about the tree that its documents and its installers rely on."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import carpool
import carpool_injector
import carpool_sidecar

ROOT = Path(__file__).parent.parent
PARTS = ("sidecar", "injector", "predictor", "tests", "docs")
OTHERS = (
    ".ci/uv.txt",
    ".ci/compiled.txt",
    ".ci/wheels.txt",
    ".ci/workflows.txt",
    "tests/helm.txt",
    "benchmarks/demo.txt",
    "benchmarks/gpu/requirements.txt",
    "benchmarks/fuzz/requirements.txt",
    "e2e/page/requirements.txt",
)
REQUIREMENTS = [*OTHERS, *(f"{part}/requirements.txt" for part in PARTS)]
HEAVY = re.compile(r"(torch|transformers|triton|nvidia-.*|cuda-.*)$")
NOT_PLAIN = re.compile(r"(numpy|grpcio|tritonclient|hpack|orjson)$")


def pinned(file: str) -> dict[str, str]:
    """Package name to its pin with hashes, as written in a requirements file."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / file).read_text())
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", text)
    return {re.split(r"[^\w.-]", block)[0]: block for block in blocks if block.strip()}


def needs(part: str) -> set[str]:
    """The names of a distribution's direct dependencies, without its extras."""
    project = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]
    return {re.split(r"[^\w.-]", need)[0].replace(".", "-") for need in project["dependencies"]}


@pytest.mark.parametrize(
    "document",
    [
        "README.md", "CONTRIBUTING.md", "docs/development.md", "docs/install.md", "docs/speed.md",
        ".ci/run", ".github/workflows/ci.yml", ".github/workflows/nightly.yml",
        ".github/workflows/release.yml",
    ],
)  # fmt: skip
def test_every_make_word_that_is_written_down_exists(document: str) -> None:
    words = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    # In prose a command stands in backticks; in a listing or a script it opens the line, after a prompt or "run:".
    commands = re.findall(r"(?m)(?:`|^[ \t]*(?:- )?(?:\$ |run: )?)make((?: [a-z-]+)+)\b", (ROOT / document).read_text())
    assert {word for command in commands for word in command.split()} <= words


@pytest.mark.parametrize("file", REQUIREMENTS)
def test_every_requirement_is_pinned_and_hashed(file: str) -> None:
    pins = pinned(file)
    assert pins
    assert [name for name, pin in pins.items() if "==" not in pin or "--hash=sha256:" not in pin] == []


@pytest.mark.parametrize("file", REQUIREMENTS)
def test_requirements_name_no_address(file: str) -> None:
    assert re.search(r"://|--(extra-)?index|--find-links| @ ", (ROOT / file).read_text()) is None


def test_a_plain_install_of_the_sidecar_pulls_no_torch() -> None:
    plain = needs("sidecar")
    assert [name for name in [*plain, *pinned("sidecar/requirements.txt")] if HEAVY.match(name)] == []
    assert [name for name in plain if NOT_PLAIN.match(name)] == []


def test_a_plain_install_of_the_injector_or_the_predictor_pulls_no_torch() -> None:
    plain = [*needs("injector"), *pinned("injector/requirements.txt"), *needs("predictor")]
    assert [name for name in plain if HEAVY.match(name)] == []


def test_the_sidecar_needs_nothing_that_is_the_injectors_alone() -> None:
    alone = {"click", "cryptography", "kubernetes", "pyyaml"}
    assert alone <= needs("injector")
    assert alone & set(pinned("sidecar/requirements.txt")) == set()


@pytest.mark.parametrize("part", ["sidecar", "injector", "predictor"])
def test_every_direct_dependency_is_pinned(part: str) -> None:
    ours = {"carpool", "carpool-sidecar"}
    assert needs(part) - ours <= set(pinned(f"{part}/requirements.txt"))


def test_one_environment_can_hold_all_requirements() -> None:
    versions: dict[str, set[str]] = {}
    for file in REQUIREMENTS:
        for name, pin in pinned(file).items():
            versions.setdefault(name, set()).add(" ".join(sorted(set(re.findall(r"==([^\s;]+)", pin)))))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("workflow", sorted(path.name for path in (ROOT / ".github" / "workflows").iterdir()))
def test_every_action_is_pinned_by_commit_with_its_version_beside_it(workflow: str) -> None:
    used = re.findall(r"(?m)^[ -]*uses: (.+)$", (ROOT / ".github" / "workflows" / workflow).read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", action)] == []


def test_every_python_that_a_distribution_names_is_tested() -> None:
    checked = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["check"]
    tested = [f"Programming Language :: Python :: {each}" for each in checked["strategy"]["matrix"]["python"]]
    for part in (".", *PARTS[:3]):
        named = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]["classifiers"]
        assert [each for each in named if re.search(r":: 3\.\d", each)] == tested


def test_the_version_is_the_same_everywhere() -> None:
    projects = [tomllib.loads((ROOT / part / "pyproject.toml").read_text()) for part in (".", *PARTS[:3])]
    stated = {project["project"]["version"] for project in projects}
    assert stated == {each.__version__ for each in (carpool, carpool_sidecar, carpool_injector)}
    assert len(stated) == 1


def test_the_changelog_has_a_section_for_what_comes_next() -> None:
    assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text()
