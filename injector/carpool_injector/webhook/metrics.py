"""Everything the webhook server counts, in one place and in base units (seconds).

Labels come from closed sets (webhooks, results, and the codes in `core.refusals`), never from pods, annotations or
namespaces: the number of time series does not depend on what people apply.
"""

from __future__ import annotations

import prometheus_client as prometheus

import carpool_injector
from carpool_injector.core import model, refusals

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One registry with all metrics; methods are named after what happened."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        self.reviews = self._counter("reviews", "Reviews answered.", "webhook", "result", "reason")
        self.injections = self._counter("injections", "Pods that got the sidecar.", "takeover", "mode")
        self.errors = self._counter("errors", "Reviews that got no answer but an HTTP error, by reason.", "reason")
        self.namespace_reads = self._counter(
            "namespace_reads", "Namespaces read directly, because the watch had not told of them.", "result"
        )
        self.events = self._counter("events", "Events for owners of pods: sent, failed, repeated, dropped.", "result")
        self.seconds = prometheus.Histogram(
            "carpool_injector_review_seconds", "Time from a review's head to its answer.", ("webhook",),
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.in_flight = self._gauge("reviews_in_flight", "Reviews at work now.")
        self.held_bytes = self._gauge("held_bytes", "Bytes of reviews held now.")
        self.namespaces_synced = self._gauge("namespaces_synced", "1 once all namespaces are known.")
        self.certificate_expiry = self._gauge(
            "certificate_not_after_timestamp_seconds", "When the certificate that is served ends; 0: there is none."
        )
        self.missed = self._gauge(
            "missed_pods", "Pods that should have the sidecar and were created without it, by who asks; --missed-pods.",
            "asked_by",
        )  # fmt: skip
        self.restarts = self._counter(
            "restarts", "Pods evicted to get the sidecar that they missed, by what came of it; --restart-missed-pods.",
            "result",
        )  # fmt: skip
        self.ready = self._gauge("ready", "1 while ready for reviews, else 0, as last asked.")
        self.draining = self._gauge("draining", "1 from the moment shutdown began.")
        self._info("build_info", "Always 1; the version is in the label.", "version", carpool_injector.__version__)

    def reviewed(self, webhook: str, result: str, reason: str) -> None:
        """A review was answered."""
        self.reviews.labels(webhook, result, reason if reason in refusals.CODES else "other").inc()

    def injected(self, plan: model.Plan) -> None:
        """A pod got the sidecar (and that was no dry run)."""
        self.injections.labels(plan.takeover, "native" if plan.native else "classic").inc()

    def configured(self, config_hash: str) -> None:
        """The admin's configuration was read."""
        self._info("config_info", "Always 1; the hash of the configuration is in the label.", "hash", config_hash)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return prometheus.generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(f"carpool_injector_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> prometheus.Gauge:
        return prometheus.Gauge(f"carpool_injector_{name}", text, labels, registry=self.registry)

    def _info(self, name: str, text: str, label: str, value: str) -> None:
        self._gauge(name, text, label).labels(value).set(1)
