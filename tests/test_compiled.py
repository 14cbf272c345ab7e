"""The compiled build: when it is used, what says so, and that a plain install needs no compiler."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib import machinery
from pathlib import Path

import pytest

import carpool_sidecar
from carpool import compiled
from tests import test_distributions

ROOT = Path(__file__).parent.parent
SUFFIX = machinery.EXTENSION_SUFFIXES[0]


def package(root: Path, name: str, build: str | None, choose: str) -> None:
    """A package with a module of Python and, if `build` names one, a file where a compiled one would lie."""
    folder = root / name
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text(f"from carpool import compiled\n{choose}\n")
    for file in (folder / "hot.py", folder / "inner" / "hot.py"):
        file.write_text("")
        if build is not None:
            file.with_suffix(SUFFIX).write_bytes(b"no library")
    (folder / "inner" / "__init__.py").write_text("")
    if build is not None:
        (folder / f"compiled_{build}__mypyc{SUFFIX}").write_bytes(b"")


def kinds(root: Path, *modules: str, pure: str = "") -> list[str]:
    """How these modules would run in a process of its own."""
    program = f"from carpool import compiled; print(*[compiled.running(name) for name in {modules!r}])"
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{ROOT}", compiled.VARIABLE: pure}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=root)
    return ended.stdout.split()


@pytest.mark.parametrize(("pure", "kind"), [("", "compiled"), ("0", "compiled"), ("1", "python"), ("yes", "python")])
def test_compiled_modules_run_unless_the_environment_says_otherwise(tmp_path: Path, pure: str, kind: str) -> None:
    package(tmp_path, "core", "a1", "compiled.choose(__path__)")
    assert kinds(tmp_path, "core.hot", "core.inner.hot", pure=pure) == [kind, kind]


@pytest.mark.parametrize(
    ("core", "outer", "expected"),
    [
        ("a1", "a1", ["compiled", "compiled"]),
        ("a1", "b2", ["compiled", "python"]),
        (None, "a1", ["python", "python"]),
        ("a1", None, ["compiled", "python"]),
        (None, None, ["python", "python"]),
    ],
)
def test_a_compiled_package_runs_as_python_beside_one_of_another_build(
    tmp_path: Path, core: str | None, outer: str | None, expected: list[str]
) -> None:
    package(tmp_path, "core", core, "compiled.choose(__path__)")
    package(tmp_path, "outer", outer, "import core; compiled.choose(__path__, beside=core.__path__)")
    assert kinds(tmp_path, "core.hot", "outer.inner.hot") == expected


def test_the_version_tells_which_build_runs() -> None:
    command = [sys.executable, "-m", "carpool_sidecar", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told == f"carpool-sidecar {carpool_sidecar.__version__} ({carpool_sidecar.build()})\n"


def test_pure_python_is_what_runs_where_the_environment_asks_for_it() -> None:
    command = [sys.executable, "-m", "carpool_sidecar", "--version"]
    environment = {**os.environ, compiled.VARIABLE: "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("(python)\n")


def test_both_distributions_have_the_same_build_hook() -> None:
    hooks = []
    for folder in (ROOT, ROOT / "sidecar"):
        targets = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
        hooks.append(folder / targets["wheel"]["hooks"]["custom"].get("path", "hatch_build.py"))
    assert hooks == [ROOT / "sidecar" / "hatch_build.py"] * 2
    assert hooks[0].exists()


@pytest.mark.parametrize("folder", [".", "sidecar"])
def test_a_wheel_is_plain_unless_compiling_is_asked_for(folder: str, tmp_path: Path) -> None:
    with test_distributions.build(folder, tmp_path) as wheel:
        assert wheel.filename is not None
        assert wheel.filename.endswith("-py3-none-any.whl")
        assert [name for name in wheel.namelist() if name.endswith(".so")] == []


@pytest.mark.parametrize("folder", [".", "sidecar"])
def test_a_source_distribution_makes_a_wheel_and_says_that_it_cannot_be_compiled(folder: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*command, "-t", "sdist"], cwd=ROOT / folder, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", archive], cwd=tmp_path, check=True)
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    subprocess.run([*command, "-t", "wheel"], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(wheel).testzip() is None
    environment = {**os.environ, "CARPOOL_COMPILE": "1"}
    refused = subprocess.run([*command, "-t", "wheel"], cwd=source, env=environment, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "compiling needs the whole checkout" in refused.stderr


def test_all_modules_that_are_to_be_compiled_are_there_and_none_has_exceptions() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "compiled.py"))
    files = [file for name in script["MODULES"] for file in script["sources"](name)]
    files_in_c = [file for name in script["NATIVE"] for file in script["native"](name)]
    assert [file for file in files + files_in_c if not file.exists()] == []
    assert [file for file in files_in_c if not file.with_suffix(".py").exists()] == []
    exceptions = re.compile(r"(?m)(?<!native_class=False\)\n)^class \w+\((\w+\.)?(\w*Exception|\w*Error)\b")
    assert [file for file in files if exceptions.search(file.read_text())] == []


def test_nothing_is_asked_of_a_module_in_c_that_it_does_not_have() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "compiled.py"))
    for file in [file for name in script["NATIVE"] for file in script["native"](name)]:
        there = set(re.findall(r'\{"(\w+)", \(PyCFunction\)', file.read_text())) | {"c", "py"}  # its files in prose
        others = [each for each in (ROOT / "sidecar").rglob("*.py") if each != file.with_suffix(".py")]
        asked = {name for each in others for name in re.findall(rf"(?<![.\w]){file.stem}\.(\w+)", each.read_text())}
        assert asked <= there, file


def test_a_name_for_what_is_caught_has_one_type_in_a_function() -> None:
    """Compiled, it is one variable: another kind of exception would be a TypeError there, and nowhere else."""
    script = runpy.run_path(str(ROOT / ".ci" / "compiled.py"))
    found = []
    for file in [file for name in script["MODULES"] for file in script["sources"](name)]:
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                caught = [each for each in ast.walk(function) if isinstance(each, ast.ExceptHandler) and each.name]
                kinds = {(each.name, ast.unparse(each.type)) for each in caught if each.type is not None}
                if len(kinds) > len({name for name, _ in kinds}):
                    found.append(f"{file.name}: {function.name}")
    assert found == []


def test_no_class_with_slots_that_a_dataclass_makes_anew_has_properties() -> None:
    """Since Python 3.14 `dataclass(slots=True)` looks into the code of properties, and a compiled one has none."""
    script = runpy.run_path(str(ROOT / ".ci" / "compiled.py"))
    found = []
    for file in [file for name in script["MODULES"] for file in script["sources"](name)]:
        for kind in ast.walk(ast.parse(file.read_text())):
            if isinstance(kind, ast.ClassDef) and "slots=True" in "".join(map(ast.unparse, kind.decorator_list)):
                methods = [each for each in kind.body if isinstance(each, ast.FunctionDef)]
                found += [
                    f"{file.name}: {each.name}"
                    for each in methods
                    if "property" in map(ast.unparse, each.decorator_list)
                ]
    assert found == []


def test_slices_of_bytes_are_compiled_as_python_has_them_or_not_at_all() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "compiled.py"))
    library = "#include <init.c>\n#include <bytes_ops.c>\n\nr = CPyBytes_GetSlice(data, 4, 2);\n"
    written = script["with_own_slicing"](library)
    assert written.endswith("}\n\nr = carpool_slice(data, 4, 2);\n")
    assert written.index("#include <bytes_ops.c>") < written.index("PyObject *carpool_slice(")
    with pytest.raises(script["Problem"], match="other C than this was made for"):
        script["with_own_slicing"](library.replace("bytes_ops", "byte_ops"))


def test_a_machine_without_a_c_compiler_is_told_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "compiled.py"), "--check"]
    environment = {**os.environ, "CC": str(tmp_path / "no-compiler")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert re.fullmatch(r"error: there is no C compiler \(\S+/no-compiler\); install one .*\n", ended.stderr)
