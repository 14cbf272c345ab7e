"""A container crashes repeatedly, or uses more memory than its limit: callers get an honest error, and not for long."""

from __future__ import annotations

import http.client
import urllib.parse

from e2e.cluster import clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.live import releases, traffic
from e2e.live.faults import predictors, watching

CRASH_SECONDS, CRASHES = 5, 2
LOOPED_SECONDS = 150.0
KILLED_SECONDS = 60.0
BACK_SECONDS = 60
SETTLED_ANSWERS = 100
# Seconds with failures after each crash: the kubelet notices, the endpoints and the ingress follow.
RECOVERED_SECONDS = 5
MOST_FAILED_OF_A_CRASH = 150
MEMORY, TOO_MUCH = "160Mi", 400
SIDECAR_KILLED_SECONDS = 90.0
ANSWER_SECONDS = 30.0
MEBIBYTE = 1 << 20
# Limits for bodies and queue that are larger than the container's memory.
CARELESS = {
    "carpool.dev/resources-requests-memory": "64Mi",
    "carpool.dev/resources-limits-memory": "128Mi",
    "carpool.dev/max-body-bytes": str(512 * MEBIBYTE),
    "carpool.dev/max-queue-bytes": str(1024 * MEBIBYTE),
}


def wait_for_restarts(kubectl: kubectls.Kubectl, selector: str, count: int) -> None:
    """Returns when the predictor's containers were started again so often."""

    def are_enough() -> bool:
        told = [kubectls.container_statuses(pod).get(predictors.APP, {}) for pod in kubectl.pods(selector)]
        return sum(int(each.get("restartCount", 0)) for each in told) >= count

    processes.eventually(are_enough, LOOPED_SECONDS, f"{count} restarts")


def test_a_crash_loop_of_one_pod_costs_its_own_callers_a_502_and_no_others_anything(
    kubectl: kubectls.Kubectl, carpool: releases.Release, watch: watching.StartWatch
) -> None:
    crashing = predictors.failing("crashing", f"--crash-after={CRASH_SECONDS}")
    objects = [*predictors.way_in(kubectl.namespace), predictors.failing_source(), predictors.deployment()]
    kubectl.apply(objects)
    predictor = predictors.ready(kubectl)
    with watch(f"one pod of three crashes in a loop ({CRASHES} times)", predictor.host) as seen:
        kubectl.apply([crashing])
        wait_for_restarts(kubectl, "set=crashing", CRASHES)
        kubectl.delete("deployment", "crashing")
        seen.load.wait_for_right(SETTLED_ANSWERS)
    seen.check_failures_are_honest()
    assert sum(seen.failed.values()) <= CRASHES * MOST_FAILED_OF_A_CRASH, str(seen)
    assert seen.report.failing_seconds <= CRASHES * RECOVERED_SECONDS, str(seen)


def test_a_predictor_out_of_memory_is_back_after_a_restart_and_the_other_pod_serves_on(
    kubectl: kubectls.Kubectl, carpool: releases.Release, watch: watching.StartWatch, cluster: clusters.Cluster
) -> None:
    greedy = predictors.failing("greedy", memory=MEMORY)
    kubectl.apply([*predictors.way_in(kubectl.namespace), predictors.failing_source(), predictors.deployment(), greedy])
    predictor = predictors.ready(kubectl, predictors.NAME, "greedy")
    caller = traffic.Caller(cluster.ingress, predictor.host)
    with watch("predictor out of memory", predictor.host) as seen:
        seen.load.wait_for_right(SETTLED_ANSWERS)

        def is_killed() -> bool:
            """Sends the request until it reaches the pod that takes the memory; the others echo it."""
            caller.post(predictors.PATH, {"instances": [{"grow_mebibytes": TOO_MUCH}]})
            return "OOMKilled" in predictors.last_ends(kubectl, "set=greedy", predictors.APP)

        seen.mark()
        processes.eventually(is_killed, KILLED_SECONDS, "the predictor is OOM-killed")
        kubectl.wait("deployment/greedy", "Available", BACK_SECONDS)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    seen.check_failures_are_honest()
    assert (seen.recovery or 0) <= KILLED_SECONDS, str(seen)


def outcome(ingress: str, host: str, body: bytes) -> str:
    """The status of the answer to a body, or the error where the ingress closes the connection before it was sent."""
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
    cluster: clusters.Cluster, kubectl: kubectls.Kubectl, carpool: releases.Release, watch: watching.StartWatch
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
        processes.eventually(is_killed, SIDECAR_KILLED_SECONDS, "the sidecar is OOM-killed")
        kubectl.wait_for_rollout(predictor.workload)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert seen.facts["large_request"] != "200"
    seen.check_failures_are_honest()
    assert (seen.recovery or 0) <= SIDECAR_KILLED_SECONDS, str(seen)
