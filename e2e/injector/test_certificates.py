"""The injector's own certificates: made, published, shared between replicas and replaced while pods keep coming."""

from __future__ import annotations

import base64
import concurrent.futures
import datetime
import socket
import ssl
import time
from collections.abc import Callable

import pytest
from cryptography import x509

from carpool_injector.certificates import pki, rotation
from e2e.cluster import client, control_plane
from e2e.injector import installation, manifests, steps
from tests import loopback

# The injector looks at its Secret once a minute.
LOOKS_WITHIN_SECONDS = 75.0


def test_every_webhook_is_told_whom_to_trust(shared: installation.Installation) -> None:
    bundles = shared.ca_bundles()
    assert len(bundles) == 7
    assert len(set(bundles)) == 1
    assert len(authorities(shared)) == 1


def test_the_certificates_are_kept_in_the_secret(admin: client.Client, shared: installation.Installation) -> None:
    data = admin.get("Secret", shared.secret, shared.namespace)["data"]
    assert set(rotation.KEYS) <= data.keys()
    assert base64.b64decode(data[rotation.BUNDLE]).strip() == bundle_of(shared).strip()


def test_replicas_that_start_at_once_agree_on_one_authority(
    admin: client.Client,
    new_installation: steps.NewInstallation,
    new_namespace: steps.NewNamespace,
    start_injector: steps.StartInjector,
) -> None:
    installed = new_installation()
    ports = loopback.free_ports(3)
    installed.install(ports[0], "Fail")
    with concurrent.futures.ThreadPoolExecutor(len(ports)) as pool:
        list(pool.map(lambda port: start_injector(installed, port=port), ports))
    assert len(authorities(installed)) == 1
    assert all(served_certificate(installed, port) for port in ports)
    namespace = new_namespace(installed.labels)
    for port in ports:
        installed.call_at(port)
        steps.wait_until_effective(admin, namespace)


def test_a_replica_that_joins_later_takes_over_what_it_finds(
    admin: client.Client, new_installation: steps.NewInstallation, start_injector: steps.StartInjector
) -> None:
    installed = new_installation()
    first, second = loopback.free_ports(2)
    installed.install(first)
    start_injector(installed, port=first)
    before = admin.get("Secret", installed.secret, installed.namespace)["data"]
    start_injector(installed, port=second)
    assert admin.get("Secret", installed.secret, installed.namespace)["data"] == before
    assert served_certificate(installed, first) == served_certificate(installed, second)


def outdate(admin: client.Client, installed: installation.Installation) -> None:
    """Makes the Secret one that has seen its days: the CA is due, and so is the certificate, though both still work."""
    now = datetime.datetime.now(datetime.UTC)
    signer = pki.issue_authority(now - datetime.timedelta(days=366))
    names = pki.service_names(installed.name, installed.namespace)
    leaf = pki.issue_leaf(signer, names, now - datetime.timedelta(days=25))
    contents = {
        rotation.LEAF: leaf.certificate,
        rotation.LEAF_KEY: leaf.key,
        rotation.BUNDLE: signer.certificate,
        rotation.AUTHORITY_KEY: signer.key,
    }
    data = {key: base64.b64encode(value).decode() for key, value in contents.items()}
    metadata = {"name": installed.secret, "namespace": installed.namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
    try:
        admin.create(secret)
    except client.Refused:
        admin.replace(secret)


def lose(admin: client.Client, installed: installation.Installation) -> None:
    """Deletes the Secret, as people do."""
    admin.delete("Secret", installed.secret, installed.namespace)


@pytest.mark.timeout(240, func_only=True)
@pytest.mark.parametrize("what_happens", [outdate, lose])
def test_no_pod_is_refused_while_certificates_are_replaced(
    admin: client.Client,
    new_installation: steps.NewInstallation,
    new_namespace: steps.NewNamespace,
    start_injector: steps.StartInjector,
    what_happens: Callable[[client.Client, installation.Installation], None],
) -> None:
    installed = new_installation()
    port = loopback.free_port()
    installed.install(port, "Fail")
    namespace = new_namespace(installed.labels)
    start_injector(installed, port=port)
    steps.wait_until_effective(admin, namespace)
    before = set(authorities(installed))
    what_happens(admin, installed)
    created = create_pods_until(admin, installed, port, namespace, lambda: set(authorities(installed)) - before)
    assert created > 5  # hundreds where the machine has nothing else to do
    assert before < set(authorities(installed))


@pytest.mark.timeout(240, func_only=True)
def test_a_certificate_whose_time_has_come_is_replaced_at_the_start_without_refusing_a_pod(
    admin: client.Client,
    new_installation: steps.NewInstallation,
    new_namespace: steps.NewNamespace,
    start_injector: steps.StartInjector,
) -> None:
    installed = new_installation()
    port = loopback.free_port()
    installed.install(port, "Fail")
    outdate(admin, installed)
    old = admin.get("Secret", installed.secret, installed.namespace)["data"][rotation.LEAF]
    namespace = new_namespace(installed.labels)
    start_injector(installed, port=port)
    steps.wait_until_effective(admin, namespace)
    created = create_pods_until(admin, installed, port, namespace, lambda: len(authorities(installed)) == 2)
    assert created > 0
    assert served_certificate(installed, port) != x509.load_pem_x509_certificate(base64.b64decode(old))


def create_pods_until(
    admin: client.Client,
    installed: installation.Installation,
    port: int,
    namespace: str,
    is_over: Callable[[], object],
) -> int:
    """Creates pods until some time after `is_over`, and says how many. Each one gets the sidecar, or this raises.

    The API server keeps its connections open, so each time a new one is made here, with what it is told to trust.
    """
    created, deadline, end = 0, time.monotonic() + LOOKS_WITHIN_SECONDS, None
    while end is None or time.monotonic() < end:
        assert manifests.has_sidecar(admin.create(manifests.pod(namespace), dry_run=True).object)
        assert served_certificate(installed, port)
        created += 1
        if end is None and is_over():
            end = time.monotonic() + 5
        assert end or time.monotonic() < deadline, "nothing was replaced"
    return created


def bundle_of(installed: installation.Installation) -> bytes:
    """The caBundle (PEM) of an installation's first webhook."""
    return base64.b64decode(installed.ca_bundles()[0] or "")


def authorities(installed: installation.Installation) -> list[x509.Certificate]:
    """Whom the API server is told to trust."""
    return x509.load_pem_x509_certificates(bundle_of(installed))


def served_certificate(installed: installation.Installation, port: int) -> x509.Certificate:
    """The injector's certificate, verified with the published CAs. Raises ssl.SSLError where it is not valid."""
    context = ssl.create_default_context(cadata=bundle_of(installed).decode())
    name = f"{installed.name}.{installed.namespace}.svc"
    with (
        socket.create_connection((control_plane.HOST, port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown)
