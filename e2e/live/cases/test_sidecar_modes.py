"""The two forms of the sidecar: an init container that runs on, and a container beside the others."""

from __future__ import annotations

import pytest

from e2e.cluster import interface
from e2e.live import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")


@pytest.mark.parametrize(("form", "group"), [("native", "initContainers"), ("classic", "containers")])
def test_a_sidecar_of_either_form_batches(
    kubectl: kubectls.Kubectl, cluster: interface.Cluster, form: str, group: str
) -> None:
    assert steps.apply(kubectl, f"{form}_sidecar") == ""
    pod = steps.ready_pod(kubectl)
    assert "carpool" in [each["name"] for each in pod["spec"][group]]
    assert steps.takeover(pod) == ("port-swap", form == "native")
    assert steps.call_together(steps.expose(kubectl, cluster.ingress)) == steps.ONE_BATCH
    restarts = {name: each["restartCount"] for name, each in steps.container_statuses(pod).items()}
    assert restarts == {"server": 0, "carpool": 0}
