"""KServe's agent and Carpool differ as containers: how they start, crash, idle and are probed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from e2e import metrics
from e2e.cluster import kubectl as kubectls
from e2e.cluster import processes
from e2e.live.batcher import deployment, sides, tables

SETTLED_SECONDS = 60.0
IDLE_SECONDS = 8.0
# Of one CPU. KServe's agent polls 10,000 times a second.
BUSY, IDLE = 0.01, 0.005
# Below the 0.5 s of any window.
AT_ONCE = 0.45
ADMIN_PORT = 9082
SOME_METRICS = ("carpool_batch_size_sum", "carpool_batches_total")


@pytest.fixture(scope="module")
def idle_shares(deployed: deployment.Deployed) -> Mapping[str, float]:
    """By side, the share of a CPU that the batching container of an idle service uses."""
    tools, service = deployed.tools, sides.IRIS_PORT
    before = {key: deployment.cpu(kubectl, service) for key, kubectl in tools.items()}
    after: dict[str, deployment.Cpu] = {}

    def are_apart() -> bool:  # each node's kubelet looks in its own rhythm
        after.update({key: deployment.cpu(kubectl, service) for key, kubectl in tools.items()})
        return all(after[key].at >= before[key].at + IDLE_SECONDS for key in tools)

    processes.eventually(are_apart, SETTLED_SECONDS, f"CPU times that are {IDLE_SECONDS:g} s apart")
    return {key: (after[key].used - before[key].used) / (after[key].at - before[key].at) for key in tools}


@pytest.mark.parametrize("service", [sides.IRIS, sides.SMALL_BATCHES], ids=lambda service: service.name)
def test_each_side_is_served_by_whom_it_is_named_after(
    service: sides.Service, side: sides.Side, kubectl: kubectls.Kubectl
) -> None:
    batching = deployment.batching(deployment.pod_of(kubectl, service))
    expected = side.expects(
        kserve=[("agent", sides.AGENT_IMAGE)],
        carpool=[("carpool", sides.SIDECAR_IMAGE)],
        drop_in=[("agent", sides.SIDECAR_IMAGE)],
    )
    assert [(each["name"], each["image"]) for each in batching] == expected


def test_the_cpu_it_takes_while_nobody_calls(
    idle_shares: Mapping[str, float], side: sides.Side, observed: tables.Observe
) -> None:
    """it wakes up for requests and deadlines only"""
    share = idle_shares[side.key]
    print(f"{side.key}: {share:.2%} of a CPU")
    words = "over 1 %" if share > BUSY else "under 0.5 %" if share < IDLE else f"{share:.1%}"
    assert observed(words) == side.expects(kserve="over 1 %", carpool="under 0.5 %")


def test_a_max_latency_of_0(
    deployed: deployment.Deployed, side: sides.Side, kubectl: kubectls.Kubectl, model: str, observed: tables.Observe
) -> None:
    """every number of milliseconds is allowed; with 0 no request waits for others"""
    if side is sides.KSERVE:
        seen = f"never ready: the process ends with {first_exit_code(kubectl, sides.ZERO)}"
    else:
        answers = [asyncio.run(deployed.target(side, sides.ZERO).predict(model, [1])) for _ in range(3)]
        is_soon = min(answer.elapsed for answer in answers) < AT_ONCE
        seen = f"{answers[0].status} {'at once' if is_soon else 'late'}"
    assert observed(seen) == side.expects(kserve="never ready: the process ends with 1", carpool="200 at once")


def first_exit_code(kubectl: kubectls.Kubectl, service: sides.Service) -> int | None:
    """What the batching container ended with, once it has."""
    processes.eventually(
        lambda: deployment.exit_code(kubectl, service) is not None,
        SETTLED_SECONDS,
        f"the batching container of {service.name} has ended",
    )
    return deployment.exit_code(kubectl, service)


def test_metrics_of_its_own(side: sides.Side, kubectl: kubectls.Kubectl, observed: tables.Observe) -> None:
    """what was batched, why, and how long it took, for Prometheus and autoscalers"""
    pod = deployment.pod_of(kubectl, sides.SMALL_BATCHES)["metadata"]["name"]
    try:
        found = metrics.samples(kubectl.raw(kubectl.path_to(pod, ADMIN_PORT, "/metrics")))
    except kubectls.Failed:
        found = {}
    named = [name for name in SOME_METRICS if any(each.partition("{")[0] == name for each in found)]
    assert observed(" ".join(named) or "none") == side.expects(
        kserve="none", carpool="carpool_batch_size_sum carpool_batches_total"
    )
