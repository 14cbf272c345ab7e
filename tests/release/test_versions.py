"""One version in all that is released together, written by one command and held against the tag."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]

TODAY = datetime.date(2026, 11, 23)
# Tables of what was measured with a version that stays what it was, and what other people's programs say of themselves.
NOT_OURS = {"benchmarks/peers/README.md", "tests/doctor/test_identity.py"}


@pytest.fixture(scope="module")
def versions(script: Script) -> ModuleType:
    return script("release_versions")


# Beside the changelog, what a release cannot do without; the version stands in many other files.
PARTS = ("pyproject.toml", "*/pyproject.toml", "charts/carpool/Chart.yaml", "README.md", "LICENSE", "docs/api.md")


@pytest.fixture
def whole(versions: ModuleType, tmp_path: Path) -> Path:
    """A copy of all that is tracked of the checkout, in a repository of its own."""
    return copied(versions.ROOT, [*versions.files(), versions.ROOT / versions.CHANGELOG], tmp_path)


@pytest.fixture
def checkout(versions: ModuleType, tmp_path: Path) -> Path:
    """A copy of so much of it that a release can be cut."""
    root = versions.ROOT
    return copied(root, [path for part in (*PARTS, versions.CHANGELOG) for path in root.glob(part)], tmp_path)


def copied(root: Path, files: Iterable[Path], to: Path) -> Path:
    for path in files:
        target = to / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    subprocess.run(["git", "init", "--quiet"], cwd=to, check=True)
    commit(to)
    return to


def commit(root: Path) -> None:
    """All files of a repository, whatever the machine's own settings of git are."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for words in (["add", "--all", "--force"], [*who, "commit", "--quiet", "--no-verify", "--message=all"]):
        subprocess.run(["git", *words], cwd=root, check=True)


def texts(versions: ModuleType, root: Path) -> dict[str, str]:
    """What the files have in which the version may stand."""
    found = {}
    for path in versions.files(root):
        try:
            found[str(path.relative_to(root))] = path.read_text()
        except UnicodeDecodeError:
            continue
    return found


def test_cutting_a_release_writes_the_version_everywhere_and_changes_nothing_else(
    versions: ModuleType, whole: Path
) -> None:
    before, old = texts(versions, whole), versions.current(whole)
    versions.cut("9.8.7", TODAY, whole)
    after = texts(versions, whole)
    assert versions.check("v9.8.7", whole) == "9.8.7"
    changed = {name for name in before if before[name] != after[name]}
    assert len(changed) > 30
    for name in changed:
        assert after[name].replace("9.8.7", old) == before[name]
    alone = re.compile(rf"(?<![\d.]){re.escape(old)}(?![\d.])")
    assert {name for name, text in after.items() if alone.search(text)} <= NOT_OURS


def test_what_was_unreleased_is_dated_and_is_the_notes_of_the_release(versions: ModuleType, checkout: Path) -> None:
    changelog = checkout / versions.CHANGELOG
    unreleased = versions.notes("Unreleased", changelog.read_text())
    versions.cut("9.8.7", TODAY, checkout)
    assert "\n## 9.8.7 - 2026-11-23\n" in changelog.read_text()
    assert versions.notes("9.8.7", changelog.read_text()) == unreleased
    assert versions.notes("Unreleased", changelog.read_text()) == ""


def test_notes_end_where_the_next_version_begins(versions: ModuleType) -> None:
    changelog = (
        "# Changelog\n\n## Unreleased\n\n## 1.1.0 - 2026-01-02\n\n### Fixed\n\n- b\n\n## 1.0.0 - 2026-01-01\n\n- a\n"
    )
    assert versions.notes("1.1.0", changelog) == "### Fixed\n\n- b"
    assert versions.notes("1.0.0", changelog) == "- a"
    assert versions.notes("1.0", changelog) == ""


def test_a_version_cannot_be_cut_twice(versions: ModuleType, checkout: Path) -> None:
    versions.cut("9.8.7", TODAY, checkout)
    with pytest.raises(versions.Problem, match=r"has a section for 9\.8\.7 already"):
        versions.cut("9.8.7", TODAY, checkout)


def test_a_version_before_the_checkouts_own_is_refused(versions: ModuleType, checkout: Path) -> None:
    versions.cut("9.8.7", TODAY, checkout)
    for version in ("9.8.6", "9.8.7-rc.1", "1.0.0"):
        with pytest.raises(versions.Problem, match=r"older than 9\.8\.7"):
            versions.cut(version, TODAY, checkout)


def test_a_candidate_is_cut_and_the_release_after_it(versions: ModuleType, checkout: Path) -> None:
    changelog = checkout / versions.CHANGELOG
    versions.cut("9.8.7-rc.1", TODAY, checkout)
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", "## Unreleased\n\n- more\n", 1))
    commit(checkout)
    versions.cut("9.8.7", TODAY, checkout)
    assert versions.check("v9.8.7", checkout) == "9.8.7"


def test_nothing_is_cut_while_nothing_is_unreleased(versions: ModuleType, checkout: Path) -> None:
    versions.cut("9.8.7", TODAY, checkout)
    with pytest.raises(versions.Problem, match="nothing stands under 'Unreleased'"):
        versions.cut("9.8.8", TODAY, checkout)


def test_nothing_is_cut_over_changes_that_are_not_committed(versions: ModuleType, checkout: Path) -> None:
    (checkout / "README.md").write_text("mine\n")
    (checkout / "docs" / "new page.md").write_text("mine\n")
    (checkout / "LICENSE").unlink()
    before = texts(versions, checkout)
    with pytest.raises(versions.Problem, match="not committed") as refused:
        versions.cut("9.8.7", TODAY, checkout)
    assert str(refused.value).splitlines()[1:] == ["  LICENSE", "  README.md", "  docs/new page.md"]
    assert texts(versions, checkout) == before


def test_a_copy_that_is_no_checkout_is_refused_in_the_words_of_git(versions: ModuleType, checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    with pytest.raises(versions.Problem, match="git status: fatal: not a git repository"):
        versions.cut("9.8.7", TODAY, checkout)


def test_of_many_changes_some_are_named_and_the_rest_counted(versions: ModuleType, checkout: Path) -> None:
    for number in range(25):
        (checkout / f"new-{number:02}").write_text("")
    with pytest.raises(versions.Problem, match=r"new-19\n  and 5 more$"):
        versions.cut("9.8.7", TODAY, checkout)


def test_what_git_ignores_does_not_keep_a_release_from_being_cut(versions: ModuleType, checkout: Path) -> None:
    (checkout / ".gitignore").write_text("/out\n")
    commit(checkout)
    (checkout / "out").mkdir()
    (checkout / "out" / "scratch").write_text("")
    assert versions.cut("9.8.7", TODAY, checkout)


@pytest.mark.parametrize(
    "version", ["1.2", "v1.2.3", "1.2.3.4", "latest", "1.2.3-beta", "1.2.3rc1", "01.2.3", "1.2.3-rc.01", "١.٢.٣"]
)
def test_what_is_no_version_is_refused_before_anything_is_written(
    versions: ModuleType, checkout: Path, version: str
) -> None:
    before = texts(versions, checkout)
    with pytest.raises(versions.Problem, match="no version"):
        versions.cut(version, TODAY, checkout)
    assert texts(versions, checkout) == before


def test_a_tag_that_disagrees_is_told_with_every_place_and_the_remedy(versions: ModuleType, checkout: Path) -> None:
    versions.cut("9.8.7", TODAY, checkout)
    chart = checkout / "charts" / "carpool" / "Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: 9.8.7", "appVersion: 9.8.6"))
    with pytest.raises(versions.Problem, match=r"(?s)release\.py cut 9\.8\.7.*Chart\.yaml, appVersion: 9\.8\.6"):
        versions.check("v9.8.7", checkout)


@pytest.mark.parametrize("tag", ["9.8.7", "v9.8", "release-9.8.7", "v9.8.7rc1", "v09.8.7", "v٩.٨.٧"])
def test_a_tag_names_its_version_as_v1_2_3(versions: ModuleType, tag: str) -> None:
    with pytest.raises(versions.Problem, match=r"names no version: v1\.2\.3"):
        versions.check(tag)
