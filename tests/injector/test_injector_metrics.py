"""What is counted, and that what people apply makes no time series."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import metrics, reviewing
from tests.injector import reviews

NAMESPACES = reviews.Known({"models": model.Namespace("models"), "other": model.Namespace("other")})


def a_reviewer(counts: metrics.Metrics) -> reviewing.Reviewer:
    def validate(request: review.Request) -> review.Verdict:
        return review.Verdict(review.Answer(), "fine")

    return reviewing.Reviewer(reviews.inject, validate, NAMESPACES, counts)


def labelled(**labels: str) -> dict[str, Any]:
    return {**reviews.POD, "metadata": {"name": "pod", "labels": labels}}


def series(counts: metrics.Metrics, family: str) -> set[tuple[tuple[str, str], ...]]:
    """The label sets of a family."""
    samples = (sample for metric in counts.registry.collect() for sample in metric.samples)
    return {tuple(sorted(sample.labels.items())) for sample in samples if sample.name == f"carpool_injector_{family}"}


@pytest.mark.parametrize(
    ("fate", "result", "reason"),
    [
        ("injected", "injected", ""),
        ("refused", "refused", "unknown-server"),
        ("skipped", "skipped", "not-a-predictor"),
        ("unconcerned", "unconcerned", "not-asked"),
    ],
)
async def test_each_review_counts_by_webhook_result_and_reason(fate: str, result: str, reason: str) -> None:
    counts = metrics.Metrics()
    await a_reviewer(counts).mutate(reviews.request(labelled(fate=fate)))
    expected = (("reason", reason), ("result", result), ("webhook", "mutate"))
    assert series(counts, "reviews_total") == {expected}
    assert len(series(counts, "injections_total")) == (1 if fate == "injected" else 0)


async def test_a_dry_run_counts_as_such_and_not_as_an_injection() -> None:
    counts = metrics.Metrics()
    await a_reviewer(counts).mutate(reviews.request(dryRun=True))
    assert series(counts, "injections_total") == set()
    assert (("reason", ""), ("result", "dry-run"), ("webhook", "mutate")) in series(counts, "reviews_total")


async def test_what_pods_and_namespaces_are_called_and_annotated_makes_no_series() -> None:
    counts = metrics.Metrics()
    reviewer = a_reviewer(counts)
    for number in range(50):
        pod = labelled(**{"carpool.dev/inject": "true", "carpool.dev/slo": str(number)})
        pod["metadata"] |= {"name": f"pod-{number}", "annotations": {"carpool.dev/slo": str(number)}}
        await reviewer.mutate(reviews.request(pod, namespace="models" if number % 2 else "other"))
        await reviewer.validate(reviews.request(pod))
    assert len(series(counts, "reviews_total")) == 2
    assert len(series(counts, "injections_total")) == 1


def test_names_have_base_units_and_the_prefix_of_the_project() -> None:
    counts = metrics.Metrics()
    counts.configured("ab12cd34")
    names = {metric.name for metric in counts.registry.collect() if not metric.name.startswith("process_")}
    assert all(name.startswith("carpool_injector_") for name in names)
    assert not any(unit in name for name in names for unit in ("millisecond", "_ms", "kilobyte", "minutes"))
    assert "carpool_injector_certificate_not_after_timestamp_seconds" in names
    assert 'carpool_injector_config_info{hash="ab12cd34"} 1.0' in counts.render().decode()
    assert "_created" not in counts.render().decode()
