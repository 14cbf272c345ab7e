"""Shared libraries without their symbols still load, and other files stay as they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import multidict._multidict
import pytest
from hypothesis import given
from hypothesis import strategies as st

Script = Callable[[str], ModuleType]
LIBRARY = Path(multidict._multidict.__file__)
LOAD = """\
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("_multidict", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_multidict", loader))
loader.exec_module(module)
print(module.MultiDict([("a", 1), ("a", 2)]).getall("a"))
"""

only_elf = pytest.mark.skipif(LIBRARY.read_bytes()[:4] != b"\x7fELF", reason="libraries here are not ELF")


@pytest.fixture(scope="module")
def elf(script: Script) -> ModuleType:
    return script("elf")


@only_elf
def test_a_library_without_symbols_is_smaller_and_loads(elf: ModuleType, tmp_path: Path) -> None:
    before = LIBRARY.read_bytes()
    file = tmp_path / LIBRARY.name
    file.write_bytes(elf.without_symbols(before))
    assert file.stat().st_size < len(before)
    loaded = subprocess.run([sys.executable, "-c", LOAD, str(file)], capture_output=True, text=True)
    assert (loaded.stdout, loaded.returncode) == ("[1, 2]\n", 0), loaded.stderr


@only_elf
def test_taking_symbols_away_twice_changes_nothing(elf: ModuleType) -> None:
    once = elf.without_symbols(LIBRARY.read_bytes())
    assert elf.without_symbols(once) == once


@given(st.binary().filter(lambda data: data[:6] != b"\x7fELF\x02\x01"))
def test_anything_else_stays_as_it_is(elf: ModuleType, data: bytes) -> None:
    assert elf.without_symbols(data) == data


@only_elf
def test_libraries_are_found_among_other_files_in_a_fixed_order(elf: ModuleType, tmp_path: Path) -> None:
    for name in ("b.so", "a.so.1", "tool"):
        (tmp_path / name).write_bytes(LIBRARY.read_bytes())
    for name in ("c.so", "README", "d.py"):
        (tmp_path / name).write_text("GROUP ( libc.so.6 )")
    (tmp_path / "link.so").symlink_to("b.so")
    assert [path.name for path in elf.elf_files(tmp_path)] == ["a.so.1", "b.so", "tool"]


def test_needed_libraries_are_read_as_ldd_tells_them(elf: ModuleType, program: Callable[[str, str], None]) -> None:
    listing = (
        "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f01)\n"
        "\tlibcuda.so.1 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n"
    )
    program("ldd", f"cat <<'END'\n{listing}END")
    found, missing = elf.libraries(Path("any.so"))
    assert found == [Path("/lib/x86_64-linux-gnu/libz.so.1"), Path("/lib64/ld-linux-x86-64.so.2")]
    assert missing == ["libcuda.so.1"]
