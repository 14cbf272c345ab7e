"""Tests of the chart need Helm; where there is none they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.charts import helm


@pytest.fixture(autouse=True, scope="session")
def helm_is_here() -> None:
    try:
        helm.find()
    except helm.Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["helm", "helm3"])
def each_helm(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs once with the Helm of the other tests, and once with a Helm 3 where there is one."""
    try:
        executable = helm.find() if request.param == "helm" else helm.find_3()
    except helm.Unavailable as missing:
        pytest.skip(str(missing))
    with helm.using(executable):
        yield
