"""The README tells what the code does: its tables are made from the code, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from sidecar import errors
from tests import tables

PAGE = tables.README.read_text()


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_match_the_code(name):
    assert tables.block(name, tables.TABLES[name]()) in PAGE, "run: python -m tests.tables"


def test_links_to_files_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE)
    assert targets
    assert [target for target in targets if not (tables.README.parent / target).exists()] == []


def test_every_error_status_is_explained():
    kinds = [kind for kind in _subclasses(errors.CarpoolError) if kind.__module__ == errors.__name__]
    statuses = {str(kind.status) for kind in kinds} - {"500"}
    explained = set(re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE))
    assert statuses == explained


def _subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)
