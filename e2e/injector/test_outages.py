"""Without the injector the cluster does what the failure policy says, and only to pods that ask for the sidecar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import client, control_plane, processes
from e2e.injector import installation, manifests, steps
from tests import loopback
from tests.injector import pods


@pytest.fixture
def nobody(new_installation: steps.NewInstallation) -> Callable[[str], installation.Installation]:
    """Registers an injector, with a failure policy, where none listens."""

    def register(failure_policy: str) -> installation.Installation:
        made = new_installation()
        made.install(loopback.free_port(), failure_policy)
        return made

    return register


def test_with_the_policy_ignore_pods_are_created_without_the_sidecar(
    admin: client.Client, nobody: Callable[[str], installation.Installation], new_namespace: steps.NewNamespace
) -> None:
    namespace = new_namespace(nobody("Ignore").labels)
    stored = admin.create(manifests.pod(namespace)).object
    assert not manifests.has_sidecar(stored)


def test_with_the_policy_fail_pods_that_ask_are_refused_and_no_others(
    admin: client.Client, nobody: Callable[[str], installation.Installation], new_namespace: steps.NewNamespace
) -> None:
    namespace = new_namespace(nobody("Fail").labels)
    steps.wait_until_refused(admin, manifests.pod(namespace))
    assert steps.is_refused(admin, manifests.pod(namespace, labels={}, annotations=pods.OPT_IN))
    assert not steps.is_refused(admin, manifests.pod(namespace, labels={}))
    assert not steps.is_refused(admin, manifests.pod(namespace, labels={manifests.INJECT: "false"}))


def test_with_the_policy_fail_a_namespace_that_asks_is_refused_pods_except_those_that_say_no(
    admin: client.Client, nobody: Callable[[str], installation.Installation], new_namespace: steps.NewNamespace
) -> None:
    namespace = new_namespace({**nobody("Fail").labels, manifests.INJECT: "enabled"})
    steps.wait_until_refused(admin, manifests.pod(namespace, labels={}))
    assert not steps.is_refused(admin, manifests.pod(namespace, labels={manifests.INJECT: "false"}))
    assert not steps.is_refused(admin, manifests.pod(namespace, labels={}, annotations={manifests.INJECT: "false"}))


def test_workloads_can_be_applied_while_the_injector_is_down(
    admin: client.Client, nobody: Callable[[str], installation.Installation], new_namespace: steps.NewNamespace
) -> None:
    namespace = new_namespace(nobody("Fail").labels)
    answer = admin.create(manifests.workload("Deployment", namespace, pods.plain(pods.sklearn())))
    assert answer.object["metadata"]["uid"]


def test_pods_that_were_refused_come_once_the_injector_is_back(
    admin: client.Client,
    new_installation: steps.NewInstallation,
    new_namespace: steps.NewNamespace,
    start_injector: steps.StartInjector,
) -> None:
    installed = new_installation()
    port = loopback.free_port()
    installed.install(port, "Fail")
    namespace = new_namespace(installed.labels)
    steps.wait_until_refused(admin, manifests.pod(namespace))
    admin.create(manifests.workload("Deployment", namespace, pods.plain(pods.sklearn())))
    injector = start_injector(installed, port=port)
    # The controller tries again by itself, less and less often.
    processes.eventually(lambda: admin.list("Pod", namespace), 60.0, "the Deployment has its pod")
    injector.stop()
    assert all(manifests.has_sidecar(pod) for pod in admin.list("Pod", namespace))


def test_an_injector_that_was_stopped_leaves_the_registration_and_its_certificates_for_the_next(
    admin: client.Client,
    new_installation: steps.NewInstallation,
    new_namespace: steps.NewNamespace,
    start_injector: steps.StartInjector,
) -> None:
    installed = new_installation()
    port = loopback.free_port()
    installed.install(port)
    namespace = new_namespace(installed.labels)
    first = start_injector(installed, port=port)
    steps.wait_until_effective(admin, namespace)
    before = installed.ca_bundles()
    first.stop()
    assert installed.ca_bundles() == before
    assert not manifests.has_sidecar(admin.create(manifests.pod(namespace)).object)
    start_injector(installed, port=port)
    steps.wait_until_effective(admin, namespace)
    assert installed.ca_bundles() == before


@pytest.mark.usefixtures("plane")  # which skips where none can be had; this one has to be its own
def test_an_injector_outlives_a_restart_of_the_api_server(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(control_plane.running(tmp_path))
        admin = stack.enter_context(contextlib.closing(client.Client(plane.kubeconfig)))
        installed = installation.Installation(admin, "restart")
        port = loopback.free_port()
        installed.install(port)
        injector = installation.Injector(installed, plane.kubeconfig_of(installed.user), tmp_path, port=port)
        stack.callback(injector.stop)
        injector.start()
        before = steps.create_namespace(admin, "before", {**installed.labels, manifests.INJECT: "enabled"})
        steps.wait_until_effective(admin, before)
        plane.restart("kube-apiserver")
        assert injector.is_ready()
        steps.wait_until_effective(admin, before)
        # What the injector has not heard of yet it reads, also while its watch is not back.
        after = steps.create_namespace(admin, "after", {**installed.labels, manifests.INJECT: "enabled"})
        assert manifests.has_sidecar(admin.create(manifests.pod(after, labels={})).object)


def test_an_injector_without_its_rights_says_which_it_lacks(
    admin: client.Client, new_installation: steps.NewInstallation, plane: control_plane.ControlPlane, tmp_path: Path
) -> None:
    installed = new_installation()
    installed.install(loopback.free_port())
    injector = installation.Injector(installed, plane.kubeconfig_of("stranger"), tmp_path)
    with contextlib.closing(injector):
        with pytest.raises(processes.ProcessFailed):
            injector.start(within=15)
        told = injector.readiness()
    assert "mutatingwebhookconfigurations" in told
    assert 'verbs: ["get"]' in told
    assert "namespaces" in told
