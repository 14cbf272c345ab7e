"""manifests/samples/hpa.yaml, as it is, adds pods under load and takes them away after it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from e2e.cluster import clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.live import releases
from e2e.live.autoscaling import expressions, monitoring, samples

NAME = expressions.SAMPLE
METRIC = "carpool_utilisation"
TARGET = 0.7
# In pods that it would keep busy all the time. So much work is for ceil(2.5 / 0.7) = 4 pods, and clearly too much for
# three: an HPA lets a tenth more than its target pass. The light load is for the least of them.
LOAD, LIGHT_LOAD = 2.5, 0.4
# More than ever wait while two pods have the work of 2.5.
CALLERS = 600
PODS_AT_REST, PODS_UNDER_LOAD = 2, 4
# What metrics of new pods take to be known, and what the mean over a minute and the HPA's steps take.
METRIC_SECONDS, UP_SECONDS, DOWN_SECONDS = 90.0, 180.0, 240.0
# The sample waits 5 minutes before it takes pods away.
STABILIZATION_SECONDS = 15
POLL_SECONDS = 2.0
TEST_SECONDS = 720


class Moment(NamedTuple):
    """The HPA's metric and decision, and the number of ready pods, so many seconds after the first look."""

    seconds: float
    utilisation: float | None  # mean over pods
    wanted: int
    ready: int

    def __str__(self) -> str:
        utilisation = "?" if self.utilisation is None else f"{self.utilisation:.2f}"
        return f"| {self.seconds:.0f} s | {utilisation} | {self.wanted} | {self.ready} |"


class Watch:
    """Looks at the HPA and its Deployment, and notes what changed."""

    def __init__(self, kubectl: kubectls.Kubectl) -> None:
        self._kubectl = kubectl
        self._start = time.monotonic()
        self.moments: list[Moment] = []

    def until(self, reached: Callable[[Moment], bool], within: float, what: str) -> Moment:
        """The moment in which `reached` is true. Raises AssertionError with the story so far after `within` s."""
        deadline = time.monotonic() + within
        while not reached(now := self._look()):
            assert time.monotonic() < deadline, f"{what}: not within {within:g} s\n{self}\n{self._explanation()}"
            time.sleep(POLL_SECONDS)
        return now

    def __str__(self) -> str:
        return "\n".join(["| after | utilisation | wanted | ready |", "|---|---|---|---|", *map(str, self.moments)])

    def _look(self) -> Moment:
        hpa, deployment = (self._kubectl.get(kind, NAME).get("status", {}) for kind in ("hpa", "deployment"))
        now = Moment(
            time.monotonic() - self._start,
            utilisation_in(hpa),
            hpa.get("desiredReplicas", 0),
            deployment.get("readyReplicas", 0),
        )
        if not self.moments or self.moments[-1][1:] != now[1:]:
            self.moments.append(now)
        return now

    def _explanation(self) -> str:
        return self._kubectl.explain(f"hpa/{NAME}")


def utilisation_in(status: dict[str, Any]) -> float | None:
    """The mean that the HPA has from the metrics API, None while it has none."""
    for metric in status.get("currentMetrics") or ():
        pods = metric.get("pods", {})
        if pods.get("metric", {}).get("name") == METRIC:
            return monitoring.quantity(pods["current"]["averageValue"])
    return None


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_the_sample_hpa_adds_pods_under_load_and_takes_them_away_after_it(
    cluster: clusters.Cluster, carpool: releases.Release, kubectl: kubectls.Kubectl, monitored: monitoring.Monitoring
) -> None:
    samples.deploy(kubectl, NAME, samples.sample())
    kubectl.apply(expressions.SAMPLES / "hpa.yaml")
    window = f'{{"spec": {{"behavior": {{"scaleDown": {{"stabilizationWindowSeconds": {STABILIZATION_SECONDS}}}}}}}}}'
    kubectl.run("patch", "hpa", NAME, "--type=merge", f"--patch={window}")
    known = functools.partial(metrics_of_ready_pods, kubectl, monitored)
    processes.eventually(known, METRIC_SECONDS, f"the API server knows {METRIC} of all pods")

    watch = Watch(kubectl)
    watch.until(lambda now: now.wanted == PODS_AT_REST and now.utilisation == 0, METRIC_SECONDS, "the HPA sees no load")
    with samples.load(cluster, NAME, kubectl.namespace, pods=LOAD, callers=CALLERS) as load:
        watch.until(lambda now: now.ready == PODS_UNDER_LOAD, UP_SECONDS, "pods are added")
        watch.until(lambda now: now.utilisation is not None and now.utilisation < TARGET, UP_SECONDS, "they suffice")
    with samples.load(cluster, NAME, kubectl.namespace, pods=LIGHT_LOAD) as light_load:
        watch.until(lambda now: now.ready == PODS_AT_REST, DOWN_SECONDS, "pods are taken away")

    print(f"{watch}\n\nheavy load\n{load.report}\n\nlight load\n{light_load.report}")
    # A busy machine makes the model slower than it says, and one pod more right.
    assert max(moment.wanted for moment in watch.moments) <= PODS_UNDER_LOAD + 1
    for report in (load.report, light_load.report):
        assert (report.wrong, report.failed) == ({}, {})


def metrics_of_ready_pods(kubectl: kubectls.Kubectl, monitored: monitoring.Monitoring) -> bool:
    """Whether the metrics API has a value for each pod of the sample."""
    try:
        told = monitored.custom_metric(kubectl.namespace, METRIC)
    except kubectls.Failed:  # until the adapter has seen the first sample, there is no such metric
        return False
    return told.keys() == {pod["metadata"]["name"] for pod in kubectl.pods(f"app={NAME}")}
