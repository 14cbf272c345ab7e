"""Every PromQL expression that Carpool ships, as Prometheus gets it: alerts, dashboard, and the samples of scalers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import promql_parser
from ruamel.yaml import YAML

from e2e.cluster import kubectl as kubectls
from tests.charts import helm

Object = dict[str, Any]

SAMPLES = helm.ROOT / "manifests" / "samples"
# Of what the samples are about, and what they say about where it is.
SAMPLE, SAMPLE_NAMESPACE = "embeddings", "default"
# All that a person can choose in Grafana, and the shortest time in which a rate is certain with 5 s between scrapes.
GRAFANA = {"$namespace": ".*", "$pod": ".*", "$injector_namespace": ".*", "$__rate_interval": "30s"}
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
EXCEPTIONS = frozenset({"and", "unless"})


class Variable(NamedTuple):
    """A choice that Grafana offers: the values that a label has among the series that a selector picks."""

    name: str
    selector: str
    label: str


def load(name: str) -> list[Object]:
    """The objects of a sample."""
    return kubectls.load(SAMPLES / name)


def alerts(chart: Iterable[Object]) -> dict[str, str]:
    """The condition of each alert in the chart's objects."""
    groups = [group for thing in chart if thing["kind"] == "PrometheusRule" for group in thing["spec"]["groups"]]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def measured(condition: str) -> str:
    """What an alert measures: its condition without the threshold, which a healthy cluster does not reach.

    >>> measured("sum(rate(carpool_retries_total[5m])) > 0.05")
    'sum(rate(carpool_retries_total[5m]))'
    >>> measured("absent(carpool_injector_ready == 1)")
    'carpool_injector_ready'
    >>> measured("a > 0 unless on (pod) b > 0")
    'a'
    """
    parsed = promql_parser.parse(condition)
    while isinstance(parsed, promql_parser.BinaryExpr) and str(parsed.op) in EXCEPTIONS:
        parsed = parsed.lhs
    if isinstance(parsed, promql_parser.Call) and parsed.func.name == "absent":
        parsed = parsed.args[0]
    if not isinstance(parsed, promql_parser.BinaryExpr) or str(parsed.op) not in COMPARISONS:
        raise ValueError(f"an alert that compares nothing is always on: {condition}")
    return str(parsed.lhs.prettify())


def panels() -> dict[str, str]:
    """The expression of each line of the dashboard, by panel and legend, with all namespaces and pods chosen."""
    return {
        f"{panel['title']}: {target['legendFormat']}": chosen(target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    }


def variables() -> list[Variable]:
    """The queries with which Grafana fills the choices at the top of the dashboard."""
    found = []
    for each in dashboard()["templating"]["list"]:
        if each["type"] == "query":
            selector, _, label = each["query"]["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            found.append(Variable(each["name"], chosen(selector), label))
    return found


def dashboard() -> Object:
    """The dashboard as the chart ships it."""
    found: Object = json.loads((helm.CHART / "files" / "dashboard.json").read_text())
    return found


def chosen(expression: str, values: Mapping[str, str] = GRAFANA) -> str:
    """An expression with Grafana's variables replaced."""
    for name, value in sorted(values.items(), reverse=True):
        expression = expression.replace(name, value)
    return expression


def keda(namespace: str) -> str:
    """The query of the KEDA sample, for a namespace of ours."""
    (trigger,) = load("keda.yaml")[0]["spec"]["triggers"]
    return str(trigger["metadata"]["query"]).replace(f'namespace="{SAMPLE_NAMESPACE}"', f'namespace="{namespace}"')


def adapter_rules() -> Object:
    """The configuration for prometheus-adapter that the HPA sample gives in its comment."""
    comment = [line for line in (SAMPLES / "hpa.yaml").read_text().splitlines() if line.startswith("#")]
    start = next(number for number, line in enumerate(comment) if line.strip("# ") == "rules:")
    rules = YAML(typ="safe", pure=True).load("\n".join(line.removeprefix("#") for line in comment[start:]))["rules"]
    return {"rules": rules["custom"]}
