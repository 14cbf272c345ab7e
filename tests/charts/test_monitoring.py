"""Alerts, dashboard and monitors are about series that exist, and find the pods that show them."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest

from carpool.scheduling import messages
from carpool_injector.certificates import pki, rotation
from carpool_injector.core import container
from carpool_sidecar import errors, metrics
from carpool_sidecar.batching import executor
from tests.charts import helm, metric_names, objects, one_pod

DASHBOARD = json.loads((helm.CHART / "files" / "dashboard.json").read_text())
ALERTS = (
    "CarpoolInjectorNotReady", "CarpoolInjectorCertificateExpires", "CarpoolInjectorMissedPods",
    "CarpoolInjectorErrors", "CarpoolInjectorSlow", "CarpoolInjectorNamespacesUnknown",
    "CarpoolSidecarOverloaded", "CarpoolPredictorFails", "CarpoolSidecarStalls", "CarpoolNothingBatched",
)  # fmt: skip
EVENTS = [each for each in DASHBOARD["annotations"]["list"] if not each.get("builtIn")]
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def rules(*more: str) -> list[objects.Object]:
    found = objects.one(objects.rendered("--set", "prometheusRule.enabled=true", *more), "PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def alert(name: str) -> objects.Object:
    return next(rule for rule in rules() if rule["alert"] == name)


def test_series_are_known_by_the_names_under_which_they_are_shown() -> None:
    known = metric_names.series()
    assert known["carpool_requests_total"] == {"lane", "code"}
    assert known["carpool_injector_review_seconds_bucket"] == {"webhook", "le"}
    assert known["carpool_injector_config_info"] == {"hash"}
    assert metric_names.problems('sum by (lane) (rate(carpool_requests{code="500"}[5m]))') == [
        "carpool_requests has no label lane",
        "carpool_requests is counted by nobody",
    ]
    assert metric_names.problems('carpool_requests_total{reason="full"}') == [
        "carpool_requests_total has no label reason"
    ]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_about_series_that_exist(name: str) -> None:
    rule = alert(name)
    assert metric_names.named(rule["expr"])
    assert metric_names.problems(rule["expr"]) == []


@pytest.mark.parametrize("name", ALERTS)
def test_what_an_alert_says_names_only_labels_that_it_has(name: str) -> None:
    rule = alert(name)
    said = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = {label.strip() for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in group.split(",")}
    assert said <= (kept or {"namespace", "pod"})
    assert "`{{" not in json.dumps(rule["annotations"])


def test_the_alerts_are_those_that_a_person_waits_for() -> None:
    assert tuple(rule["alert"] for rule in rules()) == ALERTS
    without = {rule["alert"] for rule in rules("--set", "prometheusRule.sidecars=false")}
    assert {name for name in without if not name.startswith("CarpoolInjector")} == set()


def test_the_alert_about_the_certificate_is_silent_as_long_as_renewal_works() -> None:
    life = pki.LEAF_LIFE
    left_at_renewal = life - life * 2 / 3
    days = re.search(r"< (\d+) \* 86400", alert("CarpoolInjectorCertificateExpires")["expr"])
    assert days is not None
    assert datetime.timedelta(days=int(days[1])) < left_at_renewal
    assert rotation.leaf_due.__doc__ is not None
    assert "two thirds" in rotation.leaf_due.__doc__


def test_thresholds_can_be_chosen() -> None:
    values = "prometheusRule.errorRatio=0.25,prometheusRule.reviewSeconds=2.5"
    chosen = " ".join(rule["expr"] for rule in rules("--set-json", values))
    assert chosen.count("> 0.25") == 3
    assert "> 2.5" in chosen


def batches(counters: metrics.Metrics, count: int) -> None:
    batch = messages.Batch("id", "key", [messages.Part(messages.Request("key", 1), 0, 1)], "isolate")
    observer = executor.Observer(counters)
    for _ in range(count):
        observer.sent(batch)


@pytest.mark.parametrize("reason", errors.reasons(errors.UpstreamError))
def test_the_alert_about_the_predictor_fires_when_more_of_its_calls_fail_than_may_for_whatever_reason(
    reason: str,
) -> None:
    counters = metrics.Metrics()
    expression = alert("CarpoolPredictorFails")["expr"]
    batches(counters, 100)
    counters.predictor_errors.labels(reason).inc(5)
    assert one_pod.value(expression, counters.registry) == 0
    counters.predictor_errors.labels(reason).inc()
    assert one_pod.value(expression, counters.registry) == 1
    batches(counters, 100)
    assert one_pod.value(expression, counters.registry) == 0


def test_reasons_that_an_alert_looks_for_are_reasons_that_are_given() -> None:
    expression = alert("CarpoolSidecarOverloaded")["expr"]
    reasons = set(re.findall(r'reason=~"([^"]*)"', expression)[0].split("|"))
    given = {kind.reason for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "reason")}
    assert reasons <= given


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_is_about_series_that_exist(panel: Any) -> None:
    expressions = [target["expr"] for target in panel["targets"]]
    assert all(metric_names.named(expression) for expression in expressions)
    assert [problem for expression in expressions for problem in metric_names.problems(expression)] == []
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panel))) <= VARIABLES


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["name"])
def test_an_event_is_about_series_that_exist_and_names_only_labels_that_it_has(event: Any) -> None:
    assert metric_names.named(event["expr"])
    assert metric_names.problems(event["expr"]) == []
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(event))) <= VARIABLES
    groups = re.findall(r"(?:sum by|group_left) \(([^)]*)\)", event["expr"])
    kept = {label.strip() for group in groups for label in group.split(",") if label.strip()}
    if "sum by" not in event["expr"]:
        kept |= {"namespace", "pod"}
    assert set(re.findall(r"\{\{(\w+)\}\}", event["titleFormat"] + event["textFormat"])) <= kept
    assert set(filter(None, event["tagKeys"].split(","))) <= kept


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["name"])
def test_older_and_newer_grafanas_ask_the_same_for_an_event(event: Any) -> None:
    """Up to Grafana 10 the query of an annotation is in `expr` and `step`, later in `target`."""
    assert event["target"]["expr"] == event["expr"]
    assert event["target"]["interval"] == event["step"]


def test_an_event_tells_of_every_reason_for_which_a_batch_leaves_out_of_turn() -> None:
    (told,) = [re.findall(r'reason=~"([^"]*)"', each["expr"]) for each in EVENTS if "reason=~" in each["expr"]]
    assert set(told[0].split("|")) == {*messages.RETRIES, messages.Reason.SUSPECT}


def test_panels_tell_of_what_has_happened_once() -> None:
    """Prometheus' increase() knows nothing of the first time: a series begins with 1, and grows by the second."""
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert [expression for expression in expressions if "increase(" in expression] == []


def test_panels_lie_beside_each_other_and_have_numbers_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_variables_ask_for_labels_of_series_that_exist() -> None:
    asked = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert asked
    for query in asked:
        form = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert form is not None
        assert metric_names.problems(form[1]) == []
        assert form[2] in metric_names.FROM_THE_SCRAPE


def test_grafana_finds_the_dashboard_and_gets_it_whole() -> None:
    found = objects.one(objects.scenario("monitoring"), "ConfigMap", "carpool-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["carpool.json"]) == DASHBOARD


def test_the_service_monitor_finds_a_service_that_is_for_it_alone() -> None:
    things = objects.scenario("monitoring")
    monitor = objects.one(things, "ServiceMonitor")["spec"]
    chosen = [
        service
        for service in objects.of_kind(things, "Service")
        if monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    (ports,) = [service["spec"]["ports"] for service in chosen]
    assert [port["name"] for port in ports] == [endpoint["port"] for endpoint in monitor["endpoints"]]


def test_the_pod_monitor_finds_the_injector() -> None:
    things = objects.scenario("host-network")
    monitor = objects.one(things, "PodMonitor")["spec"]
    labels = objects.one(things, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    names = {port["name"] for port in objects.container(things)["ports"]}
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= names


def test_sidecars_are_found_in_all_namespaces_by_the_port_that_they_have() -> None:
    monitor = objects.one(objects.scenario("monitoring"), "PodMonitor", "carpool-sidecars")["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    assert monitor["selector"] == {}
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == [container.ADMIN_PORT_NAME]


def test_nothing_for_prometheus_or_grafana_is_made_unless_asked_for() -> None:
    kinds = {thing["kind"] for thing in objects.rendered()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert [each["metadata"]["name"] for each in objects.of_kind(objects.rendered(), "ConfigMap")] == [
        "carpool-injector"
    ]
