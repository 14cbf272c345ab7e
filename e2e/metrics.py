"""Pages in Prometheus' text format as numbers."""

from __future__ import annotations

from prometheus_client import parser


def samples(text: str) -> dict[str, float]:
    """Every sample as `name` or `name{label="value"}`, its labels in the order of the alphabet."""
    return {
        _name(sample.name, sample.labels): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found: dict[str, float], name: str) -> float:
    """One sample, or the sum of all of that name where it has no labels; 0 where there is none."""
    if "{" in name:
        return found.get(name, 0.0)
    return sum(value for each, value in found.items() if each.partition("{")[0] == name)


def _name(name: str, labels: dict[str, str]) -> str:
    text = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{text}}}" if text else name
