"""The webhook's certificate is replaced, as its age demands, while pods are being created: all get the sidecar."""

from __future__ import annotations

import base64
import contextlib
import datetime
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator

from cryptography import x509

from carpool_injector.certificates import pki, rotation
from e2e.cluster import client, clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.live import releases
from e2e.live.faults import predictors, watching
from tests import loopback

SERVICE = "carpool-injector"
SECRET = "carpool-injector-certificates"
WEBHOOKS = "zz-carpool-injector"
PORT = 9443
# The injector looks at its Secret every few seconds. One that was started just now waits before it changes its
# certificate, until it has seen for five minutes that the API server is told whom to trust.
ROTATED_SECONDS = 400.0
SETTLED_SECONDS = 60.0
ASKED_SECONDS = 2.0
FORWARDED_SECONDS = 15.0
PODS_BEFORE, PODS_AFTER = 10, 40


def outdate(admin: client.Client) -> None:
    """Puts a certificate of the injector's own CA into the Secret that is valid, but old enough to be replaced."""
    stored = admin.get("Secret", SECRET, releases.NAMESPACE)["data"]
    contents = {key: base64.b64decode(value) for key, value in stored.items()}
    issued = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=25)
    names = pki.service_names(SERVICE, releases.NAMESPACE)
    leaf = pki.issue_leaf(signer_in(contents), names, issued)
    changed = {rotation.LEAF: leaf.certificate, rotation.LEAF_KEY: leaf.key}
    data = {key: base64.b64encode(value).decode() for key, value in changed.items()}
    admin.patch("Secret", SECRET, {"data": data}, releases.NAMESPACE)


def signer_in(contents: dict[str, bytes]) -> pki.Pair:
    """The CA, of those in the Secret, whose key is there as well."""
    key = contents[rotation.AUTHORITY_KEY]
    pairs = [pki.Pair(pki.write_certificates([each]), key) for each in pki.read_certificates(contents[rotation.BUNDLE])]
    return next(pair for pair in pairs if pki.why_no_pair(pair) is None)


def published(admin: client.Client) -> bytes:
    """The CAs (PEM) that the API server is told to trust."""
    webhooks = admin.get("MutatingWebhookConfiguration", WEBHOOKS)["webhooks"]
    (bundle,) = {each["clientConfig"]["caBundle"] for each in webhooks}
    return base64.b64decode(bundle)


@contextlib.contextmanager
def forwarded(kubectl: kubectls.Kubectl, pod: str) -> Iterator[tuple[str, int]]:
    """A local address that leads to the injector in a pod."""
    port = loopback.free_port()
    command = kubectl.command("port-forward", f"pod/{pod}", f"{port}:{PORT}", "--address=127.0.0.1")
    forwarding = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert forwarding.stdout is not None
        assert "Forwarding" in forwarding.stdout.readline()
        yield "127.0.0.1", port
    finally:
        forwarding.kill()
        forwarding.communicate()


def shown_by(kubectl: kubectls.Kubectl, pod: str, trusted: bytes) -> x509.Certificate:
    """The injector's certificate, verified with the published CAs. Raises ssl.SSLError where it is not valid."""
    context = ssl.create_default_context(cadata=trusted.decode())
    name = f"{SERVICE}.{releases.NAMESPACE}.svc"
    with (
        forwarded(kubectl, pod) as address,
        socket.create_connection(address, timeout=FORWARDED_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown)


def test_no_pod_is_missed_while_the_certificate_is_replaced(
    cluster: clusters.Cluster,
    admin: client.Client,
    kubectl: kubectls.Kubectl,
    predictor: predictors.Predictor,
    carpool: releases.Release,
    watch: watching.StartWatch,
) -> None:
    injectors = predictors.names(carpool.kubectl, releases.INJECTORS)
    before = {each: shown_by(carpool.kubectl, each, published(admin)) for each in injectors}

    def is_replaced() -> bool:
        """Every injector serves a new certificate that the API server trusts."""
        time.sleep(ASKED_SECONDS)  # each call starts a kubectl, which takes CPU from the callers
        return all(shown_by(carpool.kubectl, each, published(admin)) != before[each] for each in injectors)

    with (
        watch("webhook's certificate replaced", predictor.host, planned=True) as seen,
        watching.creating_pods(cluster.kubeconfig, kubectl.namespace) as pods,
    ):
        pods.wait_for(PODS_BEFORE, SETTLED_SECONDS)
        began = seen.load.now
        outdate(admin)
        processes.eventually(is_replaced, ROTATED_SECONDS, "all injectors show a new certificate")
        seen.facts["replaced_after_s"] = round(seen.load.now - began, 1)
        pods.wait_for(PODS_AFTER, SETTLED_SECONDS)
        seen.facts |= {"pods_with_sidecar": pods.injected, "pods_without": pods.missed + pods.refused}
    assert pods.missed == 0, str(pods)
    assert not pods.refusals, str(pods)
    seen.check_nothing_failed()
