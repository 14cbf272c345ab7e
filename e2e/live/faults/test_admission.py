"""The injectors or the API server are away or replaced: pods that have the sidecar serve on as before.

While no injector answers, failurePolicy decides about new pods.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from e2e.cluster import client, clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.injector import manifests, steps
from e2e.live import releases
from e2e.live.faults import predictors, watching

BACK_SECONDS = 60.0
GONE_SECONDS = 60.0
SETTLED_ANSWERS = 100
SETTLED_SECONDS = 60.0
PODS = 10
PODS_BEFORE, PODS_AFTER = 10, 40


@pytest.fixture
def restored(carpool: releases.Release, admin: client.Client) -> Iterator[releases.Release]:
    """The release, whose replicas and values are as they were after the test."""
    replicas = json.loads(carpool.kubectl.run("get", releases.DEPLOYMENT, "--output=json").output)["spec"]["replicas"]
    yield carpool
    carpool.kubectl.run("scale", releases.DEPLOYMENT, f"--replicas={replicas}")
    carpool.restore()
    steps.wait_until_effective(admin, "default")


def kill_all(release: releases.Release) -> None:
    """Kills the injectors' pods at once; their Deployment makes new ones, if it still wants some."""
    release.kubectl.run(
        "delete", "pods", f"--selector={releases.INJECTORS}", "--grace-period=0", "--force", "--wait=false"
    )


def send_away(release: releases.Release) -> None:
    """Scales the injectors to none. Returns when all are gone."""
    release.kubectl.run("scale", releases.DEPLOYMENT, "--replicas=0")
    kill_all(release)
    processes.eventually(lambda: not release.kubectl.pods(releases.INJECTORS), GONE_SECONDS, "no injector is left")


def wait_until_nobody_injects(admin: client.Client, namespace: str) -> None:
    """Returns when pods are created without the sidecar: one that was deleted by force may answer for a while."""
    asking = watching.asking_pod(namespace)

    def is_left_alone() -> bool:
        return not manifests.has_sidecar(admin.create(asking, dry_run=True).object)

    processes.eventually(is_left_alone, GONE_SECONDS, "nobody injects")


def wait_for_event(kubectl: kubectls.Kubectl, words: str) -> None:
    """Returns when an event in the namespace says so."""

    def is_said() -> bool:
        return words in kubectl.run("get", "events").output

    processes.eventually(is_said, BACK_SECONDS, f"an event that says {words!r}")


def test_killed_injectors_come_back_by_themselves_and_pods_serve_on(
    cluster: clusters.Cluster,
    kubectl: kubectls.Kubectl,
    predictor: predictors.Predictor,
    restored: releases.Release,
    watch: watching.StartWatch,
) -> None:
    with (
        watch("both injectors killed", predictor.host) as seen,
        watching.creating_pods(cluster.kubeconfig, kubectl.namespace) as pods,
    ):
        pods.wait_for(5, BACK_SECONDS)
        missed, killed = pods.missed, time.monotonic()
        kill_all(restored)
        pods.wait_for(20, BACK_SECONDS)
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.facts |= {"pods_without_sidecar": pods.missed, "pods_with_it": pods.injected}
        seen.facts["injecting_again_s"] = round(pods.last_missed - killed, 1) if pods.missed else 0.0
    assert missed == 0
    assert not pods.refusals, str(pods)  # failurePolicy Ignore
    seen.check_nothing_failed()


def test_without_an_injector_pods_are_created_without_the_sidecar_and_join_the_others(
    admin: client.Client,
    kubectl: kubectls.Kubectl,
    predictor: predictors.Predictor,
    restored: releases.Release,
    watch: watching.StartWatch,
) -> None:
    with watch("no injector, failurePolicy Ignore, predictor scaled up", predictor.host) as seen:
        send_away(restored)
        wait_until_nobody_injects(admin, kubectl.namespace)
        kubectl.run("scale", predictor.workload, "--replicas=3")
        kubectl.wait_for_rollout(predictor.workload)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    with_sidecar = [manifests.has_sidecar(pod) for pod in kubectl.pods(predictor.selector)]
    assert sorted(with_sidecar) == [False, True, True]
    seen.check_nothing_failed()


def test_without_an_injector_failure_policy_fail_keeps_pods_from_being_created_and_says_why(
    admin: client.Client,
    kubectl: kubectls.Kubectl,
    predictor: predictors.Predictor,
    restored: releases.Release,
    watch: watching.StartWatch,
) -> None:
    restored.upgrade("webhook.failurePolicy=Fail")
    steps.wait_until_effective(admin, "default")
    with watch("no injector, failurePolicy Fail, predictor scaled up", predictor.host) as seen:
        send_away(restored)
        steps.wait_until_refused(admin, watching.asking_pod(kubectl.namespace))
        kubectl.run("scale", predictor.workload, "--replicas=3")
        wait_for_event(kubectl, "failed calling webhook")
        assert len(kubectl.pods(predictor.selector)) == 2
        back = seen.load.now
        restored.kubectl.run("scale", releases.DEPLOYMENT, "--replicas=2")
        restored.kubectl.wait(releases.DEPLOYMENT, "Available", BACK_SECONDS)
        steps.wait_until_effective(admin, "default")
        seen.facts["injecting_again_s"] = round(seen.load.now - back, 1)
        kubectl.wait_for_rollout(predictor.workload)
        seen.load.wait_for_right(SETTLED_ANSWERS)
    assert all(manifests.has_sidecar(pod) for pod in kubectl.pods(predictor.selector))
    seen.check_nothing_failed()


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_an_upgrade_of_the_injector_misses_no_pod(
    cluster: clusters.Cluster,
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
    seen.check_nothing_failed()


def test_a_restart_of_the_api_server_fails_no_request_and_loses_no_injection(
    cluster: clusters.Cluster, kubectl: kubectls.Kubectl, predictor: predictors.Predictor, watch: watching.StartWatch
) -> None:
    before = predictors.names(kubectl, predictor.selector)
    with (
        watch("API server restarted", predictor.host) as seen,
        watching.creating_pods(cluster.kubeconfig, kubectl.namespace) as pods,
    ):
        pods.wait_for(PODS, BACK_SECONDS)
        began = seen.load.now
        cluster.restart_api_server()
        pods.wait_for(PODS, BACK_SECONDS)
        seen.facts["pods_created_again_s"] = round(seen.load.now - began, 1)
        seen.load.wait_for_right(SETTLED_ANSWERS)
        seen.facts |= {"pods_with_sidecar": pods.injected, "pods_without": pods.missed, "not_created": pods.refused}
    assert predictors.names(kubectl, predictor.selector) == before
    assert pods.missed == 0, str(pods)
    seen.check_nothing_failed()
