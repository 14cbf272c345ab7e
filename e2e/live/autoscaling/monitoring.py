"""Prometheus and prometheus-adapter in a cluster, with the chart's own PodMonitors: what the scalers need."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

from e2e.cluster import archives, binaries, clusters, credentials
from e2e.cluster import kubectl as kubectls
from e2e.live import objects
from e2e.live.autoscaling import expressions, prometheus
from tests.charts import helm

Object = dict[str, Any]

HERE = Path(__file__).parent
NAMESPACE = "monitoring"
METRICS_API = "v1beta1.custom.metrics.k8s.io"
DEPLOYMENTS = ("prometheus", "prometheus-adapter")
ACCESS = HERE / "access.yaml"
# Where the API server keeps what its extensions have to read, and so where one of the rights lies.
SYSTEM = "kube-system"
# Often, so that a test need not wait a minute for what it looks at.
INTERVAL = "5s"
CHART_VALUES = (
    "podMonitor.enabled=true", f"podMonitor.interval={INTERVAL}",
    "sidecarPodMonitor.enabled=true", f"sidecarPodMonitor.interval={INTERVAL}",
    "prometheusRule.enabled=true", "dashboard.enabled=true",
)  # fmt: skip
READY_SECONDS = 90


def chart_objects() -> list[Object]:
    """The chart's objects with all that it has for monitoring."""
    return kubectls.load(helm.template(*(f"--set={value}" for value in CHART_VALUES)))


class Monitoring:
    """Both programs in one cluster, in a namespace of their own."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self._cluster = cluster
        self.kubectl = kubectls.Kubectl(cluster.kubeconfig, NAMESPACE)
        self._system = kubectls.Kubectl(cluster.kubeconfig, SYSTEM)
        self.prometheus = prometheus.Prometheus(self._get)

    def install(self) -> None:
        """Returns when the API server answers for custom metrics. What an earlier run left is taken away first."""
        self.uninstall()
        for name in DEPLOYMENTS:
            self._cluster.load(archives.provide(image(name)))
        self.kubectl.run("create", "namespace", NAMESPACE)
        with tempfile.TemporaryDirectory() as folder:
            signer = credentials.Authority(Path(folder))
            self.kubectl.apply([*configuration(), certificate(signer)])
            bundle = signer.bundle.read_bytes()
        self._system.apply(ACCESS)
        for file in ("prometheus.yaml", "adapter.yaml"):
            self.kubectl.apply(HERE / file)
        for name in DEPLOYMENTS:
            self.kubectl.wait(f"deployment/{name}", "Available", READY_SECONDS)
        # Not before it is ready: while a registered API does not answer, no namespace of the cluster can be deleted.
        self._register(bundle)

    def uninstall(self) -> None:
        """Deletes everything; does nothing where nothing is installed."""
        self.kubectl.delete("apiservice", METRICS_API)
        self._system.run("delete", "--ignore-not-found", "-f", str(ACCESS))
        self.kubectl.delete("namespace", NAMESPACE)

    def custom_metric(self, namespace: str, metric: str) -> dict[str, float]:
        """What the API server says about a metric of the pods of a namespace, by pod. Raises kubectl.Failed."""
        path = f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/*/{metric}"
        items = json.loads(self.kubectl.raw(path))["items"]
        return {item["describedObject"]["name"]: quantity(item["value"]) for item in items}

    def _register(self, bundle: bytes) -> None:
        (service,) = kubectls.load(HERE / "apiservice.yaml")
        service["spec"]["caBundle"] = base64.b64encode(bundle).decode()
        self.kubectl.apply([service])
        self.kubectl.wait(f"apiservice/{METRICS_API}", "Available", READY_SECONDS)

    def _get(self, path: str) -> str:
        return self.kubectl.raw(f"/api/v1/namespaces/{NAMESPACE}/services/prometheus:http/proxy{path}")


def image(name: str) -> archives.Image:
    """The image of one of the programs, built now if it is not there. Raises as binaries.provide does."""
    return archives.Image(tag(name), binaries.provide(name), f"/{name}")


def tag(name: str) -> str:
    """What the image of a program is called."""
    return f"{name}:{binaries.PROGRAMS[name].version}"


def configuration() -> list[Object]:
    """The ConfigMaps of both: what to scrape and which alerts from the chart, the adapter's rules from the sample."""
    chart = chart_objects()
    monitors = [thing for thing in chart if thing["kind"] == "PodMonitor"]
    groups = [group for thing in chart if thing["kind"] == "PrometheusRule" for group in thing["spec"]["groups"]]
    settings = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": prometheus.configs(monitors),
    }
    return [
        # JSON, which is YAML.
        objects.config_map(
            "prometheus", {"prometheus.yaml": json.dumps(settings), "rules.yaml": json.dumps({"groups": groups})}
        ),
        objects.config_map("prometheus-adapter", {"rules.yaml": json.dumps(expressions.adapter_rules())}),
    ]


def certificate(signer: credentials.Authority) -> Object:
    """The Secret with the adapter's serving certificate: the API server calls it by its Service's name."""
    name = "prometheus-adapter"
    issued = signer.issue(name, name, hosts=[f"{name}.{NAMESPACE}.svc"])
    metadata = {"name": name, "namespace": NAMESPACE}
    pem = {"tls.crt": issued.certificate.read_text(), "tls.key": issued.key.read_text()}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "stringData": pem}


def quantity(text: str) -> float:
    """A number as the metrics API writes it: "1", "700m" (thousandths), "3k"."""
    factors = {"m": 1e-3, "k": 1e3, "M": 1e6}
    return float(text[:-1]) * factors[text[-1]] if text[-1] in factors else float(text)
