"""Objects of Kubernetes that tests make again and again: a way in for callers, and files for pods."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.cluster import client, ingress

DOMAIN = "example.com"


def host(service: str, namespace: str) -> str:
    """By which the ingress routes to a Service."""
    return f"{service}.{namespace}.{DOMAIN}"


def way_in(service: str, namespace: str) -> client.Object:
    """An Ingress that sends requests for `host` to port 80 of a Service, and so to its pods in turn.

    Through the Service alone, a connection sticks to one pod.
    """
    backend = {"service": {"name": service, "port": {"number": 80}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": service},
        "spec": {
            "ingressClassName": ingress.CLASS,
            "rules": [{"host": host(service, namespace), "http": {"paths": paths}}],
        },
    }


def config_map(name: str, files: Mapping[str, str]) -> client.Object:
    """Files for pods, or for programs."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}
