"""A namespace that enforces Pod Security's strictest profile: what the injector adds has to meet it by itself."""

from __future__ import annotations

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


@pytest.fixture
def restricted(kubectl: kubectls.Kubectl) -> None:
    steps.label_namespace(kubectl, "pod-security.kubernetes.io/enforce=restricted")


@pytest.mark.usefixtures("restricted")
def test_a_pod_that_meets_the_restricted_profile_still_does_with_the_sidecar(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster
) -> None:
    assert steps.apply(kubectl, "restricted_namespace") == ""
    assert steps.takeover(steps.ready_pod(kubectl)) == ("port-swap", True)
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH


@pytest.mark.usefixtures("restricted")
def test_the_profile_is_enforced_here(kubectl: kubectls.Kubectl) -> None:
    refused = kubectl.run("run", "root", "--image=carpool-predictor:0.1.0", check=False)
    assert refused.status != 0
    assert 'violates PodSecurity "restricted' in refused.errors
