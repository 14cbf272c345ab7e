"""KServe's own controller and webhooks in a cluster: what turns an InferenceService into pods, Services and Ingresses.

Its manifests are those of its release, put together by kustomize as KServe's installation does; kserve_manifests.py
fits them to a cluster without image registry, cert-manager, Knative and Istio.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import tempfile
import time
from pathlib import Path

from cryptography import x509

from e2e.cluster import archives, binaries, client, clusters, credentials, installing, kserve_manifests, processes
from e2e.cluster import kubectl as kubectls

NAMESPACE = kserve_manifests.NAMESPACE
WORKLOAD = "deployment/kserve-controller-manager"
CERTIFICATE = "kserve-webhook-server-cert"
SERVER = "kserve-webhook-server-service.kserve.svc"
# A certificate that expires sooner is replaced.
LEFT_AT_LEAST = datetime.timedelta(days=1)
ESTABLISHED_SECONDS, SERVED_SECONDS = 60.0, 30.0
READY_SECONDS = 180.0
ANSWERS_SECONDS = 60.0


def manager_image() -> archives.Image:
    """The controller's image; builds the program if it is not there. Raises as binaries.provide does."""
    # The path is the one in the Deployment's `command`.
    return archives.Image(kserve_manifests.MANAGER_TAG, binaries.provide(binaries.KSERVE_MANAGER), "/manager")


def agent_image() -> archives.Image:
    """The image with KServe's own batcher, which its webhook gives to pods. Raises as binaries.provide does."""
    return archives.Image(kserve_manifests.AGENT_TAG, binaries.provide(binaries.KSERVE_AGENT), "/ko-app/agent")


def install(cluster: clusters.Cluster) -> None:
    """Returns when KServe's webhooks admit InferenceServices and their pods; changes nothing where they do.

    Raises clusters.Problem, and binaries.Unavailable and BuildFailed where it has to be built and cannot.
    """
    start = time.monotonic()
    with contextlib.closing(client.Client(cluster.kubeconfig)) as admin:
        for image in (manager_image(), agent_image()):
            installing.load(cluster, admin, image)
        manifests = kserve_manifests.read()
        apply_definitions(cluster, admin, manifests.definitions)
        installing.apply(cluster, manifests.namespaces)
        bundle = provide_certificate(cluster, admin)
        installing.apply(cluster, kserve_manifests.with_authority(manifests.others, bundle))
        kubectls.Kubectl(cluster.kubeconfig, NAMESPACE).wait_for_rollout(WORKLOAD, READY_SECONDS)
        wait_for_webhooks(admin)
    version = binaries.KSERVE_VERSION
    binaries.say(f"KServe {version} admits InferenceServices (after {time.monotonic() - start:.0f} s)")


def install_resource_definitions(admin: client.Client) -> None:
    """Returns when the API server serves InferenceServices."""
    for definition in kserve_manifests.resource_definitions():
        # What kubectl's server-side apply would leave out too: nothing but the API server writes a status.
        definition.pop("status", None)
        admin.create(definition)
    served = functools.partial(is_served, admin, "InferenceService")
    processes.eventually(served, SERVED_SECONDS, "InferenceService is served")


def is_served(admin: client.Client, kind: str) -> bool:
    try:
        admin.list(kind)
    except client.Refused:
        return False
    return True


def apply_definitions(cluster: clusters.Cluster, admin: client.Client, definitions: str) -> None:
    """Returns when the API server serves the resources: the objects and the controller after them need that."""
    names = [each.rpartition("/")[2] for each in installing.apply(cluster, definitions)]

    def established() -> bool:
        return all(is_established(admin.get("CustomResourceDefinition", name)) for name in names)

    try:
        processes.eventually(established, ESTABLISHED_SECONDS, f"the API server serves {', '.join(names)}")
    except TimeoutError as late:
        raise clusters.Problem(f"{late}; `kubectl describe crd` says why") from None


def is_established(definition: installing.Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def provide_certificate(cluster: clusters.Cluster, admin: client.Client) -> bytes:
    """The PEM bundle that verifies the webhooks' certificate. Issues one unless there is one that is valid for long.

    In production cert-manager does this. The authority's key is gone when this returns.
    """
    try:
        stored = admin.get("Secret", CERTIFICATE, NAMESPACE)["data"]
    except client.Refused as refused:
        if refused.status != 404:
            raise
        stored = {}
    if "ca.crt" in stored and lasts(base64.b64decode(stored["tls.crt"])):
        return base64.b64decode(stored["ca.crt"])
    with tempfile.TemporaryDirectory() as folder:
        signer = credentials.Authority(Path(folder))
        issued = signer.issue("webhooks", SERVER, hosts=[SERVER])
        files = {"ca.crt": signer.bundle, "tls.crt": issued.certificate, "tls.key": issued.key}
        contents = {name: file.read_bytes() for name, file in files.items()}
    installing.apply(cluster, [kserve_manifests.secret(CERTIFICATE, contents)])
    return contents["ca.crt"]


def lasts(certificate: bytes) -> bool:
    """Whether a PEM certificate is valid for longer than LEFT_AT_LEAST."""
    ends = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return ends - datetime.datetime.now(datetime.UTC) > LEFT_AT_LEAST


def wait_for_webhooks(admin: client.Client) -> None:
    """Sends dry runs until KServe's webhooks admit an InferenceService and a pod of one."""
    refusals: dict[str, str] = {}

    def admitted() -> bool:
        for question in (kserve_manifests.SOME_INFERENCE_SERVICE, kserve_manifests.SOME_POD):
            try:
                admin.create(question, dry_run=True)
            except client.Refused as refused:
                refusals["last"] = str(refused)
                return False
        return True

    try:
        processes.eventually(admitted, ANSWERS_SECONDS, "KServe's webhooks answer")
    except TimeoutError as late:
        raise clusters.Problem(f"{late}; the API server said: {refusals.get('last', 'nothing')}") from None
