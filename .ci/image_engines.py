"""The engine that builds images: docker or buildah, whichever is installed, behind one interface for `make images`.

They build; this says the same to both in their words.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LINES_SHOWN = 30
# BuildKit, and no notes on the build beside the image: these hold times.
FOR_DOCKER = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
ANSWER_SECONDS = 15.0


class Failed(Exception):
    """A command of the engine failed; the message has its last words."""


class Missing(Exception):
    """There is no engine here; the message says what to install."""


@dataclass(frozen=True)
class Recipe:
    """One build: all that decides what comes out, and the secrets that do not."""

    dockerfile: Path
    name: str
    arguments: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    epoch: int = 0  # the time of all files, in seconds since 1970
    fresh: bool = False  # nothing from earlier builds but pip's downloads
    architecture: str = ""  # as images name it, such as arm64; empty: this machine's


@dataclass(frozen=True)
class Image:
    """What was built: its id, the digests of its layers as they unpack, its size unpacked in bytes, and for what."""

    id: str
    layers: tuple[str, ...]
    size: int
    architecture: str


def run(
    command: Sequence[str],
    log: Path | None = None,
    tell: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The command's output, which also goes to `log` and, line by line, to `tell`. Raises Failed."""
    lines: list[str] = []
    with (
        (log or Path(os.devnull)).open("a", buffering=1) as copy,
        subprocess.Popen(
            command,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **FOR_DOCKER, **(environment or {})},
        ) as it,
    ):
        for line in it.stdout or ():
            copy.write(line)
            lines.append(line)
            if tell:
                tell(line.rstrip())
    if it.returncode:
        words = "".join(f"  {line}" for line in lines[-LINES_SHOWN:]).rstrip()
        where = f"\n(all of it: {log})" if log else ""
        raise Failed(f"`{' '.join(command[:3])} …` ended with status {it.returncode}:\n{words}{where}")
    return "".join(lines)


def answer(command: Sequence[str]) -> str | None:
    """What the command prints on standard output; None if it fails or takes too long."""
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def build_options(recipe: Recipe) -> list[str]:
    """The options that docker and buildah understand alike."""
    arguments = {**recipe.arguments, "SOURCE_DATE_EPOCH": str(recipe.epoch)}
    options = ["--file", str(recipe.dockerfile), "--tag", recipe.name]
    for key, value in sorted(arguments.items()):
        options += ["--build-arg", f"{key}={value}"]
    # Labels that change with the commit are given here: buildah takes steps with other arguments from its cache.
    for key, value in sorted(recipe.labels.items()):
        options += ["--label", f"org.opencontainers.image.{key}={value}"]
    for key, path in sorted(recipe.secrets.items()):
        options += ["--secret", f"id={key},src={path}"]
    options += platform(recipe.architecture)
    return options + (["--no-cache"] if recipe.fresh else [])


def platform(architecture: str) -> list[str]:
    """The option that docker and buildah have for another architecture than this machine's."""
    return ["--platform", f"linux/{architecture}"] if architecture else []


class Docker:
    """Docker with BuildKit."""

    def __init__(self, network: str = "") -> None:
        self._network = network

    @property
    def title(self) -> str:
        return f"docker {answer(['docker', 'info', '--format', '{{.ServerVersion}}'])}"

    def build_command(self, recipe: Recipe, context: Path) -> list[str]:
        network = ["--network", self._network] if self._network else []
        return ["docker", "build", "--progress", "plain", *network, *build_options(recipe), str(context)]

    def image(self, name: str) -> Image | None:
        found = answer(["docker", "image", "inspect", name])
        if found is None:
            return None
        facts = json.loads(found)[0]
        layers = tuple(facts["RootFS"]["Layers"])
        return Image(facts["Id"].removeprefix("sha256:"), layers, int(facts["Size"]), facts["Architecture"])

    def pull(self, name: str, *, plain_http: bool, architecture: str = "") -> None:
        """Pulls; docker decides by its own configuration which registries speak plain HTTP."""
        run(["docker", "pull", "--quiet", *platform(architecture), name])

    def leftovers(self) -> set[str]:
        """Images without a name that builds leave; docker's own cache collects them by itself."""
        return set()

    def remove(self, ids: Iterable[str]) -> None:
        pass

    def add_base(self, tar: Path, name: str, architecture: str = "") -> None:
        run(["docker", "import", *platform(architecture), str(tar), name])

    def save(self, name: str, file: Path) -> None:
        run(["docker", "save", "--output", str(file), name])

    def push(self, name: str, target: str, *, plain_http: bool) -> str:
        """Pushes, and returns the digest of what the registry then has."""
        run(["docker", "tag", name, target])
        run(["docker", "push", "--quiet", target])
        digests = answer(["docker", "image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', target]) or ""
        repository = target.rpartition(":")[0]
        return next((line.rpartition("@")[2] for line in digests.splitlines() if line.startswith(f"{repository}@")), "")


class Buildah:
    """buildah, which needs no daemon."""

    def __init__(self, network: str = "") -> None:
        self._network = network or "host"

    @property
    def title(self) -> str:
        return f"buildah {(answer(['buildah', '--version']) or '').removeprefix('buildah version ').partition(' ')[0]}"

    def build_command(self, recipe: Recipe, context: Path) -> list[str]:
        # chroot works wherever buildah does, in a container and without cgroups too; the operator's choice wins.
        isolation = os.environ.get("BUILDAH_ISOLATION", "chroot")
        how = ["--layers", "--isolation", isolation, "--network", self._network]
        same = ["--timestamp", str(recipe.epoch), "--identity-label=false"]
        return ["buildah", "build", *how, *same, *build_options(recipe), str(context)]

    def image(self, name: str) -> Image | None:
        found = answer(["buildah", "inspect", "--type", "image", name])
        sizes = answer(["buildah", "images", "--json", name])
        if found is None or sizes is None:
            return None
        facts, listed = json.loads(found), json.loads(sizes)[0]
        about = facts["OCIv1"]
        layers = tuple(about["rootfs"]["diff_ids"])
        return Image(facts["FromImageID"], layers, to_bytes(listed["size"]), about["architecture"])

    def pull(self, name: str, *, plain_http: bool, architecture: str = "") -> None:
        run(["buildah", "pull", "--quiet", tls(plain_http), *platform(architecture), name])

    def leftovers(self) -> set[str]:
        """Images without a name that builds leave: steps for the next build to start from."""
        listed = json.loads(answer(["buildah", "images", "--all", "--json"]) or "null") or []
        return {entry["id"] for entry in listed if not entry.get("names")}

    def remove(self, ids: Iterable[str]) -> None:
        """Removes images, less those that others are made of."""
        remaining = sorted(ids)
        # One at a time, and again: a step can go once the steps on top of it are gone.
        while remaining:
            kept = [one for one in remaining if answer(["buildah", "rmi", one]) is None]
            if len(kept) == len(remaining):
                return
            remaining = kept

    def add_base(self, tar: Path, name: str, architecture: str = "") -> None:
        container = run(["buildah", "from", *platform(architecture), "scratch"]).strip()
        try:
            run(["buildah", "add", "--quiet", container, str(tar), "/"])
            run(["buildah", "commit", "--quiet", "--timestamp", "0", container, name])
        finally:
            run(["buildah", "rm", container])

    def save(self, name: str, file: Path) -> None:
        file.unlink(missing_ok=True)  # an archive is added to, not replaced
        run(["buildah", "push", "--quiet", name, f"docker-archive:{file}:{name}"])

    def push(self, name: str, target: str, *, plain_http: bool) -> str:
        """Pushes, and returns the digest of what the registry then has."""
        with tempfile.TemporaryDirectory() as folder:
            digest = Path(folder) / "digest"
            run(
                ["buildah", "push", "--quiet", tls(plain_http), "--digestfile", str(digest), name, f"docker://{target}"]
            )
            return digest.read_text().strip()


Engine = Docker | Buildah


def tls(plain_http: bool) -> str:
    """buildah's word for a registry with or without TLS."""
    return f"--tls-verify={str(not plain_http).lower()}"


def to_bytes(size: str | int) -> int:
    """ "86.9 MB", as buildah writes sizes, in bytes."""
    number, _, unit = str(size).partition(" ")
    return round(float(number) * {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])


def find(wanted: str, network: str = "") -> Engine:
    """The engine to build with: "docker", "buildah", or "auto". Raises Missing."""
    docker, buildah = shutil.which("docker") is not None, shutil.which("buildah") is not None
    if wanted in ("docker", "auto") and docker and can_build_with_docker():
        return Docker(network)
    if wanted in ("buildah", "auto") and buildah:
        return Buildah(network)
    if wanted != "buildah" and docker:
        raise Missing(
            "docker is here, but its daemon does not answer, or its BuildKit (buildx) is missing;"
            " start or install it, or install buildah, which needs neither"
        )
    raise Missing("images are built with docker or buildah, and neither is here; Debian: apt-get install buildah")


def can_build_with_docker() -> bool:
    """Whether the daemon answers and the client has BuildKit: since version 23 that is a plugin of its own."""
    if not answer(["docker", "info", "--format", "{{.ID}}"]):
        return False
    client = answer(["docker", "version", "--format", "{{.Client.Version}}"]) or "0"
    return int(client.partition(".")[0]) < 23 or answer(["docker", "buildx", "version"]) is not None
