"""Pods that missed the sidecar are evicted one by one, and none whose successor would not come, or not with it."""

from __future__ import annotations

import datetime
import functools
from typing import Any

import pytest

from carpool_injector.api import calls
from carpool_injector.core import model, refusals
from carpool_injector.webhook import evictions, metrics, missed

START = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.UTC)


class Cluster:
    """Pods that a test puts in; what is evicted goes at once."""

    def __init__(self) -> None:
        self.pods: list[model.Object] = []
        self.evicted: list[str] = []
        self.error: Exception | None = None
        self.is_ready = True
        self.would_inject: Any = lambda pod: True
        self.now = START
        self.counts = metrics.Metrics()
        self.subject = evictions.Evictions(
            self, lambda pod: self.would_inject(pod), lambda: self.is_ready, self.counts, lambda: self.now
        )

    def add(self, name: str, owner: str = "web", kind: str = "ReplicaSet", ready: bool = True, **metadata: Any) -> None:
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": f"uid of {owner}", "controller": True}
        own = {
            "namespace": "ml",
            "name": name,
            "uid": f"uid of {name}",
            "ownerReferences": [reference] if owner else [],
        }
        created = f"{self.now:%Y-%m-%dT%H:%M:%SZ}"
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        self.pods.append({"metadata": {**own, "creationTimestamp": created, **metadata}, "status": status})

    async def list_pods(self, namespace: str | None = None, label_selector: str = "") -> list[model.Object]:
        return [pod for pod in self.pods if pod["metadata"]["namespace"] == namespace]

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        if self.error is not None:
            raise self.error
        assert (namespace, uid) == ("ml", f"uid of {name}")
        self.evicted.append(name)
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]

    async def look(self, *names: str, after: float = 120.0) -> list[str]:
        """Which pods are evicted when these are found, some seconds later."""
        self.now += datetime.timedelta(seconds=after)
        self.evicted = []
        await self.subject.restart({("ml", name) for name in names})
        return self.evicted

    def counted(self, result: str) -> float:
        return self.counts.registry.get_sample_value("carpool_injector_restarts_total", {"result": result}) or 0.0


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_one_pod_of_each_owner_goes_in_a_look_and_the_next_once_all_are_ready(cluster: Cluster) -> None:
    for name in ("a", "b"):
        cluster.add(name)
    cluster.add("c", owner="db", kind="StatefulSet")
    cluster.add("fine")
    assert await cluster.look("b", "a", "c") == ["a", "c"]
    cluster.add("new", ready=False)
    assert await cluster.look("b") == []
    cluster.pods[-1]["status"]["conditions"][0]["status"] = "True"
    assert await cluster.look("b") == ["b"]
    assert cluster.counted("evicted") == 3


async def test_a_pod_that_is_not_ready_goes_first_and_does_not_wait_for_itself(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.add("b", ready=False)
    assert await cluster.look("a", "b") == ["b"]


@pytest.mark.parametrize(
    "member",
    [
        {"kind": "Job"},
        {"kind": "PyTorchJob"},
        {"owner": ""},
        {"deletionTimestamp": "2026-11-27T12:00:00Z"},
        {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
        {"annotations": {"karpenter.sh/do-not-disrupt": "true"}},
    ],
)
async def test_what_nobody_makes_anew_or_must_not_be_moved_stays(cluster: Cluster, member: dict[str, Any]) -> None:
    cluster.add("a", **member)
    assert await cluster.look("a") == []


def malformed(pod: model.Object, namespace: model.Namespace) -> model.Outcome:
    raise refusals.Malformed("spec")


@pytest.mark.parametrize("would_inject", [lambda pod: False, functools.partial(missed.would_inject, malformed, dict)])
async def test_a_pod_whose_successor_would_not_get_the_sidecar_stays(cluster: Cluster, would_inject: Any) -> None:
    cluster.would_inject = would_inject
    cluster.add("a")
    assert await cluster.look("a") == []


async def test_while_the_injector_is_not_ready_all_stay(cluster: Cluster) -> None:
    cluster.is_ready = False
    cluster.add("a")
    assert await cluster.look("a") == []


async def test_an_owner_whose_new_pods_miss_the_sidecar_again_is_left_alone_for_an_hour(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.add("b")
    assert await cluster.look("a", "b") == ["a"]
    cluster.add("again")
    assert await cluster.look("again", "b") == []
    assert await cluster.look("again", "b", after=3600) == ["again"]


async def test_what_a_budget_does_not_allow_is_tried_again_at_the_next_look(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.error = calls.Unavailable("create pods/eviction ml/a: Cannot evict pod as it would violate the budget")
    assert await cluster.look("a") == []
    cluster.error = calls.NotFound("gone")
    assert await cluster.look("a") == []
    cluster.error = None
    assert await cluster.look("a") == ["a"]
    assert [cluster.counted(result) for result in ("refused", "failed", "evicted")] == [1, 1, 1]


async def test_at_most_ten_pods_go_in_a_look(cluster: Cluster) -> None:
    names = [f"p{number}" for number in range(12)]
    for name in names:
        cluster.add(name, owner=f"of {name}")
    assert len(await cluster.look(*names)) == 10
    assert len(await cluster.look(*names)) == 2
