"""The version in the checkout: where it is written, how a release is cut, and whether a tag agrees with all of it.

Four distributions, the chart, manifests, samples and documents name one version, since they are released together.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (".", "sidecar", "injector", "predictor")
CHANGELOG = "CHANGELOG.md"

# What stands before and after the version (%) wherever it is ours. The same digits elsewhere are other people's
# packages, tables of what was measured, and pictures.
_CONTEXTS = (
    r'(?m)^((?:__version__|version) = ")%(")',
    r'("carpool(?:-\w+)?==)%(")',
    r"(carpool-(?:sidecar|injector|predictor):)%\b()",
    r"(?m)^((?:version|appVersion): )%($)",
    r'(app\.kubernetes\.io/version: "?)%\b()',
    r"(all sidecars are of version )%\b()",
    r"(--tag )%\b()",
    r"(name: carpool, version: )%(,)",
)
# So many files that are not committed are named.
_NAMED = 20
_OTHERS = (".svg", ".png", ".sum", ".mod", ".lock", ".txt")
# What is a version for Helm (SemVer) and for Python (PEP 440) alike.
_DIGITS = "(?:0|[1-9][0-9]*)"
_NUMBER = rf"{_DIGITS}\.{_DIGITS}\.{_DIGITS}(?:-(?:a|b|rc)\.?{_DIGITS})?"
_HEADING = re.compile(rf"(?m)^## (?P<version>Unreleased|{_NUMBER})(?: - (?P<date>\d{{4}}-\d\d-\d\d))?$")


class Problem(Exception):
    """The release cannot go on; the message says what is wrong, where, and what to do."""


def current(root: Path = ROOT) -> str:
    """The version of the checkout, as the first of its distributions has it."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def files(root: Path = ROOT) -> Iterator[Path]:
    """Every tracked file in which the version may stand. Raises Problem."""
    for name in _listed(root, "ls-files"):
        path = root / name
        if not name.endswith(_OTHERS) and name != CHANGELOG and path.is_file() and not path.is_symlink():
            yield path


def contexts(version: str) -> list[re.Pattern[str]]:
    """Patterns for the version where it is Carpool's; the groups 1 and 2 are what stands around it."""
    return [re.compile(context.replace("%", re.escape(version))) for context in _CONTEXTS]


def rewrite(text: str, old: str, new: str) -> str:
    """The text with the new version wherever the old one was Carpool's."""
    for pattern in contexts(old):
        text = pattern.sub(rf"\g<1>{new}\g<2>", text)
    return text


def cut(new: str, today: datetime.date, root: Path = ROOT) -> list[Path]:
    """Write a new version into the checkout, and date what is unreleased. The files that changed. Raises Problem."""
    if not re.fullmatch(_NUMBER, new):
        raise Problem(f"{new!r} is no version: write it as 1.2.3, or 1.2.3-rc.1")
    old, changed = current(root), []
    if Version(new) < Version(old):
        raise Problem(f"{new} is older than {old}, which the checkout is of")
    changelog = (root / CHANGELOG).read_text()
    if notes(new, changelog):
        raise Problem(f"{CHANGELOG} has a section for {new} already: that version was cut")
    if not notes("Unreleased", changelog):
        raise Problem(f"{CHANGELOG}: nothing stands under 'Unreleased'; say what changed for users first")
    if mine := _uncommitted(root):
        raise Problem(
            "these files are not committed, and a release would hold or miss them; commit, stash or ignore them:\n  "
            + "\n  ".join(mine[:_NAMED])
            + (f"\n  and {len(mine) - _NAMED} more" if len(mine) > _NAMED else "")
        )
    for path in files(root):
        try:
            before = path.read_text()
        except UnicodeDecodeError:
            continue
        after = rewrite(before, old, new)
        if after != before:
            path.write_text(after)
            changed.append(path)
    (root / CHANGELOG).write_text(changelog.replace("## Unreleased\n", f"## Unreleased\n\n## {new} - {today}\n", 1))
    return [*changed, root / CHANGELOG]


def _uncommitted(root: Path) -> list[str]:
    """Files that differ from the last commit, or that git neither has nor ignores."""
    return sorted(
        entry[3:] for entry in _listed(root, "status", "--porcelain", "--untracked-files=all", "--no-renames")
    )


def _listed(root: Path, *words: str) -> list[str]:
    """What git lists of a checkout. Raises Problem, as where there is none."""
    done = subprocess.run(
        ["git", *words, "-z"], cwd=root, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if done.returncode:
        raise Problem(f"git {words[0]}: {done.stderr.strip()}")
    return [entry for entry in done.stdout.split("\0") if entry]


def notes(version: str, changelog: str) -> str:
    """What the changelog says of a version, without its heading; empty if nothing."""
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading["version"] == version:
            return changelog[heading.end() : following.start() if following else None].strip()
    return ""


def check(tag: str, root: Path = ROOT) -> str:
    """The version that a tag names, if the whole checkout is of that version. Raises Problem."""
    found = re.fullmatch(rf"v({_NUMBER})", tag)
    if found is None:
        raise Problem(f"the tag {tag!r} names no version: v1.2.3, or v1.2.3-rc.1")
    version = found[1]
    wrong = [f"{where}: {said}" for where, said in _said(root) if said != version]
    if wrong:
        raise Problem(
            f"the tag says {version}, and these do not (`release.py cut {version}`):\n  " + "\n  ".join(wrong)
        )
    if not notes(version, (root / CHANGELOG).read_text()):
        raise Problem(f"{CHANGELOG} has no section '## {version} - YYYY-MM-DD'; `release.py cut {version}` makes it")
    return version


def _said(root: Path) -> Iterator[tuple[str, str]]:
    """Where releases tell their version, and what they tell."""
    for project in PROJECTS:
        path = root / project / "pyproject.toml"
        facts = tomllib.loads(path.read_text())["project"]
        yield str(path.relative_to(root)), str(facts["version"])
        for needed in facts.get("dependencies", ()):
            if pin := re.match(rf"carpool(?:-\w+)?==({_NUMBER})", needed):
                yield f"{path.relative_to(root)}, dependencies", pin[1]
    chart = (root / "charts" / "carpool" / "Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        stated = re.search(rf'(?m)^{key}: "?([^"\n]+)', chart)
        yield f"charts/carpool/Chart.yaml, {key}", stated[1] if stated else "nothing"
