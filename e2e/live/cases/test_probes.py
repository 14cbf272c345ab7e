"""Probes of every kind still report the state of the model server after the sidecar has taken over its port."""

from __future__ import annotations

import pytest

from e2e.cluster import clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.live.cases import steps

pytestmark = pytest.mark.usefixtures("carpool")

# How the server of programs/model_server.py is broken for a probe of that kind; a start mends it.
BREAKS = {"http": "broken", "tcp": "closed", "command": "broken", "grpc": "broken"}
RESTARTED_SECONDS = 90.0


def restarts(kubectl: kubectls.Kubectl) -> dict[str, int]:
    (pod,) = kubectl.pods("app=echo")
    return {name: each["restartCount"] for name, each in kubectls.container_statuses(pod).items()}


@pytest.mark.parametrize("kind", BREAKS)
def test_probes_tell_of_a_slow_start_of_a_broken_server_of_a_mended_one_and_have_a_dead_one_restarted(
    kubectl: kubectls.Kubectl, cluster: clusters.Cluster, kind: str
) -> None:
    assert steps.apply(kubectl, f"probes_by_{kind}") == ""
    pod = steps.ready_pod(kubectl)
    # The server needs 5 s: probes that asked the sidecar alone would be content at once.
    started = kubectls.container_statuses(pod)["server"]["state"]["running"]["startedAt"]
    assert steps.seconds_between(started, steps.since(pod, "Ready")) >= 4
    caller = steps.expose(kubectl, cluster.ingress)
    assert steps.call_together(caller) == steps.ONE_BATCH

    steps.change_server(kubectl, pod, "server", f"(state / '{BREAKS[kind]}').touch()")
    assert steps.becomes_ready(kubectl, pod, False)
    steps.change_server(kubectl, pod, "server", f"(state / '{BREAKS[kind]}').unlink()")
    assert steps.becomes_ready(kubectl, pod, True)
    assert restarts(kubectl) == {"server": 0, "carpool": 0}

    steps.change_server(kubectl, pod, "server", f"(state / '{BREAKS[kind]}').touch()")
    processes.eventually(lambda: restarts(kubectl)["server"] == 1, RESTARTED_SECONDS, "the server is restarted")
    assert steps.becomes_ready(kubectl, pod, True)
    assert steps.call_together(steps.settled(caller)) == steps.ONE_BATCH
    assert restarts(kubectl) == {"server": 1, "carpool": 0}
