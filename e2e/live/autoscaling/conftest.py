"""Prometheus and prometheus-adapter for the tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import binaries, interface
from e2e.live.autoscaling import monitoring


@pytest.fixture(scope="module")
def monitored(request: pytest.FixtureRequest, cluster: interface.Cluster) -> Iterator[monitoring.Monitoring]:
    """Both are there, and gone after the module: there is one custom.metrics.k8s.io in a cluster."""
    uncaptured = request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled
    both = monitoring.Monitoring(cluster)
    try:
        with uncaptured():  # building takes minutes the first time, and says so
            both.install()
        yield both
    except binaries.Unavailable as missing:
        pytest.skip(f"no Prometheus to ask: {missing}")
    finally:
        both.uninstall()
