"""The straight path: how many functions a small request crosses, and that docs/request-path.md lists them."""

from __future__ import annotations

import pytest

import carpool_sidecar
from tests import path

pytestmark = pytest.mark.skipif(
    carpool_sidecar.build() != "python", reason="a profiler sees no compiled functions: recorded as Python alone"
)


@pytest.fixture(scope="module")
def recorded():
    return path.recorded()


def test_a_small_request_crosses_few_functions_in_few_files(recorded):
    functions, files = recorded.counts
    assert functions <= path.MOST_FUNCTIONS, recorded.table()
    assert files <= path.MOST_FILES, recorded.table()


def test_the_default_policy_adds_nothing_but_what_the_scheduler_calls_itself(recorded):
    default = path.recorded("adaptive")
    functions, files = default.counts
    assert functions <= path.MOST_FUNCTIONS, default.table()
    assert files <= path.MOST_FILES, default.table()
    inner, of_window = (sum(each.is_inner for each in found.functions) for found in (default, recorded))
    assert inner <= of_window + path.MOST_LEARNING, default.table()


def test_the_page_lists_the_functions_of_a_request(recorded):
    page = path.PAGE.read_text()
    assert recorded.written(page) == page, "run: python -m tests.path"
