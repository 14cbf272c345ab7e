"""The base of a build: a public Python image, or, where no registry can be reached, Debian's Python by mmdebstrap."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import image_engines

# The same release of Debian, and so the same Python, as the public image that the Dockerfiles name.
SUITE = "trixie"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
# As images and Debian name architectures, by what the kernel says.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Unavailable(Exception):
    """There is no base to build on; the message says why and what to do."""


def named_in(dockerfile: str) -> str:
    """The base that a Dockerfile names."""
    found = re.search(r"(?m)^ARG BASE=(\S+)$", dockerfile)
    if found is None:
        raise Unavailable("the Dockerfile has no line ARG BASE=…")
    return found[1]


def cache_folder() -> Path:
    """Where bases are kept, outside the checkout; made if it is missing."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carpool" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def recipe(target: str, mirror: str = "", architecture: str = "") -> list[str]:
    """The command that makes the base, as an archive of its files. Debian names architectures as images do.

    Who names the machine's own gets the base that everybody has, and with it what was built on that.
    """
    architecture = "" if architecture == ARCHITECTURES.get(platform.machine()) else architecture
    chosen = ["--variant=minbase", "--components=main", f"--include={','.join(PACKAGES)}", "--format=tar"]
    chosen += [f"--architectures={architecture}"] if architecture else []
    return ["mmdebstrap", *chosen, SUITE, target, *([mirror] if mirror else [])]


def key(words: Iterable[str]) -> str:
    """A name for what a recipe makes: the same words, the same name."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def make(
    engine: image_engines.Engine,
    say: Callable[[str], None],
    mirror: str = "",
    architecture: str = "",
    *,
    again: bool = False,
) -> str:
    """The name of a base with Debian's Python, made now if it is not there. Raises Unavailable."""
    version = f"{SUITE}-{key(recipe('base.tar', mirror, architecture))}"
    name, tar = f"localhost/carpool-base:{version}", cache_folder() / f"{version}.tar"
    if again or not tar.exists():
        bootstrap(tar, mirror, architecture, say)
        engine.add_base(tar, name, architecture)
    elif engine.image(name) is None:
        engine.add_base(tar, name, architecture)
    return name


def bootstrap(tar: Path, mirror: str, architecture: str, say: Callable[[str], None]) -> None:
    """Makes the base's archive, whole or not at all. Raises Unavailable."""
    if shutil.which("mmdebstrap") is None:
        raise Unavailable(
            "no registry answers, and mmdebstrap, which makes a base without one, is not here;"
            " install it (Debian, Ubuntu: apt-get install mmdebstrap), or name a base that is here: --base IMAGE"
        )
    kind = f" for {architecture}" if architecture else ""
    say(f"making a base of Debian {SUITE}{kind} with {', '.join(PACKAGES)}; once, about 40 s")
    start = time.monotonic()
    partial = tar.with_name(f"{tar.name}.{os.getpid()}")
    try:
        image_engines.run(recipe(str(partial), mirror, architecture), environment={"SOURCE_DATE_EPOCH": "0"})
        partial.rename(tar)
    except image_engines.Failed as error:
        foreign = "\nanother architecture needs emulation (Debian: apt-get install qemu-user-static arch-test)"
        raise Unavailable(f"mmdebstrap could not make a base: {error}{foreign if architecture else ''}") from None
    finally:
        partial.unlink(missing_ok=True)
    say(f"made in {time.monotonic() - start:.0f} s, {tar.stat().st_size / 1e6:.0f} MB: {tar}")
