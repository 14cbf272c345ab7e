"""The four distributions: what each brings into an environment, and what it needs there."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "carpool": ".",
    "carpool_sidecar": "sidecar",
    "carpool_injector": "injector",
    "carpool_predictor": "predictor",
}
PROJECTS = {
    name: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for name, folder in FOLDERS.items()
}


def build(folder: str, into: Path) -> zipfile.ZipFile:
    """The wheel of a folder's distribution, made without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(command, cwd=ROOT / folder, check=True, capture_output=True)
    (wheel,) = into.glob("*.whl")
    return zipfile.ZipFile(wheel)


def names(needs: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", need)[0] for need in needs}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_installs_one_package_of_its_own_name_and_its_metadata(name: str, tmp_path: Path) -> None:
    with build(FOLDERS[name], tmp_path) as wheel:
        tops = {file.partition("/")[0] for file in wheel.namelist()}
        assert tops == {name, f"{name}-{PROJECTS[name]['version']}.dist-info"}
        assert f"{name}/py.typed" in wheel.namelist()


def test_the_library_needs_nothing_and_is_imported_without_what_is_not_in_its_wheel(tmp_path: Path) -> None:
    with build(".", tmp_path) as wheel:
        wheel.extractall(tmp_path / "site")
    metadata = next((tmp_path / "site").glob("*.dist-info/METADATA")).read_text()
    needs = email.message_from_string(metadata).get_all("Requires-Dist") or []
    assert [need for need in needs if "extra ==" not in need] == []
    # -I -S: neither this checkout nor any installed package can be found.
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import carpool; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in ended.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"carpool", "__main__"} - sys.stdlib_module_names


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "carpool"])
def test_a_program_needs_the_library_of_its_own_version(name: str) -> None:
    needs = {re.sub(r"\s", "", need) for need in PROJECTS[name]["dependencies"]}
    ours = {need for need in needs if need.startswith("carpool")}
    assert ours == {f"{each}=={PROJECTS['carpool']['version']}" for each in names(list(ours))}
    assert "carpool" in names(list(ours))
