"""What goes into which layer."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]
SITE = Path("lib/python3.13/site-packages")


@pytest.fixture(scope="module")
def contents(script: Script) -> ModuleType:
    return script("contents")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with one package."""
    site = tmp_path / "carpool" / SITE
    for name in ("words/__init__.py", "words/fast.pyx", "words/models/v1.py", "words-1.dist-info/METADATA"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("WORDS = 1\n")
    (site / "words-1.dist-info" / "RECORD").write_text("words/__init__.py,,\n")
    return tmp_path / "carpool"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_of_the_standard_library_no_module_is_left_out_that_servers_use(contents: ModuleType) -> None:
    left_out = re.compile(rf"_*({'|'.join(contents.NEVER_USED)})(\.|$)")
    kept = sorted(name for name in sys.stdlib_module_names if not left_out.match(name))
    assert {"asyncio", "unittest", "wsgiref", "doctest", "ctypes", "ssl", "_ssl", "_ctypes", "textwrap"} <= set(kept)
    assert {"idlelib", "tkinter", "_tkinter", "ensurepip", "turtle", "_testcapi", "venv"}.isdisjoint(kept)


def test_packages_come_without_what_only_compilers_and_installers_read(
    contents: ModuleType, environment: Path, tmp_path: Path
) -> None:
    layer = contents.layers.Layer(tmp_path / "layer")
    contents.packages(layer, environment, "", "", "")
    found = files(layer.at(environment))
    assert f"{SITE}/words/__init__.py" in found
    assert f"{SITE}/words-1.dist-info/METADATA" in found
    assert not {f"{SITE}/words/fast.pyx", f"{SITE}/words-1.dist-info/RECORD"} & found
    assert f"home = {Path(sys.executable).resolve().parent}\n" in layer.at(environment / "pyvenv.cfg").read_text()
    assert layer.at(environment / "bin" / "python").readlink() == Path(sys.executable).resolve()


def test_parts_of_packages_can_be_left_out(contents: ModuleType, environment: Path, tmp_path: Path) -> None:
    layer = contents.layers.Layer(tmp_path / "layer")
    contents.packages(layer, environment, "words/models/", "", "")
    assert f"{SITE}/words/models/v1.py" not in files(layer.at(environment))
    assert f"{SITE}/words/__init__.py" in files(layer.at(environment))


def test_a_library_that_the_base_lacks_is_named_with_who_needs_it(
    contents: ModuleType, program: Callable[[str, str], None], tmp_path: Path
) -> None:
    program("ldd", "echo '\tlibgone.so.3 => not found'; echo '\tlibcuda.so.1 => not found'")
    layer = contents.layers.Layer(tmp_path / "layer")
    with pytest.raises(SystemExit, match=r"lacks shared libraries: libgone\.so\.3 \(for fast\.so\); take another"):
        contents.take_libraries(layer, [Path("fast.so")], None, r"libcuda\..*")


def test_the_program_is_started_without_a_shell_by_the_images_own_python(
    contents: ModuleType, environment: Path, tmp_path: Path
) -> None:
    source = tmp_path / "carpool_sidecar"
    for name in ("__init__.py", "cli.py"):
        source.mkdir(exist_ok=True)
        (source / name).write_text("")
    layer = contents.layers.Layer(tmp_path / "layer")
    contents.program(layer, environment, "carpool-sidecar=carpool_sidecar.app.cli:main", [source])
    started = layer.at(environment / "bin" / "carpool-sidecar")
    lines = started.read_text().splitlines()
    assert lines[0] == f"#!{environment}/bin/python"
    assert "from carpool_sidecar.app.cli import main" in lines
    assert os.access(started, os.X_OK)
    assert files(layer.at(environment / SITE)) == {"carpool_sidecar/__init__.py", "carpool_sidecar/cli.py"}


def test_what_scanners_read_is_taken_for_each_package_with_a_file_in_the_layer(
    contents: ModuleType, program: Callable[[str, str], None], tmp_path: Path
) -> None:
    program(
        "dpkg-query",
        'case "$1" in\n'
        "--search) echo 'zlib1g:amd64: /usr/lib/libz.so.1'; echo 'diversion by dash from: /bin/sh';;\n"
        '--status) echo "Package: $2"; echo "Version: 1";;\nesac',
    )
    layer = contents.layers.Layer(tmp_path / "layer")
    layer.taken.append(Path("/usr/lib/libz.so.1"))
    contents.take_notes_of_debian(layer)
    (note,) = layer.at("/var/lib/dpkg/status.d").iterdir()
    assert note.read_text() == "Package: zlib1g\nVersion: 1\n"


def test_a_base_without_dpkg_has_no_notes(
    contents: ModuleType, program: Callable[[str, str], None], tmp_path: Path
) -> None:
    layer = contents.layers.Layer(tmp_path / "layer")
    layer.taken.append(Path("/usr/lib/libz.so.1"))
    contents.take_notes_of_debian(layer)
    assert not layer.at("/var").exists()
