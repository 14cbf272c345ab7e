"""Fixtures of the comparison: the services on all sides, the side a test runs on, and the table of results."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.cluster import client, clusters
from e2e.cluster import kubectl as kubectls
from e2e.injector import steps
from e2e.live import releases
from e2e.live.batcher import deployment, sides, tables, targets

TABLE = Path("out/e2e/batcher.md")
HERE = Path(__file__).parent
HAS_FAILED = pytest.StashKey[bool]()
TO_THE_LAST = pytest.StashKey[contextlib.ExitStack]()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or HERE not in nextitem.path.parents:
        item.session.stash.get(TO_THE_LAST, contextlib.ExitStack()).close()


@pytest.fixture(scope="session")
def to_the_last(request: pytest.FixtureRequest) -> contextlib.ExitStack:
    """What is entered ends with the last test of this folder, not with the session: the tests after it need the CPU."""
    return request.session.stash.setdefault(TO_THE_LAST, contextlib.ExitStack())


@pytest.fixture(scope="session")
def deployed(
    to_the_last: contextlib.ExitStack,
    cluster: clusters.Cluster,
    cluster_kubectl: kubectls.Kubectl,
    admin: client.Client,
    kserve: None,
    shared_release: releases.Release,
) -> deployment.Deployed:
    """Every service on every side, ready and routed to by the ingress."""
    shared_release.ensure_installed()
    steps.wait_until_effective(admin, cluster_kubectl.namespace)
    return to_the_last.enter_context(deployment.deployed(admin, cluster_kubectl, cluster.ingress))


@pytest.fixture(params=sides.SIDES, ids=lambda side: side.key)
def side(request: pytest.FixtureRequest) -> sides.Side:
    """The side the test runs on: all of them, one after the other."""
    chosen: sides.Side = request.param
    return chosen


@pytest.fixture
def model() -> str:
    """The name of a model that no other test calls, by which the recorder tells requests apart."""
    return f"m{secrets.token_hex(4)}"


@pytest.fixture
def small_batches(deployed: deployment.Deployed, side: sides.Side) -> targets.Target:
    """maxBatchSize 4, maxLatency 5000; for Carpool also max-in-flight 2 and max-queue-instances 16, by annotation."""
    return deployed.target(side, sides.SMALL_BATCHES)


@pytest.fixture
def short_wait(deployed: deployment.Deployed, side: sides.Side) -> targets.Target:
    """maxBatchSize 32, maxLatency 800."""
    return deployed.target(side, sides.SHORT_WAIT)


@pytest.fixture
def compatible(deployed: deployment.Deployed, side: sides.Side) -> targets.Target:
    """maxBatchSize 4, maxLatency 5000; for Carpool also kserve-errors, by annotation."""
    return deployed.target(side, sides.SMALL_BATCHES if side is sides.KSERVE else sides.COMPATIBLE)


@pytest.fixture
def defaults(deployed: deployment.Deployed, side: sides.Side) -> targets.Target:
    """`batcher: {}`, without numbers."""
    return deployed.target(side, sides.DEFAULTS)


@pytest.fixture
def kubectl(deployed: deployment.Deployed, side: sides.Side) -> kubectls.Kubectl:
    """kubectl in the namespace of the side."""
    return deployed.tools[side.key]


@pytest.fixture(scope="session")
def table(to_the_last: contextlib.ExitStack) -> tables.Table:
    """What was observed; written to a file at the end."""
    table = tables.Table()
    to_the_last.callback(table.write, TABLE)
    return table


@pytest.fixture
def observed(request: pytest.FixtureRequest, side: sides.Side, table: tables.Table) -> Iterator[tables.Observe]:
    """A function that puts an observation, in words, into the table and returns it for comparison."""
    name, why = _name_of(request.node), request.function.__doc__ or ""
    seen = [tables.FAILED]

    def observe(text: str) -> str:
        seen.append(text)
        return text

    yield observe
    table.observe(name, why, side, tables.FAILED if request.node.stash.get(HAS_FAILED, False) else seen[-1])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets `observed` know whether the test has failed."""
    report = yield
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report


def _name_of(item: pytest.Item) -> str:
    """The test's name, with its parameter but without the side it runs on."""
    assert isinstance(item, pytest.Function)
    side = item.callspec.params["side"]
    assert isinstance(side, sides.Side)
    parameter = item.callspec.id.replace(side.key, "").strip("-")
    return f"{item.originalname} ({parameter})" if parameter else item.originalname
