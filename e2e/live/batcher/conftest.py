"""Fixtures of the comparison: the services on all sides, the side a test runs on, and the table of results."""

from __future__ import annotations

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
HAS_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="package")
def deployed(
    cluster: clusters.Cluster,
    cluster_kubectl: kubectls.Kubectl,
    admin: client.Client,
    kserve: None,
    shared_release: releases.Release,
) -> Iterator[deployment.Deployed]:
    """Every service on every side, ready and routed to by the ingress."""
    shared_release.ensure_installed()
    steps.wait_until_effective(admin, cluster_kubectl.namespace)
    with deployment.deployed(admin, cluster_kubectl, cluster.ingress) as deployed:
        yield deployed


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


@pytest.fixture(scope="package")
def table() -> Iterator[tables.Table]:
    """What was observed; written to a file at the end."""
    table = tables.Table()
    yield table
    table.write(TABLE)


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
