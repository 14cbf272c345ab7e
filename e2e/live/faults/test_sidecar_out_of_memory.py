"""The sidecar is given more than its memory holds, and killed: its callers are told by the ingress, and it is back."""

from __future__ import annotations

import http.client
import urllib.parse

from e2e.cluster import interface, processes
from e2e.live import kubectl as kubectls
from e2e.live import releases
from e2e.live.faults import predictors, watching

KILLED_SECONDS = 90.0
ANSWER_SECONDS = 30.0
SETTLED_ANSWERS = 100
MEBIBYTE = 1 << 20
# An admin who lets more in than the container can hold.
CARELESS = {
    "carpool.dev/resources-requests-memory": "64Mi",
    "carpool.dev/resources-limits-memory": "128Mi",
    "carpool.dev/max-body-bytes": str(512 * MEBIBYTE),
    "carpool.dev/max-queue-bytes": str(1024 * MEBIBYTE),
}


def outcome(ingress: str, host: str, body: bytes) -> str:
    """The status of the answer to a body; the ingress may also hang up on who is still sending."""
    url = urllib.parse.urlsplit(ingress)
    connection = http.client.HTTPConnection(url.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", predictors.PATH, body, {"Host": host, "Content-Type": "application/json"})
        return str(connection.getresponse().status)
    except (http.client.HTTPException, OSError) as error:
        return type(error).__name__
    finally:
        connection.close()


def test_a_sidecar_out_of_memory_is_back_after_a_restart_and_the_other_pod_serves_on(
    cluster: interface.Cluster, kubectl: kubectls.Kubectl, carpool: releases.Release, watch: watching.StartWatch
) -> None:
    kubectl.apply([*predictors.way_in(kubectl.namespace), predictors.deployment(annotations=CARELESS)])
    predictor = predictors.ready(kubectl)
    body = b'{"instances": ["' + b"x" * (200 * MEBIBYTE) + b'"]}'

    def is_killed() -> bool:
        return "OOMKilled" in predictors.last_ends(kubectl, predictor.selector, predictors.SIDECAR)

    with watch("sidecar out of memory", predictor.host) as seen:
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.mark()
        seen.facts["large_request"] = outcome(cluster.ingress, predictor.host, body)
        processes.eventually(is_killed, KILLED_SECONDS, "the sidecar is OOM-killed")
        predictors.wait_for_rollout(kubectl, predictor.workload)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert seen.facts["large_request"] != "200"
    assert seen.report.wrong == {}, str(seen)
    assert set(seen.report.failed) <= watching.HONEST, str(seen)
    assert (seen.recovery or 0) <= KILLED_SECONDS, str(seen)
