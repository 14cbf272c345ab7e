"""The product's own images for a cluster: built as `make images` builds them, kept by what they were built from."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import binaries, client, clusters

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / ".ci"
SOURCES = ("carpool", "sidecar", "injector", "predictor", ".ci/image_build")
PARTS = ("sidecar", "injector", "predictor")
# Without Docker: what builds images, and where no registry answers their base of Debian's packages.
PROGRAMS = ("buildah", "mmdebstrap")
# The exit status of .ci/images.py where images cannot be built here: no engine, or no base.
NOT_HERE = 2
KEPT = 3
# The ConfigMap in which a cluster keeps the digest of the images that it has.
MARK = ("kube-system", "carpool-e2e-images")


def missing_packages(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """The Debian packages without which images may not be built here."""
    return [name for name in PROGRAMS if which(name) is None]


def state() -> str:
    """A digest of the sources that the images are built from."""
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if _matters(path)]
    files += [*SCRIPTS.glob("*.py"), SCRIPTS / "compiled.txt", Path(__file__)]
    inputs = {str(path.relative_to(ROOT)): path.read_bytes() for path in files}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return binaries.key({**inputs, "version": version.encode()})


def _matters(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".md")


def archives() -> dict[str, Path]:
    """An archive (as of `docker save`) for each of sidecar, injector and predictor, built now if it is not there.

    The predictor's has the echo model alone, and goes by the tag without `-echo` as well. Raises
    binaries.Unavailable where images cannot be built, binaries.BuildFailed with what the build said.
    """
    kept = binaries.cache_folder() / "images"
    folder = kept / state()
    if not folder.is_dir():
        kept.mkdir(exist_ok=True)
        with binaries.one_at_a_time(kept / "lock"):
            if not folder.is_dir():
                _build(folder)
                _forget_old(kept)
    return {part: folder / f"carpool-{part}.tar" for part in PARTS}


def load(cluster: clusters.Cluster) -> str:
    """Loads the images into all nodes, unless they are there. Returns the digest of their sources."""
    wanted, files = state(), archives()
    admin = client.Client(cluster.kubeconfig)
    try:
        if _mark_of(admin) != wanted:
            for part, archive in files.items():
                binaries.say(f"loading carpool-{part}")
                cluster.load(archive)
            _mark(admin, wanted)
    finally:
        admin.close()
    return wanted


def _build(folder: Path) -> None:
    binaries.say("building the product's images; the first time takes some minutes")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        command = [sys.executable, str(SCRIPTS / "images.py"), "--torch", "none", "--output", str(made)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == NOT_HERE:
            raise binaries.Unavailable(f"no images: {done.stdout.strip().splitlines()[-1]}")
        if done.returncode:
            raise binaries.BuildFailed(f"`{' '.join(command)}`:\n{done.stdout}")
        _name_twice(made / "carpool-predictor.tar")
        made.rename(folder)  # complete or not there at all
    binaries.say(f"built in {time.monotonic() - start:.0f} s")


def _forget_old(kept: Path) -> None:
    folders = sorted((path for path in kept.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in folders[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _name_twice(archive: Path) -> None:
    """Gives an image in an archive its tag without `-echo` as well: the one that the manifests name."""
    named = archive.with_suffix(".named")
    with tarfile.open(archive) as old, tarfile.open(named, "w") as new:
        for member in old:
            content = old.extractfile(member) if member.isreg() else None
            if member.name == "manifest.json" and content is not None:
                text = json.dumps(_with_both_names(json.load(content))).encode()
                member.size, content = len(text), io.BytesIO(text)
            new.addfile(member, content)
    named.rename(archive)


def _with_both_names(manifest: list[client.Object]) -> list[client.Object]:
    for image in manifest:
        names = image["RepoTags"]
        image["RepoTags"] = sorted({*names, *(name.removesuffix("-echo") for name in names)})
    return manifest


def _mark_of(admin: client.Client) -> str:
    try:
        return str(admin.get("ConfigMap", MARK[1], MARK[0])["data"]["state"])
    except client.Refused:
        return ""


def _mark(admin: client.Client, word: str) -> None:
    namespace, name = MARK
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    try:
        admin.create({**made, "data": {"state": word}})
    except client.Refused:
        admin.patch("ConfigMap", name, {"data": {"state": word}}, namespace)
