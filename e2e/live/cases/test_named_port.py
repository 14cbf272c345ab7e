"""A server that cannot be moved, behind a Service that targets its port by name."""

from __future__ import annotations

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


def test_the_name_of_a_port_moves_to_the_sidecar_and_the_service_follows_it(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster
) -> None:
    assert steps.apply(kubectl, "named_port") == ""
    before = steps.version(kubectl, "service", "echo")
    pod = steps.ready_pod(kubectl)
    assert steps.takeover(pod) == ("named-port", True)
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH
    assert steps.version(kubectl, "service", "echo") == before
    assert steps.ask_pod(kubectl, pod, 8080, "/health") == {"well": True}, "who knows its number goes past the sidecar"
