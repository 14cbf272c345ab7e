"""Fixtures of the tests on a whole cluster: the cluster, images, one release of the chart, a namespace per test."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator

import pytest

from e2e.cluster import client, clusters, gpus, ingress, product_images
from e2e.cluster import kserve as kserve_installation
from e2e.cluster import kubectl as kubectls
from e2e.injector import steps
from e2e.live import releases

# Where a dry run tries the shared release's webhook.
PROBED_NAMESPACE = "default"
KSERVE = ("kserve", "deployment/kserve-controller-manager")


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise a plugin that asks for the current loop makes one in the first test without a loop, and never closes it.
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def cluster(building: steps.Building) -> Iterator[clusters.Cluster]:
    """The cluster named by $CARPOOL_CLUSTER, with ingress and KServe: the one that is up, else one for this run."""
    chosen = clusters.Cluster()
    with contextlib.ExitStack() as stack:
        if not chosen.is_up():
            stack.callback(chosen.down)
        with building("cluster to test in"):
            chosen.up()
            gpus.install(chosen)
            ingress.install(chosen)
            kserve_installation.install(chosen)
        yield chosen


@pytest.fixture(scope="session")
def admin(cluster: clusters.Cluster) -> Iterator[client.Client]:
    """Calls the cluster's API server as a user with all rights."""
    with contextlib.closing(client.Client(cluster.kubeconfig)) as admin:
        yield admin


@pytest.fixture(scope="session")
def cluster_kubectl(cluster: clusters.Cluster) -> kubectls.Kubectl:
    """kubectl in the namespace `default`."""
    return kubectls.Kubectl(cluster.kubeconfig, "default")


@pytest.fixture(scope="session")
def images_loaded(building: steps.Building, cluster: clusters.Cluster) -> str:
    """Loads the product's images into all nodes; the digest of their sources. Skips where none can be built."""
    with building("images to test"):
        return product_images.load(cluster)


@pytest.fixture(scope="session")
def shared_release(cluster: clusters.Cluster, images_loaded: str) -> releases.Release:
    """The release that tests share; the fixture `carpool` installs it."""
    return releases.Release(cluster.kubeconfig, images_loaded)


@pytest.fixture
def carpool(shared_release: releases.Release, admin: client.Client) -> releases.Release:
    """The shared release, installed with the default values, and pods that ask for the sidecar get it."""
    shared_release.ensure_installed()
    steps.wait_until_effective(admin, PROBED_NAMESPACE)
    return shared_release


@pytest.fixture(scope="session")
def kserve(cluster: clusters.Cluster) -> None:
    """KServe's controller runs, and its webhooks answer."""
    namespace, controller = KSERVE
    kubectls.Kubectl(cluster.kubeconfig, namespace).wait(controller, "Available")


@pytest.fixture
def namespace_labels() -> dict[str, str]:
    """The labels of the test's namespace."""
    return {}


@pytest.fixture
def namespace(admin: client.Client, namespace_labels: dict[str, str]) -> Iterator[str]:
    """A namespace for this test. It is deleted after the test, without waiting for its pods."""
    name = f"test-{secrets.token_hex(3)}"
    steps.create_namespace(admin, name, namespace_labels)
    yield name
    admin.delete("Namespace", name)


@pytest.fixture(name="kubectl")
def namespaced_kubectl(cluster: clusters.Cluster, namespace: str) -> kubectls.Kubectl:
    """kubectl in the test's namespace."""
    return kubectls.Kubectl(cluster.kubeconfig, namespace)
