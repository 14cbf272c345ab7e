"""Fixtures of the tests of the images: the images, built once and unpacked.

CARPOOL_IMAGES has more options of `.ci/images.py` for them: "--arch arm64 --pure" builds those of the other
architecture, and runs their programs under emulation.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from e2e.images import archives, container

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / ".ci"
# The program's own status for "cannot be done here": no engine, no base.
NOT_HERE = 2

Start = Callable[..., container.Container]


def make_images(*options: str) -> subprocess.CompletedProcess[str]:
    """Runs `make images`; skips the test where that cannot be done."""
    command = [sys.executable, str(SCRIPTS / "images.py"), "--torch", "none", "--tag", "e2e", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == NOT_HERE:
        pytest.skip(f"no images to test: {done.stdout.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout
    return done


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, container.Image]:
    """The three images by name, unpacked. Skips where they cannot be built, or containers not be started."""
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("no images to test: their containers are started with runc, by root")
    uncaptured = request.config.pluginmanager.getplugin("capturemanager")
    folder = tmp_path_factory.mktemp("images")
    with uncaptured.global_and_fixture_disabled():
        print("images: building them; the first time takes some minutes", file=sys.stderr, flush=True)
    make_images("--output", str(folder), *shlex.split(os.environ.get("CARPOOL_IMAGES", "")))
    unpacked = {}
    for file in sorted(folder.glob("*.tar")):
        name, root = file.stem.removeprefix("carpool-"), folder / file.stem
        root.mkdir(mode=0o755)
        with archives.opened(file) as archive:
            archive.unpack(root)
            unpacked[name] = container.Image(name, root, archive.config)
    return unpacked


@pytest.fixture
def start(images: Mapping[str, container.Image], tmp_path: Path) -> Iterator[Start]:
    """Starts containers, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(name: str, arguments: Sequence[str], mounts: Mapping[str, Path] | None = None) -> container.Container:
            started = container.Container(images[name], arguments, tmp_path, mounts)
            stack.callback(started.stop)
            return started

        yield start
