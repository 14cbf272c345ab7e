"""Runs in the build stage of each image: sorts what the base and pip have installed into the layers of the image.

An image starts from nothing and gets three layers: the interpreter with the shared libraries it loads, the installed
packages, and the program. So it has no shell, no package manager and no compiler, whatever base it was built from, and
an update of the program alone is a layer of some 100 kB. What scanners for known flaws read comes along: Debian's
notes on each package that a file was taken from (as in distroless images), and the metadata of Python's packages.

Needs nothing but Python's standard library, because it runs in the base as it is: a Linux with glibc and `ldd`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import elf
import layers

USER = 65532

# Parts of the standard library that no server uses, as expressions; leading underscores are not part of them.
NEVER_USED = ["ensurepip", "idlelib", "lib2to3", "pydoc_data", "pyrepl", r"test\w*", "tkinter", r"turtle\w*", "venv"]
NEVER_USED += [
    r"phello\w*",
    r"xx\w+",
    "config-.*",
    "EXTERNALLY-MANAGED",
    "__pycache__",
    "site-packages",
    "dist-packages",
]

# Of packages: what compilers and type checkers read, and notes that a package manager keeps for itself.
NOT_RUN = {".a", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx"}
NOTES_OF_PIP = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}

# Loaded by name at run time, when a thread ends; so no library lists it as needed.
LOADED_LATER = "libgcc_s.so.1"

SCRIPT = """\
#!{python}
import sys

from {module} import {function}

sys.exit({function}())
"""


def take_libraries(layer: layers.Layer, files: Iterable[Path], inside: Path | None, may_lack: str) -> None:
    """Takes what `files` need of the base; exits with the names of libraries that the base does not have.

    Libraries that lie in `inside` are there already; names that match `may_lack` come from elsewhere at run time.
    """
    lacking: dict[str, str] = {}
    for file in files:
        found, missing = elf.libraries(file)
        for path in found:
            if inside is None or not path.is_relative_to(inside):
                layer.take(path)
        lacking |= {name: file.name for name in missing if not re.fullmatch(may_lack, name)}
    if lacking:
        named = ", ".join(f"{name} (for {file})" for name, file in sorted(lacking.items()))
        sys.exit(f"error: the base image lacks shared libraries: {named}; take another --base, or add them to it")


def take_notes_of_debian(layer: layers.Layer) -> None:
    """Takes the licences and the status of the packages that the taken files belong to; none where dpkg is not."""
    if shutil.which("dpkg-query") is None or not layer.taken:
        return
    # Packages from before /lib became a link list their files there.
    paths = [spelling for path in layer.taken for spelling in (str(path), str(path).removeprefix("/usr"))]
    owners = subprocess.run(["dpkg-query", "--search", *paths], capture_output=True, text=True).stdout
    for package in sorted({line.split(":")[0] for line in owners.splitlines() if not line.startswith("diversion ")}):
        status = subprocess.run(["dpkg-query", "--status", package], capture_output=True, text=True, check=True).stdout
        layer.write(f"/var/lib/dpkg/status.d/{package}", status)
        licence = Path(f"/usr/share/doc/{package}/copyright")
        if licence.exists():
            layer.write(str(licence), licence.read_text())


def runtime(layer: layers.Layer, without: list[str]) -> None:
    """The interpreter, its library less some modules, their shared libraries, certificates and accounts."""
    python, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    layer.take(python)
    names = "|".join([*NEVER_USED, *without])
    layer.take_tree(library, library, re.compile(rf"_*({names})(\.|$)"))
    layer.taken += [library / "os.py", *library.glob("lib-dynload/_ssl.*")]
    take_libraries(layer, [python, *elf.elf_files(layer.at(library))], None, "")
    take_system_files(layer)
    layers.compile_all(layer, library)


def take_system_files(layer: layers.Layer) -> None:
    for folder in ("/usr/lib", "/lib"):
        for file in Path(folder).rglob(LOADED_LATER):
            layer.take(file)
    for link in (Path("/lib"), Path("/lib64")):
        if link.is_symlink():
            layer.at(link).symlink_to(link.readlink())
    certificates = Path(ssl.get_default_verify_paths().openssl_cafile)
    settings = certificates.parent / "openssl.cnf"
    for file in (certificates, settings, Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/os-release")):
        if file.exists():
            layer.take(file)
    for file in [Path("/etc/ld.so.conf"), *sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))]:
        layer.take(file)
    # Where a base keeps libpython outside the loader's own folders, only this cache leads there.
    subprocess.run(["ldconfig", "-r", str(layer.folder)], check=True)
    shutil.rmtree(layer.at("/var/cache"), ignore_errors=True)
    root, own = "root:x:0:0:root:/:/usr/sbin/nologin\n", f"nonroot:x:{USER}:{USER}:nonroot:/:/usr/sbin/nologin\n"
    layer.write("/etc/passwd", root + own)
    layer.write("/etc/group", f"root:x:0:\nnonroot:x:{USER}:\n")
    layer.at("/tmp").mkdir()


def begins(path: Path, expression: str) -> bool:
    """Whether the path begins with what the expression describes; an empty one describes nothing."""
    return bool(expression) and re.match(expression, str(path)) is not None


def packages(layer: layers.Layer, environment: Path, leave_out: str, keep_symbols: str, may_lack: str) -> None:
    """What pip has installed into a virtual environment, less what never runs, and the shared libraries it needs.

    `leave_out` and `keep_symbols` are expressions for the beginnings of paths below site-packages.
    """
    (site,) = environment.glob("lib/python3.*/site-packages")
    layer.take_tree(site, site)
    for path in sorted(layer.at(site).rglob("*")):
        noted = path.parent.suffix == ".dist-info" and path.name in NOTES_OF_PIP
        unwanted = path.suffix in NOT_RUN or noted or begins(path.relative_to(layer.at(site)), leave_out)
        if unwanted and not path.is_dir():
            path.unlink()
    for path in elf.elf_files(layer.at(site)):
        if not begins(path.relative_to(layer.at(site)), keep_symbols):
            path.write_bytes(elf.without_symbols(path.read_bytes()))
    take_libraries(layer, elf.elf_files(site), environment, may_lack)
    python = Path(sys.executable).resolve()
    layer.at(environment / "bin").mkdir(parents=True)
    layer.at(environment / "bin" / "python").symlink_to(python)
    version = ".".join(map(str, sys.version_info[:3]))
    settings = f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    layer.write(f"{environment}/pyvenv.cfg", settings)
    layers.compile_all(layer, site)


def program(layer: layers.Layer, environment: Path, script: str, sources: list[Path]) -> None:
    """Packages of this project, and the script `name=module:function` that starts them."""
    (site,) = environment.glob("lib/python3.*/site-packages")
    for source in sources:
        layer.take_tree(source, site / source.name)
    name, _, target = script.partition("=")
    module, _, function = target.partition(":")
    python = environment / "bin" / "python"
    layer.write(f"{environment}/bin/{name}", SCRIPT.format(python=python, module=module, function=function), 0o755)
    layers.compile_all(layer, site)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", choices=["runtime", "packages", "program"])
    parser.add_argument("folder", type=Path, help="where the layer is put together")
    parser.add_argument("sources", type=Path, nargs="*", help="program: folders of this project")
    parser.add_argument("--lower", type=Path, help="the layer below")
    parser.add_argument("--environment", type=Path, help="the virtual environment with the packages")
    parser.add_argument("--without", default="", help="runtime: modules of the standard library, with spaces between")
    parser.add_argument("--leave-out", default="", help="packages: expression for paths that are not needed")
    parser.add_argument(
        "--keep-symbols", default="", help="packages: expression for paths of libraries left as they are"
    )
    parser.add_argument(
        "--may-lack", default="", help="packages: shared libraries that come at run time, an expression"
    )
    parser.add_argument("--script", default="", help="program: name=module:function")
    return parser.parse_args()


def main() -> None:
    wanted = arguments()
    layer = layers.Layer(wanted.folder, wanted.lower)
    if wanted.layer == "runtime":
        runtime(layer, wanted.without.split())
    elif wanted.layer == "packages":
        packages(layer, wanted.environment, wanted.leave_out, wanted.keep_symbols, wanted.may_lack)
    else:
        program(layer, wanted.environment, wanted.script, wanted.sources)
    take_notes_of_debian(layer)
    layers.settle(layer)


if __name__ == "__main__":
    main()
