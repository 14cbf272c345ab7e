"""Compiles the hot path with mypyc: what a request crosses becomes C, from the same sources, types and all.

    CARPOOL_COMPILE=1 pip wheel . ./sidecar            wheels with compiled modules, by way of hatch_build.py
    python .ci/compiled.py FOLDER                      both packages' modules into a folder, as the images have them

Modules of one build call each other as C functions, across both distributions, and know where each other's objects
keep their attributes. So the two fit only if they were built from the same sources: the names of their libraries end
in the same digest, and `carpool.compiled` looks at that before it lets a compiled module be loaded. The `.py` files
stay beside the compiled modules, for tracebacks and for running without them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"carpool": ROOT, "carpool_sidecar": ROOT / "sidecar"}

# The one list of what is compiled. Not in it: exceptions (what a compiled one carries is never freed by some releases
# of mypyc), settings, and whatever a request on its common way does not cross.
MODULES = {
    "carpool": """
        functions.calls
        measures
        runtime.deadline_timer runtime.driver
        scheduling.adaptive scheduling.arrivals scheduling.backlog scheduling.call_limits scheduling.full_size
        scheduling.isolation scheduling.lengths
        scheduling.learned_limits scheduling.ledger scheduling.limits scheduling.messages scheduling.own_time
        scheduling.packing scheduling.policy scheduling.predictor_model scheduling.queues scheduling.scheduler
        scheduling.spacing scheduling.suspicion scheduling.tuning scheduling.window
    """,
    "carpool_sidecar": """
        batching.calls batching.executor batching.model_registry batching.retried_statuses batching.routes
        batching.size_refusals
        protocols.forms protocols.frames protocols.hop_by_hop protocols.incremental_scan protocols.interface
        protocols.json_members protocols.json_rows protocols.models protocols.v1 protocols.v2
        protocols.v2_grpc.codec protocols.v2_grpc.messages protocols.v2_grpc.outlines protocols.v2_grpc.tensors
        protocols.v2_http.answers protocols.v2_http.codec protocols.v2_http.declarations protocols.v2_http.framing
        protocols.v2_http.json_bodies protocols.v2_http.json_lists
        protocols.v2_http.templates protocols.v2_http.cuts
        recording.ring
        server.http1.bodies server.http1.connection server.http1.exchange server.http1.heads server.http1.messages
        server.http1.relay server.http1.requests
        server.grpc.arrivals server.grpc.heads server.grpc.service
        server.headers
        server.http2.connection server.http2.frames server.http2.headers server.http2.limits server.http2.send_queue
        server.http2.server server.http2.server_stream
        server.local_answers server.predict server.responses
        upstream.connection upstream.predictor
    """,
}
NATIVE = {"carpool": "", "carpool_sidecar": "protocols.form_scan protocols.number_lists"}
"""Those that are written in C beside their Python, which knows no such thing."""
# mypyc's own slicing of bytes (2.4) raises SystemError where the start lies behind the stop; Python's does not, and
# takes four times as long. A tagged integer is short where its lowest bit is not set.
_SLICING = """
static inline PyObject *carpool_slice(PyObject *data, CPyTagged start, CPyTagged stop) {
    Py_ssize_t first = (Py_ssize_t)start, last = (Py_ssize_t)stop;
    int is_plain = !((start | stop) & CPY_INT_TAG) && 0 <= first && first <= last;
    return is_plain ? CPyBytes_GetSlice(data, start, stop) : CPyObject_GetSlice(data, start, stop);
}
"""
_SLICES = "CPyBytes_GetSlice("
_RUNTIME = "#include <bytes_ops.c>\n"  # where mypyc's own is, in each library
OPTIMISATION = os.environ.get("CARPOOL_OPTIMISATION", "2")  # 0: a quarter of the time, for trying


class Problem(Exception):
    """Nothing can be compiled here; the message says why and what to do."""


def sources(package: str) -> list[Path]:
    """The files of a package's compiled modules."""
    return [_file(package, name, ".py") for name in MODULES[package].split()]


def native(package: str) -> list[Path]:
    """The files of a package's modules in C."""
    return [_file(package, name, ".c") for name in NATIVE[package].split()]


def _file(package: str, name: str, suffix: str) -> Path:
    return FOLDERS[package] / package / (name.replace(".", "/") + suffix)


def digest() -> str:
    """The name of what is built here: by all sources, the compiler's version and the interpreter."""
    import mypy.version

    parts = [mypy.version.__version__, sysconfig.get_config_var("SOABI") or sys.version, OPTIMISATION]
    made = hashlib.sha256("\n".join(parts).encode())
    for package in MODULES:
        for file in [*sources(package), *native(package)]:
            made.update(f"\n{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return made.hexdigest()[:12]


def check(*, tools: bool = True) -> None:
    """Raises Problem unless a C compiler, Python's headers and, if asked for, mypyc and setuptools are here."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise Problem(
            f"there is no C compiler ({compiler}); install one (Debian, Ubuntu: gcc and libc6-dev), or set CC"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise Problem("there are no headers of Python (Python.h); install them (Debian, Ubuntu: python3-dev)")
    if not tools:
        return
    try:
        import mypyc.build  # noqa: F401
        import setuptools  # noqa: F401
    except ImportError as error:
        raise Problem(f"{error.name} is not installed: pip install -r .ci/compiled.txt") from None


def build(packages: Sequence[str], folder: Path, python: str = sys.executable) -> dict[str, list[Path]]:
    """Compile these packages' modules into `folder`, laid out as in a wheel; returns their files, relative to it.

    `python` is the interpreter whose environment has what the sources import; the types of that count. Raises Problem.
    """
    check()
    folder = folder.resolve()
    needed = [file for each in MODULES for file in [*sources(each), *native(each)]]
    missing = [str(file.relative_to(ROOT)) for file in needed if not file.exists()]
    if missing:
        raise Problem(f"compiling needs the whole checkout; there is no {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="carpool-compiled-") as scratch:
        # A process of its own: mypyc reads the command line, prints to standard output and exits when it is unhappy.
        command = [sys.executable, str(Path(__file__)), "--compile", str(folder), scratch, python, *packages]
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            raise Problem(f"{' and '.join(packages)} could not be compiled:\n{ended.stdout[-4000:]}")
    made = {each: sorted(file.relative_to(folder) for file in (folder / each).rglob("*.so")) for each in packages}
    for package, files in made.items():
        modules = len(sources(package)) + len(native(package))
        if len(files) != modules + 1:
            raise Problem(f"of {package} there are {len(files)} files for {modules} modules and a library")
    return made


def with_own_slicing(library: str) -> str:
    """The C of a library whose slices of bytes are Python's, and quick where that is plain. Raises Problem."""
    if _SLICES in library and _RUNTIME not in library:
        raise Problem(f"mypyc writes other C than this was made for: there is no {_RUNTIME.strip()}")
    return library.replace(_SLICES, "carpool_slice(").replace(_RUNTIME, _RUNTIME + _SLICING)


def compile_groups(folder: Path, scratch: Path, python: str, packages: Sequence[str]) -> None:
    """All groups are translated, since they know of each other; of those that are wanted C is compiled."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    made = digest()
    groups = [([str(file.relative_to(ROOT)) for file in sources(each)], f"{each}.compiled_{made}") for each in MODULES]
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(scratch / "cache")]
    extensions = mypycify(
        [*options, "--python-executable", python, *(file for files, _ in groups for file in files)],
        separate=groups,
        target_dir=str(scratch / "c"),
        opt_level=OPTIMISATION,
        debug_level="0",
    )
    for file in (scratch / "c").rglob("__native*.c"):
        file.write_text(with_own_slicing(file.read_text()))
    for package, names in NATIVE.items():
        for name, file in zip(names.split(), native(package), strict=True):
            made_here = [str(file.relative_to(ROOT))]
            extensions.append(Extension(f"{package}.{name}", made_here, extra_compile_args=["-O2", "-g0"]))
    chosen = [each for each in extensions if each.name.split(".")[0] in packages]
    # The libraries of the groups take nearly all of the time, and a core each.
    chosen.sort(key=lambda each: "compiled_" not in each.name)
    for each in chosen:
        # Without this the folder of the sources would be told in each library, and no two builds would be alike.
        each.extra_compile_args += [f"-ffile-prefix-map={scratch}=.", "-Wno-error"]
        each.extra_link_args += ["-Wl,--build-id=none", "-s"]
    command = build_ext(Distribution({"name": "carpool", "ext_modules": chosen}))
    command.build_lib, command.build_temp = str(folder), str(scratch / "o")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


def main() -> None:
    if sys.argv[1:2] == ["--compile"]:
        folder, scratch, python, *packages = sys.argv[2:]
        compile_groups(Path(folder), Path(scratch), python, packages)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the compiled modules go, laid out as in a wheel")
    parser.add_argument("--python", default=sys.executable, help="whose environment has what the sources import")
    parser.add_argument("--check", action="store_true", help="only whether there is a C compiler")
    wanted = parser.parse_args()
    try:
        check(tools=not wanted.check)
        if not wanted.check:
            start = time.monotonic()
            for package, files in build(list(MODULES), wanted.folder, wanted.python).items():
                size = sum((wanted.folder / file).stat().st_size for file in files)
                print(f"{package}: {len(files) - 1} modules compiled, {size / 1e6:.1f} MB")
            print(f"in {time.monotonic() - start:.0f} s")
    except Problem as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
