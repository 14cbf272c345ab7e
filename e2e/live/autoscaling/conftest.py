"""Prometheus and prometheus-adapter for the tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import clusters
from e2e.injector import steps
from e2e.live.autoscaling import monitoring


@pytest.fixture(scope="module")
def monitored(building: steps.Building, cluster: clusters.Cluster) -> Iterator[monitoring.Monitoring]:
    """Both are there, and gone after the module: there is one custom.metrics.k8s.io in a cluster."""
    both = monitoring.Monitoring(cluster)
    try:
        with building("Prometheus to ask"):
            both.install()
        yield both
    finally:
        both.uninstall()
