"""Pods that are created while the webhook cannot be called go without the sidecar, and the injector counts them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import pytest
import urllib3

from e2e.charts import releases
from e2e.cluster import client, control_plane, processes
from e2e.injector import manifests, steps
from tests.injector import pods

NewRelease = Callable[[], releases.Release]
COUNTED_SECONDS = 60.0  # the first look is 15 s after the start
# Python's ssl leaves a socket open that its peer has reset before the handshake (SSLSocket._create raises without
# close), as an API server does that is killed. The garbage collector complains later, so creating() calls it.
_UNCLOSED = "ignore:unclosed <ssl.SSLSocket:ResourceWarning"


def counted(release: releases.Release) -> dict[str, int]:
    """What the metric says, by who asked."""
    lines = [line for line in release.metrics().splitlines() if line.startswith("carpool_injector_missed_pods{")]
    return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines}


def wait_for(release: releases.Release, **wanted: int) -> None:
    processes.eventually(lambda: counted(release) == wanted, COUNTED_SECONDS, f"{wanted} are counted")


def test_pods_that_came_while_no_injector_answered_are_counted_with_the_rights_that_the_chart_gives(
    new_release: NewRelease, new_namespace: steps.NewNamespace, admin: client.Client
) -> None:
    release = new_release()
    release.install()
    release.call_at(release.start_injector())
    asking, other = new_namespace({**release.labels, manifests.INJECT: "enabled"}), new_namespace(release.labels)
    steps.wait_until_effective(admin, other)
    release.stop()
    for pod in (manifests.pod(other), manifests.pod(asking, labels={}), manifests.pod(other, labels={})):
        assert not manifests.has_sidecar(admin.create(pod).object)
    release.start_injector()
    wait_for(release, pod=1, namespace=1)


def test_pods_that_missed_the_sidecar_are_evicted_and_made_anew_where_that_is_asked_for(
    new_release: NewRelease, new_namespace: steps.NewNamespace, admin: client.Client
) -> None:
    release = new_release()
    release.install("--set", "missedPods.restart=true")
    release.call_at(release.start_injector())
    namespace = new_namespace(release.labels)
    steps.wait_until_effective(admin, namespace)
    release.stop()
    admin.create(manifests.workload("Deployment", namespace, pods.plain(pods.sklearn())))
    processes.eventually(lambda: admin.list("Pod", namespace), COUNTED_SECONDS, "the Deployment has its pod")
    assert not any(manifests.has_sidecar(pod) for pod in admin.list("Pod", namespace))
    release.call_at(release.start_injector())
    made_anew = lambda: [manifests.has_sidecar(pod) for pod in admin.list("Pod", namespace)] == [True]  # noqa: E731
    processes.eventually(made_anew, COUNTED_SECONDS, "there is a new pod, with the sidecar")
    told = [each for each in admin.list("Event", namespace) if each["reason"] == "CarpoolSidecarMissed"]
    assert [each["involvedObject"]["kind"] for each in told] == ["ReplicaSet"]


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings(_UNCLOSED)
@pytest.mark.usefixtures("plane", "tools")  # which skip where none can be had; the plane has to be its own
def test_pods_that_came_before_a_restarted_api_server_knew_its_services_are_counted(tmp_path: Path) -> None:
    """The API server waits for its webhook configurations before it admits a pod, but not for the Services they name.

    Here the list of Services is long, so that it comes late.
    """
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(control_plane.running(tmp_path))
        admin = stack.enter_context(contextlib.closing(client.Client(plane.kubeconfig)))
        release = releases.Release(admin, plane, "restart", tmp_path)
        stack.callback(release.stop)
        release.install()
        release.call_at(release.start_injector())
        namespace = steps.create_namespace(admin, "busy", release.labels)
        steps.wait_until_effective(admin, namespace)
        for number in range(150):
            admin.create(long_service(f"long-{number}", namespace))
        with creating(plane, namespace) as created:
            plane.restart("kube-apiserver")
        missed = [pod for pod in created if not manifests.has_sidecar(pod)]
        assert missed
        assert len(missed) < len(created)
        log = (tmp_path / "kube-apiserver.log").read_text()
        assert "failing open label.pods.carpool.dev" in log
        assert 'service "restart-carpool-injector" not found' in log
        release.stop()  # a new one looks sooner
        release.start_injector()
        stored = admin.list("Pod", namespace)
        wait_for(release, pod=sum(not manifests.has_sidecar(pod) for pod in stored), namespace=0)


def long_service(name: str, namespace: str) -> client.Object:
    metadata = {"name": name, "namespace": namespace, "annotations": {"note": "x" * 200_000}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None"}}


@contextlib.contextmanager
def creating(plane: control_plane.ControlPlane, namespace: str) -> Iterator[list[client.Object]]:
    """Creates pods inside the block, as fast as the API server answers. Yields those that it has stored."""
    created: list[client.Object] = []
    stop = threading.Event()

    def create(who: int) -> None:
        with contextlib.closing(client.Client(plane.kubeconfig)) as caller:
            for number in itertools.count():
                if stop.is_set():
                    return
                # It is away for seconds, and answers "no" for some more.
                with contextlib.suppress(client.Refused, urllib3.exceptions.HTTPError):
                    pod = manifests.pod(namespace)
                    pod["metadata"]["name"] = f"pod-{who}-{number}"
                    created.append(caller.create(pod).object)
                stop.wait(0.02)

    with futures.ThreadPoolExecutor(2) as threads:
        running = [threads.submit(create, who) for who in range(2)]
        try:
            yield created
        finally:
            stop.set()
    for each in running:
        each.result()
    gc.collect()  # inside the test that expects the warning
