"""Every expression that Carpool ships is understood by a real Prometheus, and tells something while there is traffic.

Beside a healthy sample runs a troubled one: its queue is short, and some of its callers make the model fail. And pods
ask for the sidecar in words that are wrong. So alerts and panels about trouble have something to tell, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

import pytest

from e2e.cluster import clusters, processes
from e2e.cluster import kubectl as kubectls
from e2e.live import objects, releases, traffic
from e2e.live.autoscaling import expressions, monitoring, prometheus, samples

TEST_SECONDS = 300
TROUBLED = "troubled"
TROUBLES = ("carpool_refused_total", "carpool_predictor_errors_total", "carpool_retries_total")
REFUSED_PODS = 'carpool_injector_reviews_total{result="refused"}'
ABOUT_TROUBLE = ("CarpoolSidecarOverloaded", "CarpoolPredictorFails")
SEEN_SECONDS = 90.0
# What may rightly have nothing to tell, and why.
EMPTY = {
    "CarpoolInjectorErrors": "no review has ended in an error",
    "CarpoolInjectorMissedPods": "no pod has missed its sidecar",
    "Reviews that ended in an error: {{reason}}": "no review has ended in an error",
    "gRPC calls: {{lane}} {{code}}": "the samples speak HTTP",
    "Limit of the predictor: {{pod}}": "no predictor has refused a batch for its size",
    "Namespaces: read: {{result}}": "the watch had told of each namespace before a review asked for it",
}


@pytest.fixture
def watched(
    cluster: clusters.Cluster, carpool: releases.Release, kubectl: kubectls.Kubectl, monitored: monitoring.Monitoring
) -> Iterator[prometheus.Prometheus]:
    """Prometheus, while both samples have callers and pods are refused, once it has seen all that for a while."""
    arguments, annotations = samples.settings_for_trouble()
    samples.deploy(kubectl, expressions.SAMPLE, samples.sample())
    samples.deploy(kubectl, TROUBLED, samples.sample(TROUBLED, arguments, **annotations))
    caller = traffic.Caller(cluster.ingress, objects.host(TROUBLED, kubectl.namespace))
    with (
        samples.load(cluster, expressions.SAMPLE, kubectl.namespace, pods=1.0),
        samples.bursts(caller, samples.PATH),
        samples.mistaken_pods(kubectl),
    ):
        for counter in (*(f'{name}{{namespace="{kubectl.namespace}"}}' for name in TROUBLES), REFUSED_PODS):
            grows = functools.partial(monitored.prometheus.query, f"rate({counter}[30s]) > 0")
            processes.eventually(grows, SEEN_SECONDS, f"Prometheus has seen {counter} grow")
        yield monitored.prometheus


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_all_that_carpool_ships_for_prometheus_is_answered(
    watched: prometheus.Prometheus, kubectl: kubectls.Kubectl
) -> None:
    check_targets(watched, kubectl)
    check_alerts(watched, kubectl)
    assert silent(watched, expressions.panels()) <= EMPTY.keys()
    for variable in expressions.variables():
        assert watched.label_values(variable.selector, variable.label), variable
    # KEDA shares out one number among pods of 0.7 each: the utilisations of the pods there are, summed.
    (together,) = watched.query(expressions.keda(kubectl.namespace))
    assert 0 < together.value < 3


def check_targets(asked: prometheus.Prometheus, kubectl: kubectls.Kubectl) -> None:
    """Each sidecar is scraped once, and the injectors are, and every scrape goes well."""
    where = (kubectl.namespace, releases.NAMESPACE)
    targets = [target for target in asked.targets() if target["labels"]["namespace"] in where]
    assert [target["lastError"] for target in targets if target["health"] != "up"] == []
    assert {target["labels"]["endpoint"] for target in targets} == {"carpool-admin", "metrics"}
    sidecars = [target["labels"]["pod"] for target in targets if target["labels"]["namespace"] == kubectl.namespace]
    assert sorted(sidecars) == names_of_pods(kubectl, "app")


def check_alerts(asked: prometheus.Prometheus, kubectl: kubectls.Kubectl) -> None:
    """Each alert is evaluated and measures something; those about the trouble tell of the troubled pods alone."""
    alerts = expressions.alerts(monitoring.chart_objects())
    rules = {rule["name"]: rule for rule in asked.rules()}
    assert rules.keys() == alerts.keys()
    assert {name: rule["lastError"] for name, rule in rules.items() if rule["health"] != "ok"} == {}
    assert silent(asked, {name: expressions.measured(text) for name, text in alerts.items()}) <= EMPTY.keys()

    troubled = names_of_pods(kubectl, f"app={TROUBLED}")

    def tells(name: str) -> bool:
        rule = next(rule for rule in asked.rules() if rule["name"] == name)
        raised = [alert["labels"] for alert in rule["alerts"] if alert["state"] in ("pending", "firing")]
        return sorted(each["pod"] for each in raised if each["namespace"] == kubectl.namespace) == troubled

    for name in ABOUT_TROUBLE:
        processes.eventually(functools.partial(tells, name), SEEN_SECONDS, f"{name} tells of {troubled} and no other")


def silent(asked: prometheus.Prometheus, questions: Mapping[str, str]) -> set[str]:
    """The names of questions that have no answer, or only answers that are no number. Raises prometheus.Wrong."""
    return {name for name, text in questions.items() if all(math.isnan(each.value) for each in asked.query(text))}


def names_of_pods(kubectl: kubectls.Kubectl, selector: str) -> list[str]:
    """In the order of the alphabet."""
    return sorted(pod["metadata"]["name"] for pod in kubectl.pods(selector))
