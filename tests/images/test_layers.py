"""How files come into a layer, and that nothing of the build's time or place comes with them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture
def layers(script: Script) -> ModuleType:
    return script("layers")


def write(path: Path, text: str = "x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_is_taken_with_all_that_it_links_to(layers: ModuleType, tmp_path: Path) -> None:
    base = tmp_path / "base"
    write(base / "libz.so.1.3", "code")
    (base / "libz.so.1").symlink_to("libz.so.1.3")
    (base / "libz.so").symlink_to(base / "libz.so.1")
    layer = layers.Layer(tmp_path / "layer")
    layer.take(base / "libz.so")
    assert layer.at(base / "libz.so").is_symlink()
    assert layer.at(base / "libz.so.1").readlink() == Path("libz.so.1.3")
    assert layer.at(base / "libz.so.1.3").read_text() == "code"


def test_a_file_lies_where_it_is_and_not_where_a_linked_folder_shows_it(layers: ModuleType, tmp_path: Path) -> None:
    base = tmp_path / "base"
    write(base / "usr" / "lib" / "libz.so")
    (base / "lib").symlink_to("usr/lib")
    layer = layers.Layer(tmp_path / "layer")
    layer.take(base / "lib" / "libz.so")
    assert layer.at(base / "usr" / "lib" / "libz.so").is_file()
    assert not layer.at(base / "lib").exists()


def test_what_the_layer_below_has_is_not_taken_again(layers: ModuleType, tmp_path: Path) -> None:
    file = write(tmp_path / "base" / "libz.so")
    lower = layers.Layer(tmp_path / "lower")
    lower.take(file)
    layer = layers.Layer(tmp_path / "layer", tmp_path / "lower")
    layer.take(file)
    assert layer.taken == []
    assert not layer.at(file).exists()


def test_a_tree_comes_without_caches_and_without_the_entries_left_out_of_its_top(
    layers: ModuleType, tmp_path: Path
) -> None:
    library = tmp_path / "python3"
    names = ["os.py", "sqlite3/__init__.py", "email/sqlite3.py", "lib-dynload/_sqlite3.so", "lib-dynload/_ssl.so"]
    for name in [*names, "__pycache__/os.pyc", "email/__pycache__/sqlite3.pyc"]:
        write(library / name)
    layer = layers.Layer(tmp_path / "layer")
    layer.take_tree(library, library, re.compile(r"_*(sqlite3)(\.|$)"))
    found = {str(path.relative_to(layer.at(library))) for path in layer.at(library).rglob("*") if path.is_file()}
    assert found == {"os.py", "email/sqlite3.py", "lib-dynload/_ssl.so"}


def test_modes_and_times_are_the_same_whatever_they_were(
    layers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    layer = layers.Layer(tmp_path / "layer")
    write(layer.at("/opt/script"), mode=0o4750)
    write(layer.at("/opt/text"), mode=0o600)
    layer.at("/tmp").mkdir()
    layer.at("/lib").symlink_to("usr/lib")
    layers.settle(layer)
    modes = {path.name: path.lstat().st_mode & 0o7777 for path in layer.folder.rglob("*") if not path.is_symlink()}
    assert modes == {"opt": 0o755, "script": 0o755, "text": 0o644, "tmp": 0o1777}
    assert {path.lstat().st_mtime for path in layer.folder.rglob("*")} == {86400.0}


def test_compiled_files_name_the_place_in_the_image_and_are_never_checked(layers: ModuleType, tmp_path: Path) -> None:
    layer = layers.Layer(tmp_path / "layer")
    write(layer.at("/opt/lib/words.py"), "def count():\n    return {'a', 'b'}\n")
    layers.compile_all(layer, Path("/opt/lib"))
    (compiled,) = layer.at("/opt/lib").rglob("*.pyc")
    flags, _ = struct.unpack_from("<I8s", compiled.read_bytes(), 4)
    assert flags == 0b01  # with a hash of the source (PEP 552), unchecked
    assert b"/opt/lib/words.py" in compiled.read_bytes()
    assert str(layer.folder).encode() not in compiled.read_bytes()


def test_a_source_that_does_not_compile_stops_nothing(layers: ModuleType, tmp_path: Path) -> None:
    layer = layers.Layer(tmp_path / "layer")
    write(layer.at("/opt/lib/template.py"), "def {{ name }}():\n")
    write(layer.at("/opt/lib/words.py"), "WORDS = 1\n")
    layers.compile_all(layer, Path("/opt/lib"))
    assert [path.name.partition(".")[0] for path in layer.at("/opt/lib").rglob("*.pyc")] == ["words"]


def test_two_processes_compile_the_same_bytes(tmp_path: Path, script: Script) -> None:
    folder = Path(script("layers").__file__ or "").parent
    source = Path(os.__file__).read_text()
    program = "import sys, pathlib, layers; layers.compile_all(layers.Layer(pathlib.Path(sys.argv[1])), '/opt')"
    compiled = []
    for number in ("1", "2"):
        write(tmp_path / number / "opt" / "os.py", source)
        told = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / number)], check=True, env=told)
        (found,) = (tmp_path / number).rglob("*.pyc")
        compiled.append(found.read_bytes())
    assert compiled[0] == compiled[1]
