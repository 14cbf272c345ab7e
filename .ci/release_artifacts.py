"""What a release consists of, as files in one folder: packages, images of two architectures, the chart, a manifest.

    packages/   a source distribution and a wheel of each of the four, and compiled wheels of two, by .ci/wheels.py
    images/     carpool-sidecar-amd64.tar and so on: archives as `docker load` and `crane push` read them
    chart/      carpool-1.2.3.tgz, whose default values name the released images by digest
    install.yaml, notes.md
    page/       what the release's page offers, as it lies there: packages, chart, bills of materials, install.yaml, and
                SHA256SUMS of all these

Nothing here needs a network but the builds themselves, and nothing is published.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import release_versions
from release_versions import ROOT, Problem
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

PARTS = ("sidecar", "injector", "predictor")
ARCHITECTURES = ("amd64", "arm64")
SUMS = "SHA256SUMS"
_OFFERED = ("packages/*", "chart/*", "bills/*", "install.yaml")

Say = Callable[[str], None]


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, shown: bool = False) -> str:
    """What a command prints, both streams; with `shown` it prints that itself, as it goes. Raises Problem."""
    words = [str(word) for word in command]
    settings = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=settings,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
        )
    except FileNotFoundError:
        raise Problem(f"there is no {words[0]} on PATH") from None
    if done.returncode:
        last = "".join(f"\n  {line}" for line in (done.stdout or "").splitlines()[-20:])
        raise Problem(f"`{' '.join(words[:4])} …` ended with status {done.returncode}{last}")
    return done.stdout or ""


def packages(folder: Path, more: Sequence[str]) -> None:
    """Source distributions and wheels, into packages/; `more` goes to `.ci/wheels.py`. Raises Problem."""
    made = folder / "packages"
    if "compiled" not in more:  # these lie beside plain ones
        shutil.rmtree(made, ignore_errors=True)
    run([sys.executable, ROOT / ".ci" / "wheels.py", made, "--uv", _uv(), *more], shown=True)


def images(folder: Path, architectures: Iterable[str], parts: Iterable[str], more: Sequence[str], say: Say) -> None:
    """Images of each architecture as archives, into images/; `more` goes to `.ci/images.py`. Raises Problem."""
    made = folder / "images"
    made.mkdir(parents=True, exist_ok=True)
    for architecture in architectures:
        for part in parts:
            target = made / f"carpool-{part}-{architecture}.tar"
            say(f"building {target.name}")
            build = [sys.executable, ROOT / ".ci" / "images.py", "--only", part, "--arch", architecture]
            run([*build, "--output", target, *more], shown=True)


def chart(folder: Path, helm: Path, version: str, references: Mapping[str, str], say: Say) -> Path:
    """The chart as a package with the released images as its defaults, and install.yaml of it. Raises Problem.

    `references` has for "sidecar" and "injector" the image as `registry/path/name:tag@sha256:…`.
    """
    made = _emptied(folder / "chart")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "carpool"
        shutil.copytree(ROOT / "charts" / "carpool", copy)
        values = copy / "values.yaml"
        values.write_text(with_images(values.read_text(), references))
        say("packing the chart")
        run([helm, "lint", "--strict", copy])
        run([helm, "package", copy, "--destination", made])
        rendered = run([helm, "template", "carpool", copy, "--namespace", "carpool-system"])
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: carpool-system\n"
    (folder / "install.yaml").write_text(f"# Carpool {version} without Helm\n{namespace}{rendered}")
    return made / f"carpool-{version}.tgz"


def with_images(values: str, references: Mapping[str, str]) -> str:
    """The chart's values, comments and all, with these images as defaults."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.Representer = _Representer
    document = yaml.load(values)
    where, _, digest = references["injector"].partition("@")
    path, _, tag = where.rpartition(":")
    registry, _, repository = path.partition("/")
    document["config"]["image"] = references["sidecar"]
    document["image"].update(registry=registry, repository=repository, tag=tag, digest=digest)
    text = io.StringIO()
    yaml.dump(document, text)
    return text.getvalue()


class _Representer(RoundTripRepresenter):
    """Writes null as the chart does."""

    def represent_none(self, data: None) -> ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(type(None), _Representer.represent_none)


def notes(folder: Path, version: str) -> Path:
    """notes.md: what the changelog says of the version. Raises Problem if that is nothing."""
    said = release_versions.notes(version, (ROOT / release_versions.CHANGELOG).read_text())
    if not said:
        raise Problem(f"{release_versions.CHANGELOG} says nothing of {version}")
    path = folder / "notes.md"
    path.write_text(said + "\n")
    return path


def page(folder: Path) -> Path:
    """page/, with copies of what users download, and their SHA256SUMS, whose path it returns. Raises Problem.

    A release's page has no folders, so the sums name the files without them: else nobody could check a download.
    """
    made = _emptied(folder / "page")
    for file in sorted(file for pattern in _OFFERED for file in folder.glob(pattern)):
        if (made / file.name).exists():
            raise Problem(f"two files of the release are called {file.name}; its page takes one")
        shutil.copyfile(file, made / file.name)
    files = sorted(made.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    listed = made / SUMS
    listed.write_text("".join(lines))
    return listed


def check_sums(listed: Path) -> None:
    """Check every file that SHA256SUMS names, as its reader would. Raises Problem."""
    said = f"--check --strict --quiet {SUMS}"
    run(["env", "--chdir", listed.parent, "sha256sum", *said.split()])


def _uv() -> Path:
    """uv of this environment, else from PATH."""
    own = Path(sys.prefix, "bin", "uv")
    found = own if own.is_file() else shutil.which("uv")
    if not found:
        raise Problem("there is no uv here: `make .venv/.tests` installs it")
    return Path(found)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
