"""Which time series exist, and which an expression is about: dashboards and alerts must not ask for what nobody counts.

Expressions are parsed as Prometheus parses them. What stands in for a variable of Grafana's is replaced first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser

from carpool_injector.core import config
from carpool_injector.webhook import metrics as injector_metrics
from carpool_sidecar import metrics as sidecar_metrics

# What the Prometheus Operator adds to each series.
FROM_THE_SCRAPE = frozenset({"namespace", "pod", "container", "job", "instance", "service", "endpoint"})
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@functools.cache
def series() -> Mapping[str, frozenset[str]]:
    """The name of each time series that sidecar and injector show, and its labels."""
    injector = injector_metrics.Metrics()
    injector.configured(config.Config().hash)
    return _shown(sidecar_metrics.Metrics().registry) | _shown(injector.registry)


def _shown(registry: Any) -> dict[str, frozenset[str]]:
    labels = {each._name: each._labelnames for each in registry._collector_to_names if hasattr(each, "_name")}
    return {
        family.name + suffix: frozenset(labels.get(family.name, ())) | ({"le"} if suffix == "_bucket" else set())
        for family in registry.collect()
        for suffix in _SUFFIXES[family.type]
    }


def named(expression: str) -> list[str]:
    """The series that an expression is about. Raises ValueError for what is no PromQL."""
    return [str(each.name) for each in _selectors(_parsed(expression))]


def problems(expression: str) -> list[str]:
    """What does not exist of the series and labels in a PromQL expression. Raises ValueError for what is none."""
    parsed = _parsed(expression)
    found = []
    for each in _nodes(parsed):
        if isinstance(each, promql_parser.VectorSelector):
            found += _of_selector(each)
        elif isinstance(each, promql_parser.AggregateExpr) and each.modifier is not None:
            found += _unknown(each.modifier.labels, [inner.name for inner in _selectors(each)])
    return found


def mentioned(text: str) -> list[str]:
    """Words in a text that have the form of our series, and are none."""
    return [word for word in re.findall(r"\bcarpool_\w+", text) if word not in series()]


def _of_selector(selector: Any) -> list[str]:
    if selector.name not in series():
        return [f"{selector.name} is counted by nobody"]
    return _unknown([matcher.name for matcher in selector.matchers.matchers], [selector.name])


def _unknown(labels: list[str], names: list[str]) -> list[str]:
    known = FROM_THE_SCRAPE.union(*(series().get(name, frozenset()) for name in names))
    return [f"{' and '.join(names)} has no label {label}" for label in labels if label not in known]


def _selectors(expression: Any) -> Iterator[Any]:
    return (each for each in _nodes(expression) if isinstance(each, promql_parser.VectorSelector))


def _parsed(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def _nodes(expression: Any) -> list[Any]:
    """Every part of an expression; a range vector is told by the selector in it."""
    found: list[Any] = []
    promql_parser.walk(expression, lambda each: found.append(each))
    return [each for each in found if not isinstance(each, promql_parser.MatrixSelector)]
