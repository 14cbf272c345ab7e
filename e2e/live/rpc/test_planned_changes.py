"""Planned changes to pods that serve gRPC: no call may fail, though a connection stays with one pod.

Half of the callers use connections that never send a call a second time: a pod that goes may break off nothing. A call
that such a client was about to send when it heard that the pod goes, and then did not send, is no failure.
"""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster import kubectl as kubectls
from e2e.live.faults import predictors
from e2e.live.rpc import callers as callers_in_pods
from e2e.live.rpc import servers

LOAD = ("--connections=6", "--callers=4", "--pause=0.1")
TRITON = predictors.Predictor("", "deployment/triton", "app=triton")
FEWEST_RIGHT = 300


@pytest.fixture
def target(kubectl: kubectls.Kubectl, carpool: object) -> str:
    """Where two pods of the sample answer gRPC."""
    kubectl.apply(servers.sample(replicas=2))
    kubectl.wait_for_rollout(TRITON.workload)
    return servers.address(kubectl, "triton", "grpc")


def check(reports: dict[str, Any]) -> None:
    for manner, report in reports.items():
        print(f"{manner}: {report}")
    for report in reports.values():
        assert report["wrong"] == 0, reports
        assert report["failed"] == {}, reports
        assert report["never_sent"] <= report["right"] / 100, reports
        assert report["right"] >= FEWEST_RIGHT, reports


def test_a_rolling_update_fails_no_call(
    kubectl: kubectls.Kubectl, target: str, callers: callers_in_pods.Callers
) -> None:
    before = predictors.names(kubectl, TRITON.selector)
    with callers.load(target, *LOAD) as reports:
        kubectl.run("rollout", "restart", TRITON.workload)
        predictors.roll_out(kubectl, TRITON, before)
    check(reports)


def test_a_deleted_pod_answers_what_it_was_asked_and_fails_no_call(
    kubectl: kubectls.Kubectl, target: str, callers: callers_in_pods.Callers
) -> None:
    with callers.load(target, *LOAD) as reports:
        name = predictors.delete_one(kubectl, TRITON)
        predictors.wait_until_replaced(kubectl, TRITON, name)
    check(reports)


def test_callers_who_balance_over_the_pods_themselves_lose_no_call_to_a_deleted_one(
    kubectl: kubectls.Kubectl, target: str, callers: callers_in_pods.Callers
) -> None:
    """As behind a headless Service: they know the pods' addresses, and hear late of one that goes."""
    addresses = [f"{pod['status']['podIP']}:8001" for pod in kubectl.pods(TRITON.selector)]
    with callers.load(f"ipv4:{','.join(addresses)}", *LOAD) as reports:
        name = predictors.delete_one(kubectl, TRITON)
        predictors.wait_until_replaced(kubectl, TRITON, name)
    check(reports)
