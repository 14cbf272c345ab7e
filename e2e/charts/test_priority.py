"""values-ha.yaml, which has a priority class, on an API server that limits those of the system by quota, as on GKE."""

from __future__ import annotations

from collections.abc import Callable

from e2e.charts import releases
from e2e.cluster import client, processes
from tests.charts import helm

NewRelease = Callable[[], releases.Release]
SETTLED_SECONDS = 40.0
HA = f"--values={helm.CHART / 'values-ha.yaml'}"


def pods(admin: client.Client, release: releases.Release) -> list[client.Object]:
    found: list[client.Object] = admin.call("GET", f"/api/v1/namespaces/{release.namespace}/pods").object["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def test_values_ha_make_pods_where_the_class_needs_a_quota(new_release: NewRelease, admin: client.Client) -> None:
    release = new_release()
    release.install(HA)
    processes.eventually(lambda: len(pods(admin, release)) == 3, SETTLED_SECONDS, "three pods are stored")
    assert {each["spec"]["priorityClassName"] for each in pods(admin, release)} == {"system-cluster-critical"}
    assert {each["spec"]["priority"] for each in pods(admin, release)} == {2_000_000_000}


def test_a_roll_out_has_room_in_the_quota_and_so_have_more_replicas(
    new_release: NewRelease, admin: client.Client
) -> None:
    release = new_release()
    release.install(HA)
    processes.eventually(lambda: len(pods(admin, release)) == 3, SETTLED_SECONDS, "three pods are stored")
    release.upgrade(HA, "--set", "replicas=6,logLevel=debug")
    # No node makes the new ones ready, so the old ones stay: all are there at once.
    processes.eventually(lambda: len(pods(admin, release)) >= 7, SETTLED_SECONDS, "old and new pods are stored")


def test_without_the_quota_no_pod_is_stored_and_the_event_says_why(
    new_release: NewRelease, admin: client.Client
) -> None:
    release = new_release()
    release.install(HA, "--set", "priorityQuota=false")

    def reasons() -> list[str]:
        events = admin.call("GET", f"/api/v1/namespaces/{release.namespace}/events").object["items"]
        return [each["message"] for each in events if each["reason"] == "FailedCreate"]

    processes.eventually(
        lambda: any("insufficient quota to match these scopes" in each for each in reasons()),
        SETTLED_SECONDS,
        "the ReplicaSet tells why it makes no pods",
    )
    assert pods(admin, release) == []
