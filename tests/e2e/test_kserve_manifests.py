"""How KServe's and Traefik's manifests are fitted to our clusters, without a cluster."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from e2e.cluster import binaries, clusters, ingress, installing, kserve_manifests

DEFINITION = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: a.example.com\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: kserve\n"
ISSUER = "apiVersion: cert-manager.io/v1\nkind: Issuer\nmetadata:\n  name: selfsigned\n"
WEBHOOKS = """apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: hooks
  creationTimestamp: null
  annotations: {cert-manager.io/inject-ca-from: kserve/serving-cert, kept: "yes"}
webhooks:
- {name: first.example.com, clientConfig: {service: {name: a}}}
- {name: second.example.com, clientConfig: {service: {name: a}}}
"""


@pytest.fixture
def arranged() -> kserve_manifests.Manifests:
    return kserve_manifests.arranged("---\n".join([DEFINITION, NAMESPACE, ISSUER, WEBHOOKS]))


def test_definitions_are_left_as_they_were_published(arranged: kserve_manifests.Manifests) -> None:
    assert arranged.definitions.strip() == DEFINITION.strip()


def test_namespaces_come_before_what_is_in_them(arranged: kserve_manifests.Manifests) -> None:
    assert [each["metadata"]["name"] for each in arranged.namespaces] == ["kserve"]


def test_nothing_is_left_that_needs_cert_manager(arranged: kserve_manifests.Manifests) -> None:
    (webhooks,) = arranged.others
    assert webhooks["metadata"] == {"name": "hooks", "annotations": {"kept": "yes"}}


def test_every_webhook_trusts_the_authority(arranged: kserve_manifests.Manifests) -> None:
    (webhooks,) = kserve_manifests.with_authority(arranged.others, b"PEM")
    assert [each["clientConfig"]["caBundle"] for each in webhooks["webhooks"]] == [
        base64.b64encode(b"PEM").decode()
    ] * 2


def deployment() -> dict[str, Any]:
    manager = {
        "name": "manager",
        "image": "x",
        "readinessProbe": {},
        "resources": {"limits": {"cpu": "100m", "memory": "1"}},
    }
    return {"spec": {"template": {"spec": {"containers": [manager, {"name": "kube-rbac-proxy", "image": "y"}]}}}}


def test_the_controllers_pod_wants_no_image_but_ours() -> None:
    given = deployment()
    kserve_manifests.fit_deployment(given)
    (manager,) = given["spec"]["template"]["spec"]["containers"]
    assert manager["image"] == f"kserve-controller:{binaries.KSERVE_VERSION}"
    assert manager["imagePullPolicy"] == "IfNotPresent"
    assert manager["resources"]["limits"] == {"memory": "1"}


def config() -> dict[str, Any]:
    published = {key: json.dumps({"image": "kserve/other", "kept": 1}) for key in kserve_manifests.SETTINGS}
    return {"data": {"_example": "comments", "credentials": "{}", **published}}


def test_settings_are_written_over_the_published_ones_and_the_rest_stays() -> None:
    given = config()
    kserve_manifests.fit_config(given)
    assert json.loads(given["data"]["deploy"])["defaultDeploymentMode"] == "Standard"
    assert json.loads(given["data"]["agent"]) == {"image": kserve_manifests.AGENT_TAG, "kept": 1}
    assert given["data"]["credentials"] == "{}"


def test_kserves_ingresses_are_for_our_ingress_controller() -> None:
    given = config()
    kserve_manifests.fit_config(given)
    settings = json.loads(given["data"]["ingress"])
    (ingress_class,) = [each for each in ingress.objects("traefik:v1") if each["kind"] == "IngressClass"]
    assert settings["ingressClassName"] == ingress_class["metadata"]["name"]
    assert settings["disableIngressCreation"] is False
    assert settings["disableIstioVirtualHost"] is True


def test_traefik_runs_from_the_image_that_was_loaded_behind_the_agreed_port() -> None:
    objects = {each["kind"]: each for each in ingress.objects("traefik:v1")}
    (container,) = objects["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "traefik:v1"
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert objects["Service"]["spec"]["ports"][0]["nodePort"] == clusters.INGRESS_NODE_PORT


@pytest.mark.parametrize(
    ("images", "loaded"),
    [
        ([["docker.io/library/traefik:v1"], ["docker.io/library/traefik:v1"]], True),
        ([["traefik:v1"], ["docker.io/library/traefik:v1", "other"]], True),
        ([["docker.io/library/traefik:v1"], ["docker.io/library/traefik:v2"]], False),
        ([["docker.io/library/traefik:v1"], []], False),
    ],
)
def test_an_image_is_loaded_when_every_node_has_it(images: list[list[str]], loaded: bool) -> None:
    nodes = [{"status": {"images": [{"names": names}]}} for names in images]
    assert installing.is_loaded(nodes, "traefik:v1") is loaded
