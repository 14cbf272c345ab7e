"""The documents tell what the code does: their tables are made from the code, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool_sidecar import errors, metrics
from tests import marks, tables

DOCS = tables.ROOT / "docs"
FOLDERS = ("docs", "sidecar", "injector", "predictor", "charts", "manifests", "e2e", "tests", "benchmarks")
PAGES = sorted([*tables.ROOT.glob("*.md"), *(page for each in FOLDERS for page in (tables.ROOT / each).rglob("*.md"))])
LONGEST_README = 150

_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")


def prose(page: Path) -> str:
    """The page without blocks of code, in which nothing is a link or a heading."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())


def anchors(page: Path) -> set[str]:
    """What links into a page may name: its headings, as GitHub writes them; of several with one name the first."""
    headings = (
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"(?m)^#+ (.+)$", prose(page))
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lead_nowhere(page: Path) -> Iterator[str]:
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(tables.ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    assert list(lead_nowhere(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `code` heading\n[a](page.md#a-code-heading) [b](#c) [d](e.md) [f](https://example.org)\n")
    assert list(lead_nowhere(page)) == ["#c", "e.md"]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_page_of_the_reference_is_on_the_site_and_among_all_pages(page: Path) -> None:
    assert f": docs/{page.name}\n" in (tables.ROOT / "mkdocs.yml").read_text()
    assert f"]({page.name})" in (DOCS / "pages.md").read_text() or page.name == "pages.md"


def test_the_readme_leads_to_all_pages() -> None:
    assert "](docs/pages.md)" in (tables.ROOT / "README.md").read_text()


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len((tables.ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


@pytest.mark.parametrize("name", ["sidecar settings that matter first", "annotations that matter first"])
def test_ten_settings_and_ten_annotations_come_first(name: str) -> None:
    assert len(tables.TABLES[name]().splitlines()) == 10


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_match_the_code(name: str) -> None:
    block = marks.block(name, tables.COMMAND, tables.TABLES[name]())
    assert sum(block in page.read_text() for page in tables.PAGES) == 1, "run: python -m tests.tables"


def test_every_error_status_is_explained() -> None:
    statuses = {str(errors.status_of(kind)) for kind in tables.error_kinds()}
    explained = set(re.findall(r"(?m)^\| (\d{3}) \|", (DOCS / "status-codes.md").read_text()))
    assert statuses == explained


def test_every_place_of_a_bug_is_explained() -> None:
    (family,) = (each for each in metrics.Metrics().registry.collect() if each.name == "carpool_internal_errors")
    rows = (DOCS / "metrics.md").read_text().partition("\n### Where a bug was met\n")[2]
    explained = {word for row in re.findall(r"(?m)^- (`.*?):", rows) for word in re.findall(r"`(\w+)`", row)} - {
        "where"
    }
    assert explained == {sample.labels["where"] for sample in family.samples}
