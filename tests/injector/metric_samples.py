"""What the injector's metrics have counted."""

from __future__ import annotations

from carpool_injector.webhook import metrics


def sample(counts: metrics.Metrics, name: str, **labels: str) -> float | None:
    return counts.registry.get_sample_value(f"carpool_injector_{name}", labels)
