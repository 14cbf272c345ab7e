"""Prometheus: the scrape configuration for the chart's PodMonitors, and questions by its HTTP API."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]
POD = "__meta_kubernetes_pod"


class Sample(NamedTuple):
    """A time series and its value now."""

    labels: dict[str, str]
    value: float


class Wrong(Exception):
    """Prometheus did not answer with success. The message is what it said."""


class Prometheus:
    """One server. `get` answers a GET of a path such as /api/v1/query?query=up with the body."""

    def __init__(self, get: Callable[[str], str]) -> None:
        self._get = get

    def query(self, expression: str) -> list[Sample]:
        """The instant vector that an expression gives now; a scalar is one sample without labels. Raises Wrong."""
        answer = self._ask("query", query=expression)
        if answer["resultType"] == "scalar":
            return [Sample({}, float(answer["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def label_values(self, selector: str, label: str) -> list[str]:
        """The values of a label among the series that a selector picks. Raises Wrong."""
        values: list[str] = self._ask(f"label/{label}/values", **{"match[]": selector})
        return values

    def targets(self) -> list[Object]:
        """The targets that are scraped, with their health. Raises Wrong."""
        found: list[Object] = self._ask("targets", state="active")["activeTargets"]
        return found

    def rules(self) -> list[Object]:
        """All rules that are evaluated, with their health and last error. Raises Wrong."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, endpoint: str, **parameters: str) -> Any:
        text = self._get(f"/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(text)
        if answer["status"] != "success":
            raise Wrong(f"{parameters}: {answer.get('errorType')}: {answer.get('error')}")
        return answer["data"]


def configs(monitors: Sequence[Object]) -> list[Object]:
    """A scrape configuration for each endpoint of each PodMonitor."""
    return [
        config(monitor, number, endpoint)
        for monitor in monitors
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def config(monitor: Object, number: int, endpoint: Object) -> Object:
    """Prometheus finds the pods through the API server; the relabelling keeps those that the PodMonitor selects."""
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
