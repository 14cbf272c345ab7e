"""What is in the images, and what is not."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.images import conftest, container

PARTS = ["sidecar", "injector", "predictor"]
# Programs that only an intruder would miss.
TOOLS = re.compile(r"(sh|bash|dash|busybox|apt.*|dpkg.*|pip.*|uv|uvx|gcc.*|cc|ld|as|perl.*|curl|wget)$")
UNCHECKED_HASH = 0b01


def distributions(root: Path) -> set[str]:
    """The names of the installed Python packages."""
    (site,) = root.glob("opt/carpool/lib/python3.*/site-packages")
    return {re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower() for path in site.glob("*.dist-info")}


def required(part: str) -> set[str]:
    """The names of the packages that a part is pinned to."""
    text = (conftest.ROOT / part / "requirements.txt").read_text()
    return {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)==", text)}


@pytest.mark.parametrize("part", PARTS)
def test_an_image_runs_as_a_numeric_user_who_is_not_root(images: Mapping[str, container.Image], part: str) -> None:
    told = images[part].config["config"]
    assert told["User"] == "65532:65532"  # a number is all that runAsNonRoot can check
    assert told["Entrypoint"] == [f"carpool-{part}"]
    assert told["StopSignal"] == "SIGTERM"


@pytest.mark.parametrize("part", PARTS)
def test_an_image_has_no_shell_no_package_manager_and_no_compiler(
    images: Mapping[str, container.Image], part: str
) -> None:
    files = [path for path in images[part].root.rglob("*") if not path.is_dir()]
    runnable = [path for path in files if path.lstat().st_mode & 0o111]
    assert [str(path) for path in runnable if TOOLS.match(path.name)] == []
    assert distributions(images[part].root) & {"pip", "setuptools", "wheel", "uv", "hatchling"} == set()


@pytest.mark.parametrize("part", PARTS)
def test_nothing_in_an_image_gives_rights_or_can_be_changed(images: Mapping[str, container.Image], part: str) -> None:
    root = images[part].root
    modes = {path: path.lstat().st_mode for path in root.rglob("*") if not path.is_symlink()}
    assert [path for path, mode in modes.items() if mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert [path for path, mode in modes.items() if mode & 0o022 and path != root / "tmp"] == []


@pytest.mark.parametrize("part", PARTS)
def test_an_image_knows_nothing_of_the_machine_that_built_it(images: Mapping[str, container.Image], part: str) -> None:
    root = images[part].root
    assert [path for path in root.rglob("*") if path.name in ("pip.conf", "ca.pem", "RECORD", "direct_url.json")] == []
    assert not (root / "run").exists()
    assert not (root / "build").exists()
    assert not (root / "root").exists()


@pytest.mark.parametrize("part", PARTS)
def test_all_python_is_compiled_and_taken_without_a_look_at_its_source(
    images: Mapping[str, container.Image], part: str
) -> None:
    (own,) = images[part].root.glob(f"opt/carpool/lib/python3.*/site-packages/carpool_{part}")
    compiled = list(images[part].root.rglob("*.pyc"))
    assert {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled} == {UNCHECKED_HASH}
    missing = [path for path in own.rglob("*.py") if not list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))]
    assert missing == []


def test_the_sidecars_image_has_its_pinned_packages_and_none_of_the_injector_or_torch(
    images: Mapping[str, container.Image],
) -> None:
    root = images["sidecar"].root
    (site,) = root.glob("opt/carpool/lib/python3.*/site-packages")
    assert distributions(root) == required("sidecar")
    assert not (site / "carpool_injector").exists()
    assert not (site / "carpool_predictor").exists()
    assert not (site / "torch").exists()


def test_the_injectors_image_has_its_pinned_packages_and_not_the_other_programs(
    images: Mapping[str, container.Image],
) -> None:
    root = images["injector"].root
    (site,) = root.glob("opt/carpool/lib/python3.*/site-packages")
    assert distributions(root) == required("injector")
    assert not (site / "carpool_sidecar").exists()


def test_the_sidecars_image_stays_small(images: Mapping[str, container.Image]) -> None:
    files = [path for path in images["sidecar"].root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 165e6  # 7 MB of it are compiled modules


@pytest.mark.parametrize("part", PARTS)
def test_scanners_find_the_packages_that_files_were_taken_from(
    images: Mapping[str, container.Image], part: str
) -> None:
    notes = images[part].root / "var" / "lib" / "dpkg" / "status.d"
    known = {path.name: path.read_text() for path in notes.iterdir()}
    assert {"libc6", "libssl3t64", "zlib1g"} <= known.keys()
    assert all(f"Package: {name}\n" in text and "\nVersion: " in text for name, text in known.items())


@pytest.mark.timeout(1800, func_only=True)  # it compiles the hot path
def test_a_build_from_nothing_has_the_same_layers_as_the_one_before_it(images: Mapping[str, container.Image]) -> None:
    done = conftest.make_images("--only", "sidecar", "--check-reproducible")
    assert "the same layers in both builds" in done.stdout
