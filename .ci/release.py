"""Makes and publishes releases: what the workflow of a tag runs, step by step, and what a person can rehearse.

    release.py cut 0.2.0                    write the version everywhere, and date what is unreleased, for a commit
    release.py check v0.2.0                 does the checkout agree with this tag?
    release.py packages                     source distributions and wheels
    release.py images --arch amd64          images for one architecture, as archives
    release.py publish REGISTRY/PATH        push images and chart, with bills of materials and signatures
    release.py verify REGISTRY/PATH         check all of that, as somebody else would
    release.py rehearse                     all of it, on a registry in memory and with a key that is thrown away

Files come into out/release (--folder). `make release-rehearsal` has what this needs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import release_artifacts as artifacts
import release_publishing as publishing
import release_versions as versions
from release_versions import ROOT, Problem

CHART = "chart.json"


def say(words: str) -> None:
    print(f"release: {words}", flush=True)


def find_helm() -> Path:
    """Helm from PATH, else the one that the tests have. Raises Problem."""
    if on_path := shutil.which("helm"):
        return Path(on_path)
    sys.path.insert(0, str(ROOT))
    from tests.charts import helm

    try:
        return helm.find()
    except helm.Unavailable as error:
        raise Problem(str(error)) from None


def cut(wanted: argparse.Namespace) -> None:
    changed = versions.cut(wanted.version, datetime.datetime.now(datetime.UTC).date())
    say(f"{len(changed)} files are of version {wanted.version}")
    say("next: `python -m tests.charts`, `python -m tests.tables`, `make test`, commit, and push the tag")
    say(f"  git tag --sign v{wanted.version} --message 'Carpool {wanted.version}'")


def check(wanted: argparse.Namespace) -> None:
    say(f"the checkout is of version {versions.check(wanted.tag)}, and the changelog has its section")


def packages(wanted: argparse.Namespace) -> None:
    artifacts.packages(wanted.folder, wanted.more)


def images(wanted: argparse.Namespace) -> None:
    architectures = wanted.arch or artifacts.ARCHITECTURES
    artifacts.images(wanted.folder, architectures, wanted.only or artifacts.PARTS, wanted.more, say)


def publish(wanted: argparse.Namespace) -> None:
    tools = _tools(wanted)
    signer = publishing.Signer(tools / "cosign")
    _publish(wanted, wanted.target, versions.current(), tools, signer, find_helm())


def verify(wanted: argparse.Namespace) -> None:
    references, chart = _published(wanted.folder)
    tools = _tools(wanted)
    signer = publishing.Signer(tools / "cosign", identity=wanted.identity)
    publisher = publishing.Publisher(wanted.folder, wanted.target, versions.current(), tools, signer, say)
    publisher.verify(references, chart)
    _verify_page(wanted, signer)


def rehearse(wanted: argparse.Namespace) -> None:
    """All steps in order; what is only here: notes of what is unreleased, a registry in memory, a key thrown away."""
    version, tools = versions.current(), _tools(wanted)
    artifacts.packages(wanted.folder, ["--only", "plain"] if wanted.plain else [])
    images(wanted)
    with tempfile.TemporaryDirectory() as scratch, publishing.registry(tools / "crane", say) as address:
        signer = publishing.Signer(tools / "cosign", publishing.new_key(tools / "cosign", Path(scratch)))
        target = f"{address}/carpool"
        _publish(wanted, target, version, tools, signer, find_helm())
        references, chart = _published(wanted.folder)
        publisher = publishing.Publisher(wanted.folder, target, version, tools, signer, say)
        publisher.verify(references, chart)
        _verify_page(wanted, signer)
        stranger = publishing.Signer(tools / "cosign", publishing.new_key(tools / "cosign", Path(scratch) / "other"))
        _expect_refusal(lambda: stranger.verify(chart), "another key's signature")


def _publish(
    wanted: argparse.Namespace, target: str, version: str, tools: Path, signer: publishing.Signer, helm: Path
) -> None:
    folder: Path = wanted.folder
    publisher = publishing.Publisher(folder, target, version, tools, signer, say)
    parts = wanted.only or artifacts.PARTS
    references = publisher.images(wanted.arch or artifacts.ARCHITECTURES, parts)
    publishing.check_bills(folder)
    say("each bill of materials names all pinned packages")
    if missing := {"sidecar", "injector"} - set(references):
        raise Problem(f"the chart needs the images of {' and '.join(sorted(missing))}; leave --only out")
    chart = publisher.chart(artifacts.chart(folder, helm, version, references, say), helm)
    (folder / CHART).write_text(json.dumps(chart) + "\n")
    artifacts.notes(folder, version if wanted.command == "publish" else "Unreleased")
    sums = artifacts.page(folder)
    signer.sign_file(sums)
    say(f"what the release's page offers is in {sums.parent}, with digests in {sums.name}, signed")


def _verify_page(wanted: argparse.Namespace, signer: publishing.Signer) -> None:
    sums = wanted.folder / "page" / artifacts.SUMS
    signer.verify_file(sums)
    artifacts.check_sums(sums)
    say(f"{sums.name} is signed, and names each file as it lies beside it")


def _published(folder: Path) -> tuple[dict[str, str], str]:
    """What `publish` pushed. Raises Problem."""
    try:
        return json.loads((folder / publishing.DIGESTS).read_text()), json.loads((folder / CHART).read_text())
    except FileNotFoundError as error:
        raise Problem(f"there is no {error.filename}: `release.py publish` writes it") from None
    except ValueError as error:
        raise Problem(f"{folder} has no list of what was published: {error}; `release.py publish` writes it") from None


def _expect_refusal(attempt: Callable[[], None], what: str) -> None:
    try:
        attempt()
    except Problem:
        say(f"{what} is refused")
    else:
        raise Problem(f"{what} was accepted: signatures are not checked")


def _tools(wanted: argparse.Namespace) -> Path:
    publishing.build_tools(wanted.tools, say)
    return Path(wanted.tools)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path.home() / ".cache" / "carpool" / "release"
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "release", help="where files come (out/release)")
    parser.add_argument("--tools", type=Path, default=cache, help=f"crane, cosign, syft; built if missing ({cache})")
    words = parser.add_subparsers(dest="command", required=True, metavar="WORD")

    def word(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        made = words.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    word("cut", cut, "write a version everywhere").add_argument("version", help="such as 0.2.0")
    word("check", check, "does the checkout agree with a tag?").add_argument("tag", help="such as v0.2.0")
    packing = word("packages", packages, "sdists and wheels, into packages/; options behind -- go to wheels.py")
    packing.add_argument("more", nargs="*", metavar="-- OPTION", help="of .ci/wheels.py, such as --only plain")
    building = [word("images", images, "images as archives, into images/; options behind -- go to images.py")]
    building.append(word("rehearse", rehearse, "all of it, published nowhere; options behind -- go to images.py"))
    publishing_words = [word("publish", publish, "push images and chart, with bills of materials and signatures")]
    publishing_words.append(word("verify", verify, "check what was published"))
    for one in [*building, publishing_words[0]]:
        one.add_argument("--arch", action="append", choices=artifacts.ARCHITECTURES, help="may be repeated (both)")
        one.add_argument("--only", action="append", choices=artifacts.PARTS, help="may be repeated (all three)")
    building[1].add_argument("--plain", action="store_true", help="no compiled wheels, which take minutes")
    for one in building:
        one.add_argument("more", nargs="*", metavar="-- OPTION", help="of .ci/images.py, such as --torch none")
    for one in publishing_words:
        one.add_argument("target", metavar="REGISTRY/PATH", help="such as ghcr.io/owner")
    publishing_words[1].add_argument(
        "--identity", required=True, help="who has to have signed: what certificates say, a regular expression"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when done, 1 when a step failed; the message says which and why."""
    wanted = arguments(argv)
    # Commands run in the checkout, wherever this one was started.
    wanted.folder, wanted.tools = wanted.folder.resolve(), wanted.tools.resolve()
    start = time.monotonic()
    try:
        if wanted.run not in (cut, check, verify):
            wanted.folder.mkdir(parents=True, exist_ok=True)
        wanted.run(wanted)
    except (Problem, OSError) as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 1
    say(f"`{wanted.command}` done in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
