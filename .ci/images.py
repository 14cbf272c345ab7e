"""Builds the images: `make images`. With docker or buildah, whichever is here, and nothing else but Python.

    python .ci/images.py                                       all three
    python .ci/images.py --only sidecar --output sidecar.tar   one, as an archive for `ctr images import`
    python .ci/images.py --check-reproducible                  builds each once more and compares
    python .ci/images.py --pure                                the sidecar as plain Python, which needs no compiler
    python .ci/images.py --arch arm64                          for the other architecture
    python .ci/images.py --push registry.example.com/team      and pushes them there

The sidecar's hot path is compiled, by a C compiler that the build stage takes from Debian. Where none can be had a line
says so, and the image has plain Python, which is slower and does the same.

The same commit on the same base gives the same layers. Files have the same time in all commits (SOURCE_DATE_EPOCH
changes it), so that a layer in which nothing changed keeps its digest and is not pulled again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import image_base
import image_engines
import image_index
import predictor_packages

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("sidecar", "injector", "predictor")
LOGS = ROOT / "out" / "images"
LAYERS = ("interpreter", "packages", "program")
NO_COMPILER = "the tools to compile with cannot be had here"  # the sidecar's Dockerfile says so
STEP = re.compile(r"(?:\[\d/\d\] )?(STEP \d+/\d+: .*)|#\d+ (\[.*)")


class Problem(Exception):
    """The images cannot be built as asked; the message says why and what to do."""


def say(words: str) -> None:
    print(f"images: {words}", flush=True)


def git(*words: str) -> str:
    asked = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else ""


def labels() -> dict[str, str]:
    """What the images say about their source. In a checkout with changes the commit is marked as such."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    commit, when = git("rev-parse", "HEAD"), int(git("log", "-1", "--format=%ct") or 0)
    changed = "-dirty" if git("status", "--porcelain", "--", *PARTS, ".ci", ".dockerignore") else ""
    created = datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"version": version, "revision": f"{commit}{changed}" if commit else "unknown", "created": created}


def tag_of(part: str, tag: str, torch: str) -> str:
    """The tag tells which models a predictor can serve; without a word it is MiniLM on CPUs."""
    return tag + {"cuda": "-cuda", "none": "-echo"}.get(torch, "") if part == "predictor" else tag


def choose_torch(wanted: str) -> str:
    """Which build of torch goes into the predictor: none, cpu or cuda."""
    if wanted != "auto":
        return wanted
    if predictor_packages.answers(predictor_packages.CPU_INDEX, predictor_packages.PROBE_SECONDS):
        return "cpu"
    say("the index of torch's CPU builds does not answer: the predictor gets the echo model alone")
    say("  (--torch cuda takes the build for GPUs from the package index, about 5 GB)")
    return "none"


def choose_base(engine: image_engines.Engine, wanted: argparse.Namespace) -> str:
    """The base to build on: the one asked for, else the public one, else one made here."""
    named = wanted.base or image_base.named_in((ROOT / "sidecar" / "Dockerfile").read_text())
    if named == "debian":
        return image_base.make(engine, say, wanted.debian_mirror, wanted.arch, again=wanted.refresh_base)
    here = engine.image(named)
    if here is not None and wanted.arch in ("", here.architecture) and not wanted.refresh_base:
        return str(named)
    try:
        say(f"pulling {named}")
        engine.pull(named, plain_http=wanted.plain_http, architecture=wanted.arch)
    except image_engines.Failed as error:
        reason = str(error).strip().splitlines()[-1].strip()
        if wanted.base:
            raise Problem(f"the base {named} cannot be had: {reason}") from None
        say(f"it cannot be had ({reason}); taking Debian's Python instead")
        return image_base.make(engine, say, wanted.debian_mirror, wanted.arch, again=wanted.refresh_base)
    return str(named)


class Builder:
    """Builds images with one engine on one base; `folder` is for secrets and archives on their way."""

    def __init__(self, engine: image_engines.Engine, base: str, torch: str, wanted: argparse.Namespace, folder: Path):
        self._engine = engine
        self._torch = torch
        self._wanted = wanted
        self._folder = folder
        LOGS.mkdir(parents=True, exist_ok=True)
        self._secrets = image_index.secrets(os.environ, folder)
        self._base = base
        self._is_pure = bool(wanted.pure)
        self._labels = {**labels(), "base.name": base.removeprefix("localhost/")}

    def name(self, part: str) -> str:
        tag = tag_of(part, self._wanted.tag or self._labels["version"], self._torch)
        return f"carpool-{part}:{tag}" + (f"-{self._wanted.arch}" if self._wanted.arch else "")

    def build(self, part: str, *, fresh: bool = False) -> image_engines.Image:
        """Builds one image, and says how long it took and what its layers weigh. Raises image_engines.Failed."""
        recipe = self._recipe(part, fresh)
        say(f"building {recipe.name}{' from nothing' if fresh else ''}")
        start = time.monotonic()
        log = LOGS / ("-".join(filter(None, (part, self._wanted.arch))) + ".log")
        log.unlink(missing_ok=True)
        try:
            image_engines.run(self._engine.build_command(recipe, ROOT), log, self._tell)
        except image_engines.Failed:
            # Whoever asked for a compiled one gets no other, and what does not compile is no reason to go without.
            if recipe.arguments.get("COMPILED") != "yes" or self._wanted.compiled or not has_no_compiler(log):
                raise
            say(f"  {NO_COMPILER} (see {log}):")
            say("  the sidecar is built as plain Python, which is slower and does the same (--compiled: or not at all)")
            self._is_pure = True
            return self.build(part, fresh=fresh)
        built = self._engine.image(recipe.name)
        if built is None:
            raise Problem(f"{recipe.name} was built, and is not there; see {log}")
        say(f"  {built.size / 1e6:.1f} MB in {time.monotonic() - start:.0f} s, image {built.id[:12]}")
        for title, digest in zip(LAYERS, built.layers, strict=False):
            say(f"    {title:11} {digest}")
        return built

    def check(self, part: str) -> list[Path]:
        """Builds one image, then once more from nothing; where the layers differ, both as archives, to be compared.

        The first build may use layers that the engine has kept: of the same sources, and made at another time.
        """
        archives = [LOGS / f"{part}-{number}.tar" for number in (1, 2)]
        before = self._engine.leftovers()
        first = self.build(part)
        self._engine.save(self.name(part), archives[0])
        if self.build(part, fresh=True).layers != first.layers:
            self._engine.save(self.name(part), archives[1])
            return archives
        archives[0].unlink()
        self._engine.remove(self._engine.leftovers() - before)
        return []

    def _recipe(self, part: str, fresh: bool) -> image_engines.Recipe:
        arguments = {"BASE": self._base}
        if part == "predictor":
            arguments |= {"TORCH": self._torch, "TORCH_CPU_INDEX": predictor_packages.CPU_INDEX}
            arguments |= {"TORCH_CPU_SHA256": os.environ.get("TORCH_CPU_SHA256", "")}
        if part == "sidecar":
            arguments |= {"COMPILED": "no" if self._is_pure else "yes"}
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
        dockerfile = ROOT / part / "Dockerfile"
        # buildah's cache knows no times: it would give layers of another epoch.
        fresh = fresh or "SOURCE_DATE_EPOCH" in os.environ
        return image_engines.Recipe(
            dockerfile, self.name(part), arguments, self._labels, self._secrets, epoch, fresh, self._wanted.arch
        )

    def _tell(self, line: str) -> None:
        step = STEP.match(line)
        if self._wanted.verbose:
            print(line, flush=True)
        elif step and sys.stdout.isatty():
            say(f"  {(step[1] or step[2])[:100]}")


def has_no_compiler(log: Path) -> bool:
    """Whether a build failed because there is nothing to compile with."""
    return any(line.endswith(NO_COMPILER) for line in log.read_text(errors="replace").splitlines())


def target_of(output: Path, part: str, parts: Sequence[str]) -> Path:
    """The file for one image: `output` itself, or within it if it is a folder. Raises Problem."""
    if output.is_dir():
        return output / f"carpool-{part}.tar"
    if len(parts) > 1:
        raise Problem(f"--output {output}: several images need a folder that is there; or choose one with --only")
    if not output.parent.is_dir():
        raise Problem(f"--output {output}: there is no folder {output.parent}; make it, or name another file")
    return output


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", action="append", choices=PARTS, help="this image; may be repeated (all)")
    add("--engine", choices=["auto", "docker", "buildah"], default="auto", help="what builds (whichever is here)")
    add(
        "--base", default="", metavar="IMAGE", help="with Python, Debian or like it; debian: make one, from no registry"
    )
    add("--refresh-base", action="store_true", help="pull or make the base again, with its latest fixes")
    add("--debian-mirror", default="", metavar="URL", help="where a base that is made takes its packages")
    add(
        "--torch",
        choices=["auto", "none", "cpu", "cuda"],
        default="auto",
        help="the predictor's build (cpu, else none)",
    )
    add(
        "--arch",
        choices=["amd64", "arm64"],
        default="",
        help="of the images, which are tagged with it (this machine's); the other one is built under emulation, where"
        " the machine has it (Debian: apt-get install qemu-user-static arch-test)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--compiled", action="store_true", help="fail where the sidecar's hot path cannot be compiled")
    how.add_argument("--pure", action="store_true", help="leave the sidecar as plain Python: quicker to build")
    add("--tag", default="", help="of the images (the version)")
    add("--push", default="", metavar="REGISTRY/PATH", help="where to push them")
    add("--plain-http", action="store_true", help="registries without TLS, for bases and pushes")
    add("--output", type=Path, metavar="PATH", help="write archives: a file for one image, a folder for several")
    add("--check-reproducible", action="store_true", help="build each again from nothing; fail if layers differ")
    add("--network", default="", help="of the builds (buildah: host)")
    add("--verbose", action="store_true", help="show all that the builds print")
    return parser.parse_args(argv)


def make(wanted: argparse.Namespace, folder: Path) -> int:
    """Builds what is wanted. Returns 1 if layers of two builds differ."""
    parts = [part for part in PARTS if part in (wanted.only or PARTS)]
    targets = {part: target_of(wanted.output, part, parts) for part in parts} if wanted.output else {}
    engine = image_engines.find(wanted.engine, wanted.network)
    say(f"engine {engine.title}")
    torch = choose_torch(wanted.torch) if "predictor" in parts else "none"
    base = choose_base(engine, wanted)
    say(f"base {base}")
    builder = Builder(engine, base, torch, wanted, folder)
    unlike = 0
    for part in parts:
        if wanted.check_reproducible:
            found = builder.check(part)
            unlike += bool(found)
            say(f"  {builder.name(part)}: {'the layers differ' if found else 'the same layers in both builds'}")
            if found:
                say(f"    in what: diffoscope {' '.join(map(str, found))}")
        else:
            builder.build(part)
        if part in targets:
            engine.save(builder.name(part), targets[part])
            say(f"  written to {targets[part]}")
        if wanted.push:
            target = f"{wanted.push.rstrip('/')}/{builder.name(part)}"
            say(f"  pushed: {target}@{engine.push(builder.name(part), target, plain_http=wanted.plain_http)}")
    return 1 if unlike else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when all is built, 1 when a build failed or layers differ, 2 when it cannot be done as asked."""
    wanted = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="carpool-images-") as folder:
        try:
            return make(wanted, Path(folder))
        except image_engines.Failed as error:
            print(f"images: error: {error}", file=sys.stderr)
            return 1
        except (Problem, image_engines.Missing, image_base.Unavailable) as error:
            print(f"images: error: {error}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
