"""With `CARPOOL_E2E_NO_SKIPS=1` a skipped test is a failure: it has proved nothing.

That holds for a skip by a fixture that finds no server or no cluster, by a test, and by a module. A test may skip
itself for a parameter that leaves nothing to test, if it is marked `may_skip` with the reason; a skip by its fixtures
is a failure there too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator

import pytest

from e2e.cluster import binaries

VARIABLE = "CARPOOL_E2E_NO_SKIPS"
MARK = "may_skip"


def are_failures() -> bool:
    """Whether this run has to prove something."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


@contextlib.contextmanager
def where_unavailable(what: str = "") -> Iterator[None]:
    """Skips the test where the block finds that this machine cannot do something, with the reason; `what` it needed."""
    try:
        yield
    except binaries.Unavailable as missing:
        pytest.skip(f"no {what}: {missing}" if what else str(missing))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(why): the test may skip itself even where {VARIABLE} is set")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_meant = call.when == "call" and item.get_closest_marker(MARK) is not None
    if report.skipped and not hasattr(report, "wasxfail") and not is_meant:
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    if are_failures():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{reason}\n({VARIABLE} is set: nothing may be skipped here)"
