"""`helm upgrade` replaces the injectors while pods are being created: none is missed, and callers notice nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live import releases
from e2e.live.faults import predictors, watching

SETTLED_SECONDS = 60.0
PODS_BEFORE, PODS_AFTER = 10, 40


@pytest.fixture
def restored(carpool: releases.Release) -> Iterator[releases.Release]:
    """The release, with its default values again after the test."""
    yield carpool
    carpool.restore()


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_an_upgrade_of_the_injector_misses_no_pod(
    cluster: interface.Cluster,
    kubectl: kubectls.Kubectl,
    predictor: predictors.Predictor,
    restored: releases.Release,
    watch: watching.StartWatch,
    policy: str,
) -> None:
    before = predictors.names(restored.kubectl, releases.INJECTORS)
    with (
        watch(f"helm upgrade of the injector to failurePolicy {policy}", predictor.host, planned=True) as seen,
        watching.creating_pods(cluster.kubeconfig, kubectl.namespace) as pods,
    ):
        pods.wait_for(PODS_BEFORE, SETTLED_SECONDS)
        began = seen.load.now
        restored.upgrade(f"webhook.failurePolicy={policy}", "webhook.timeoutSeconds=7", "logLevel=warning")
        seen.facts["upgrade_took_s"] = round(seen.load.now - began, 1)
        pods.wait_for(PODS_AFTER, SETTLED_SECONDS)
        seen.facts |= {"pods_with_sidecar": pods.injected, "pods_without": pods.missed + pods.refused}
    replaced = {name for name in predictors.names(restored.kubectl, releases.INJECTORS) if name not in before}
    assert len(replaced) == 2
    assert pods.missed == 0, str(pods)
    assert not pods.refusals, str(pods)
    assert seen.report.wrong == {}, str(seen)
    assert seen.failed == {}, str(seen)
