"""What the Prometheus Operator makes of the chart's PodMonitors: Prometheus' own configuration.

So the chart's objects decide what is scraped, and under which labels, in a cluster without the operator too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Object = dict[str, Any]

POD = "__meta_kubernetes_pod"


def configs(monitors: Sequence[Object]) -> list[Object]:
    """A scrape configuration for each endpoint of each PodMonitor."""
    return [
        config(monitor, number, endpoint)
        for monitor in monitors
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def config(monitor: Object, number: int, endpoint: Object) -> Object:
    """Pods in reach are found by the API server's word; the relabelling keeps those that are chosen."""
    name, namespace = monitor["metadata"]["name"], monitor["metadata"]["namespace"]
    interval = {"scrape_interval": endpoint["interval"]} if "interval" in endpoint else {}
    return {
        "job_name": f"podMonitor/{namespace}/{name}/{number}",
        "metrics_path": endpoint["path"],
        **interval,
        "kubernetes_sd_configs": [{"role": "pod", **_namespaces(monitor)}],
        "relabel_configs": [
            _drop(f"{POD}_phase", "(Failed|Succeeded)"),
            *_chosen(monitor["spec"]["selector"]),
            _keep(f"{POD}_container_port_name", re.escape(endpoint["port"])),
            _copy("__meta_kubernetes_namespace", "namespace"),
            _copy(f"{POD}_container_name", "container"),
            _copy(f"{POD}_name", "pod"),
            {"target_label": "job", "replacement": f"{namespace}/{name}"},
            {"target_label": "endpoint", "replacement": endpoint["port"]},
        ],
    }


def _namespaces(monitor: Object) -> Object:
    selector = monitor["spec"].get("namespaceSelector", {})
    if selector.get("any"):
        return {}
    return {"namespaces": {"names": selector.get("matchNames", [monitor["metadata"]["namespace"]])}}


def _chosen(selector: Object) -> list[Object]:
    """Prometheus knows a label app.kubernetes.io/name as app_kubernetes_io_name. Raises ValueError for expressions."""
    if selector.keys() - {"matchLabels"}:
        raise ValueError(f"only matchLabels are understood here, not {selector}")
    return [
        _keep(f"{POD}_label_" + re.sub(r"\W", "_", label), re.escape(value))
        for label, value in selector.get("matchLabels", {}).items()
    ]


def _keep(label: str, pattern: str) -> Object:
    return {"action": "keep", "source_labels": [label], "regex": pattern}


def _drop(label: str, pattern: str) -> Object:
    return {"action": "drop", "source_labels": [label], "regex": pattern}


def _copy(label: str, target: str) -> Object:
    return {"source_labels": [label], "target_label": target}
