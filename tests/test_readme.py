"""The READMEs tell what the code does: their tables are made from the code, and their links lead somewhere."""

from __future__ import annotations

import re

import pytest

from carpool_sidecar import errors
from tests import tables

PAGES = {page: page.read_text() for page in tables.PAGES}
PAGE = PAGES[tables.PAGES[0]]


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_match_the_code(name):
    block = tables.block(name, tables.TABLES[name]())
    assert sum(block in page for page in PAGES.values()) == 1, "run: python -m tests.tables"


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[page])
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_error_status_is_explained():
    kinds = [kind for kind in _subclasses(errors.CarpoolError) if kind.__module__ == errors.__name__]
    statuses = {str(kind.status) for kind in kinds} - {"500"}
    explained = set(re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE))
    assert statuses == explained


def _subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)
