"""KServe's manifests, from its own Go module: as published, and fitted to our clusters.

Those have Traefik and nothing else of what KServe expects by default.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster import binaries, client, ingress
from e2e.cluster import kubectl as kubectls

Object = client.Object

NAMESPACE = "kserve"
# The files that a control plane without KServe's controller needs, to know InferenceServices.
DEFINITIONS = Path("config/crd/full")
WANTED = ("serving.kserve.io_inferenceservices.yaml",)
# Controller, webhooks, rights, ConfigMap and definitions: KServe without its LLM and model-cache controllers.
OVERLAY = "config/overlays/standalone/kserve"
MANAGER_TAG = f"kserve-controller:{binaries.KSERVE_VERSION}"
AGENT_TAG = f"kserve-agent:{binaries.KSERVE_VERSION}"
MANAGER = "manager"
DEFINITION = "\nkind: CustomResourceDefinition\n"
# The certificates are issued by kserve.py.
OF_CERT_MANAGER = "cert-manager.io/"
INJECTION = "cert-manager.io/inject-ca-from"

SOME_INFERENCE_SERVICE: Object = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "carpool-probe", "namespace": "default"},
    "spec": {"predictor": {"containers": [{"name": "kserve-container", "image": "carpool-probe"}]}},
}
SOME_POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "carpool-probe",
        "namespace": "default",
        "labels": {"serving.kserve.io/inferenceservice": "carpool-probe"},
    },
    "spec": {"containers": [{"name": "kserve-container", "image": "carpool-probe"}]},
}
# For each key of the ConfigMap, what is written over the members of its JSON.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "deploy": {"defaultDeploymentMode": "Standard"},
    "ingress": {
        "ingressClassName": ingress.CLASS,
        "ingressDomain": "example.com",
        "disableIngressCreation": False,
        "disableIstioVirtualHost": True,
    },
    "agent": {"image": AGENT_TAG},
    "batcher": {"image": AGENT_TAG},
    "logger": {"image": AGENT_TAG},
    # For containers that ask for nothing. KServe's 1 CPU and 2 GiB each would fill a test machine with two of them.
    "inferenceService": {
        "resource": {"cpuRequest": "50m", "memoryRequest": "64Mi", "cpuLimit": "1", "memoryLimit": "1Gi"}
    },
}


class Manifests(NamedTuple):
    """What is applied, in the order of its application."""

    definitions: str  # as published: 2 MB of YAML that nothing is changed in, and that takes long to read
    namespaces: list[Object]
    others: list[Object]


def module_folder() -> Path:
    """Where KServe's source lies, fetched now if it is not there. Raises binaries.Unavailable."""
    return binaries.fetch(binaries.KSERVE, binaries.KSERVE_VERSION)


def resource_definitions() -> list[client.Object]:
    """The CustomResourceDefinitions as KServe publishes them. Raises binaries.Unavailable and BuildFailed."""
    folder = module_folder() / DEFINITIONS
    definitions = []
    for name in WANTED:
        file = folder / name
        if not file.is_file():
            raise binaries.BuildFailed(f"{file} is not there; this KServe keeps its definitions elsewhere")
        definitions += kubectls.load(file)
    return definitions


def read() -> Manifests:
    """KServe's manifests, fitted; without the certificate and the webhooks' authority. Raises likewise."""
    folder = module_folder() / OVERLAY
    if not folder.is_dir():
        raise binaries.BuildFailed(f"{folder} is not there; this KServe keeps its manifests elsewhere")
    return arranged(kubectls.Kubectl(Path(os.devnull)).run("kustomize", str(folder)).output)


def arranged(published: str) -> Manifests:
    """The manifests in a stream as kustomize writes it: split at `---`, which stands in no document."""
    documents = published.split("\n---\n")
    definitions = [each for each in documents if DEFINITION in each]
    rest = kubectls.load("\n---\n".join(each for each in documents if DEFINITION not in each))
    objects = fitted(rest)
    namespaces = [each for each in objects if each["kind"] == "Namespace"]
    others = [each for each in objects if each["kind"] != "Namespace"]
    return Manifests("\n---\n".join(definitions), namespaces, others)


def fitted(published: list[Object]) -> list[Object]:
    """What KServe publishes, changed for our clusters."""
    kept = [each for each in published if not each["apiVersion"].startswith(OF_CERT_MANAGER)]
    changes: dict[str, Callable[[Object], None]] = {"Deployment": fit_deployment, "ConfigMap": fit_config}
    for each in kept:
        each["metadata"].get("annotations", {}).pop(INJECTION, None)
        # In published files it is null, which an applied object cannot own.
        each["metadata"].pop("creationTimestamp", None)
        if change := changes.get(each["kind"]):
            change(each)
    return kept


def fit_deployment(deployment: Object) -> None:
    """Our image, no proxy in front of the metrics (it is another image), and ready as soon as it can be."""
    pod = deployment["spec"]["template"]["spec"]
    (manager,) = [each for each in pod["containers"] if each["name"] == MANAGER]
    pod["containers"] = [manager]
    manager.update(image=MANAGER_TAG, imagePullPolicy="IfNotPresent")
    manager["readinessProbe"].update(initialDelaySeconds=1, periodSeconds=1, failureThreshold=30)
    # With a tenth of a core it needs most of a minute to start.
    del manager["resources"]["limits"]["cpu"]


def fit_config(config: Object) -> None:
    """Deployments and Ingresses instead of Knative and Istio; images that the nodes have."""
    data = config["data"]
    data.pop("_example", None)  # 30 KB of comments
    for key, changes in SETTINGS.items():
        data[key] = json.dumps({**json.loads(data[key]), **changes}, indent=2)


def with_authority(given: list[Object], bundle: bytes) -> list[Object]:
    """The same objects, with `bundle` (PEM) as what verifies the certificates of the webhooks among them."""
    for each in given:
        for webhook in each.get("webhooks", []):
            webhook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
    return given


def secret(name: str, contents: Mapping[str, bytes]) -> Object:
    """A Secret of type kubernetes.io/tls with these files."""
    data = {key: base64.b64encode(value).decode() for key, value in contents.items()}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}
