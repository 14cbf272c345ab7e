"""Pods that were created without the sidecar that they should have are counted, and no others."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Set
from typing import Any

import pytest
from prometheus_client import parser

from carpool_injector.core import injection, model
from carpool_injector.core.config import Config
from carpool_injector.webhook import metrics, missed, reviewing
from tests.injector import pods

ASKS = {"carpool.dev/inject": "true"}
EVERYWHERE: dict[str, Any] = {"webhooks": [{}]}


class Cluster:
    """Pods and namespaces that a test puts in."""

    def __init__(self) -> None:
        self.pods: list[model.Object] = []
        self.namespaces: dict[str, model.Namespace] = {}
        self.registration: model.Object | None = EVERYWHERE
        self.asked: list[str | None] = []
        self.counts = metrics.Metrics()
        self.events: list[reviewing.Event] = []
        self.restarted: list[set[tuple[str, str]]] = []
        told = (self.events.append, self._restart)
        self.subject = missed.MissedPods(self, "zz", lambda: self.namespaces, self._injects, self.counts, *told)

    async def _restart(self, found: Set[tuple[str, str]]) -> None:
        self.restarted.append(set(found))

    def _injects(self, pod: model.Object) -> bool:
        return missed.would_inject(self._inject, lambda: self.namespaces, pod)

    def _inject(self, pod: model.Object, namespace: model.Namespace) -> model.Outcome:
        return injection.inject(pod, Config(), namespace, model.Capabilities())

    def add(self, namespace: str, pod: model.Object, **labels: str) -> None:
        self.namespaces.setdefault(namespace, model.Namespace(namespace, labels))
        pod = copy.deepcopy(pod)
        name = f"p{len(self.pods)}"
        pod["metadata"] |= {"namespace": namespace, "name": name, "uid": f"uid of {name}"}
        self.pods.append(pod)

    async def list_pod_metadata(self) -> list[model.Object]:
        return [{"metadata": pod["metadata"]} for pod in self.pods]

    async def list_pods(self, namespace: str | None = None, label_selector: str = "") -> list[model.Object]:
        self.asked.append(namespace)
        return [pod for pod in self.pods if pod["metadata"]["namespace"] == namespace]

    async def read_webhooks(self, kind: str, name: str) -> model.Object | None:
        assert (kind, name) == ("MutatingWebhookConfiguration", "zz")
        return self.registration

    async def counted(self) -> dict[str, float]:
        await self.subject.look()
        (family,) = [
            each
            for each in parser.text_string_to_metric_families(self.counts.render().decode())
            if each.name == "carpool_injector_missed_pods"
        ]
        return {sample.labels["asked_by"]: sample.value for sample in family.samples}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def plain(**members: Any) -> model.Object:
    return pods.plain(pods.sklearn(), **members)


async def test_a_pod_that_asks_and_was_never_seen_is_missed(cluster: Cluster) -> None:
    cluster.add("ml", plain())
    cluster.add("ml", plain(labels={}, annotations=ASKS))
    assert await cluster.counted() == {"pod": 2, "namespace": 0}
    assert cluster.asked == [], "whole pods are read only where a namespace asks"


async def test_pods_that_have_it_were_refused_it_or_do_not_want_it_are_not(cluster: Cluster) -> None:
    cluster.add("ml", injection.inject(plain(), Config(), model.Namespace("ml"), model.Capabilities()).pod)
    cluster.add("ml", plain(annotations={"carpool.dev/status": '{"refused": "x"}'}))
    cluster.add("ml", plain(labels={"carpool.dev/inject": "false"}, annotations=ASKS))
    cluster.add("ml", plain(labels={}))
    cluster.add("ml", plain())
    cluster.pods[-1]["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    assert await cluster.counted() == {"pod": 0, "namespace": 0}


async def test_of_a_namespace_that_asks_the_pods_that_would_get_it_are(cluster: Cluster) -> None:
    database = {"name": "db", "image": "postgres:16", "ports": [{"containerPort": 5432}]}
    asks = {"carpool.dev/inject": "enabled"}
    cluster.add("ml", plain(labels={}), **asks)
    cluster.add("ml", pods.plain(database, labels={}))
    cluster.add("ml", plain())
    cluster.add("ml", plain(labels={}))
    cluster.pods[-1]["status"] = {"phase": "Succeeded"}
    cluster.add("other", plain(labels={}))
    assert await cluster.counted() == {"pod": 1, "namespace": 1}
    assert cluster.asked == ["ml"]


@pytest.mark.parametrize(
    ("term", "missed_pods"),
    [
        ({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["ml"]}, 0),
        ({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}, 1),
        ({"key": "team", "operator": "In", "values": ["a"]}, 1),
        ({"key": "team", "operator": "In", "values": ["b"]}, 0),
        ({"key": "team", "operator": "DoesNotExist"}, 0),
        ({"key": "team", "operator": "Exists"}, 1),
    ],
)
async def test_namespaces_that_the_webhook_is_not_for_do_not_count(
    cluster: Cluster, term: model.Object, missed_pods: int
) -> None:
    cluster.registration = {"webhooks": [{"namespaceSelector": {"matchExpressions": [term]}}]}
    cluster.add("ml", plain(), team="a")
    assert (await cluster.counted())["pod"] == missed_pods


OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4", "uid": "u-1", "controller": True}


async def test_each_owner_is_told_in_one_event_with_what_gives_its_pods_the_sidecar(cluster: Cluster) -> None:
    cluster.add("other", plain())
    for _ in range(3):
        cluster.add("ml", plain(labels={**ASKS, "pod-template-hash": "5d4"}))
        cluster.pods[-1]["metadata"]["ownerReferences"] = [OWNER]
    await cluster.counted()
    of_owner, of_pod = cluster.events
    assert (of_owner.namespace, of_owner.owner["kind"], of_owner.owner["uid"]) == ("ml", "ReplicaSet", "u-1")
    assert of_owner.reason == "CarpoolSidecarMissed"
    assert ": p1 and 2 more. " in of_owner.message
    assert of_owner.message.endswith("To get it: kubectl -n ml rollout restart deployment/web")
    assert of_pod.owner == {"apiVersion": "v1", "kind": "Pod", "name": "p0", "uid": "uid of p0"}
    assert of_pod.message.endswith("delete the pod and create it again, as nobody else does")


async def test_all_that_were_found_are_handed_over_to_be_restarted(cluster: Cluster) -> None:
    cluster.add("ml", plain())
    cluster.add("all", plain(labels={}), **{"carpool.dev/inject": "enabled"})
    cluster.add("ml", plain(labels={}))
    await cluster.counted()
    assert cluster.restarted == [{("ml", "p0"), ("all", "p1")}]


async def test_the_log_names_some_once_and_again_when_there_are_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add("ml", plain())
    for _ in range(2):
        await cluster.counted()
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["ml/p0"]
    cluster.add("ml", plain())
    await cluster.counted()
    assert len(caplog.records) == 2


@pytest.mark.looptime
async def test_what_cannot_be_read_is_tried_again_and_the_last_count_stays(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add("ml", plain())
    task = asyncio.create_task(cluster.subject.follow())
    await asyncio.sleep(missed.PAUSE)
    cluster.registration = {"webhooks": "nonsense"}
    await asyncio.sleep(missed.PAUSE)
    assert "could not be looked for" in caplog.text
    cluster.registration = EVERYWHERE
    cluster.pods.clear()
    await asyncio.sleep(missed.PAUSE)
    assert (await cluster.counted())["pod"] == 0
    task.cancel()
