"""What the autoscaling tests ask Prometheus and how they set it up, as far as it can be told without a cluster."""

from __future__ import annotations

import doctest
import re
from typing import Any

import pytest

from carpool_injector.core import container
from e2e.cluster import kubectl as kubectls
from e2e.live.autoscaling import expressions, monitoring, prometheus
from tests.charts import metric_names

Object = dict[str, Any]


def monitor(**spec: Any) -> Object:
    """A PodMonitor with one endpoint."""
    endpoints = [{"port": "http-admin", "path": "/metrics", "interval": "7s"}]
    metadata = {"name": "ours", "namespace": "watched"}
    return {"kind": "PodMonitor", "metadata": metadata, "spec": {"podMetricsEndpoints": endpoints, **spec}}


def kept(config: Object) -> dict[str, str]:
    """What a target has to match, by the label that is looked at."""
    rules = [rule for rule in config["relabel_configs"] if rule.get("action") == "keep"]
    return {rule["source_labels"][0]: rule["regex"] for rule in rules}


def test_a_pod_monitor_without_words_about_namespaces_means_its_own() -> None:
    (config,) = prometheus.configs([monitor(selector={})])
    (found_by,) = config["kubernetes_sd_configs"]
    assert found_by == {"role": "pod", "namespaces": {"names": ["watched"]}}
    assert (config["metrics_path"], config["scrape_interval"]) == ("/metrics", "7s")


def test_labels_are_looked_for_under_the_names_that_prometheus_gives_them() -> None:
    (config,) = prometheus.configs([monitor(selector={"matchLabels": {"app.kubernetes.io/name": "x.y"}})])
    assert kept(config)["__meta_kubernetes_pod_label_app_kubernetes_io_name"] == r"x\.y"


def test_a_selector_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="only matchLabels"):
        prometheus.configs([monitor(selector={"matchExpressions": []})])


def test_the_charts_monitor_of_sidecars_finds_their_port_in_all_namespaces() -> None:
    monitors = [thing for thing in monitoring.chart_objects() if thing["kind"] == "PodMonitor"]
    configs = {config["job_name"].split("/")[2]: config for config in prometheus.configs(monitors)}
    sidecars = configs["carpool-sidecars"]
    assert sidecars["kubernetes_sd_configs"] == [{"role": "pod"}]
    (port,) = kept(sidecars).values()
    assert re.fullmatch(port, container.ADMIN_PORT_NAME)


def test_series_have_the_labels_that_the_adapter_and_the_dashboard_ask_for() -> None:
    (config,) = prometheus.configs([monitor(selector={})])
    given = {rule["target_label"] for rule in config["relabel_configs"] if "target_label" in rule}
    assert given <= metric_names.FROM_THE_SCRAPE
    assert {"namespace", "pod"} <= given


def test_the_hpa_samples_comment_has_the_rule_for_its_metric() -> None:
    (rule,) = expressions.adapter_rules()["rules"]
    assert metric_names.problems(rule["seriesQuery"]) == []
    (metric,) = expressions.load("hpa.yaml")[0]["spec"]["metrics"]
    assert metric_names.named(rule["seriesQuery"]) == [metric["pods"]["metric"]["name"]]
    assert rule["resources"]["overrides"].keys() == {"namespace", "pod"}


def test_no_variable_of_grafanas_is_left_in_what_prometheus_is_asked() -> None:
    asked = [*expressions.panels().values(), *(variable.selector for variable in expressions.variables())]
    assert [text for text in asked if "$" in text] == []
    assert len(expressions.panels()) == sum(
        len(panel.get("targets", ())) for panel in expressions.dashboard()["panels"]
    )


def test_every_alert_measures_something() -> None:
    conditions = expressions.alerts(monitoring.chart_objects())
    assert all(metric_names.named(expressions.measured(condition)) for condition in conditions.values())


def test_an_alert_without_a_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="always on"):
        expressions.measured("sum(carpool_batches_total)")


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(expressions).failed == 0


@pytest.mark.parametrize(("name", "file"), [("prometheus", "prometheus.yaml"), ("prometheus-adapter", "adapter.yaml")])
def test_manifests_run_the_images_that_are_built(name: str, file: str) -> None:
    (deployment,) = [each for each in kubectls.load(monitoring.HERE / file) if each["kind"] == "Deployment"]
    (started,) = deployment["spec"]["template"]["spec"]["containers"]
    assert started["image"] == monitoring.tag(name)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("1", 1), ("700m", 0.7), ("1034m", 1.034), ("3k", 3000)])
def test_quantities_of_the_metrics_api_are_read(text: str, value: float) -> None:
    assert monitoring.quantity(text) == pytest.approx(value)
