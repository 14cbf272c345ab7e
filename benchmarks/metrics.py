"""What the sidecar says about itself: its Prometheus metrics, read from the admin port."""

from __future__ import annotations

from prometheus_client import parser

from benchmarks import client

BATCH_SIZE = "carpool_batch_size"

Buckets = dict[float, float]
"""A histogram: how many values so far do not exceed each bound."""


def totals(text: str) -> dict[str, float]:
    """Each sample name of a Prometheus text page with the sum of its values over all labels."""
    found: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def read(port: int, timeout: float = 10.0) -> dict[str, float]:
    """The totals of `/metrics` on a loopback port. Raises `OSError` when it does not answer."""
    return totals(page(port, timeout))


def page(port: int, timeout: float = 10.0) -> str:
    """`/metrics` on a loopback port. Raises `OSError` when it does not answer."""
    return client.get(f"http://127.0.0.1:{port}/metrics", timeout).decode()


def buckets(text: str, name: str) -> Buckets:
    """A histogram without labels on a Prometheus text page; empty if it is not there."""
    return {
        float(sample.labels["le"]): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    }


def count_between(before: Buckets, after: Buckets) -> int:
    """How many values came between two readings."""
    return round(max(after.values(), default=0.0) - max(before.values(), default=0.0))


def quantile_between(before: Buckets, after: Buckets, share: float) -> float | None:
    """The smallest bound that so many of the values between two readings do not exceed, infinite if that is none.

    None when no value came in between.
    """
    count = count_between(before, after)
    if not count:
        return None
    return min(bound for bound, value in after.items() if value - before.get(bound, 0.0) >= share * count)


def mean_batch_size(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Instances per batch between two readings; None when no batch left in between."""
    batches = after.get(f"{BATCH_SIZE}_count", 0.0) - before.get(f"{BATCH_SIZE}_count", 0.0)
    instances = after.get(f"{BATCH_SIZE}_sum", 0.0) - before.get(f"{BATCH_SIZE}_sum", 0.0)
    return instances / batches if batches > 0 else None
