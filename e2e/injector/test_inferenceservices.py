"""Warnings and denials when somebody applies an InferenceService, with KServe's own resource definition."""

from __future__ import annotations

import pytest

from e2e.cluster import client
from e2e.injector import manifests

pytestmark = pytest.mark.usefixtures("inference_services")

BATCHER = {"maxBatchSize": 32, "maxLatency": 500}


def test_an_inference_service_that_asks_for_the_sidecar_is_stored_as_it_was_applied(
    admin: client.Client, namespace: str
) -> None:
    asked = manifests.inference_service(namespace, {manifests.INJECT: "true"}, batcher=BATCHER)
    stored = admin.create(asked).object
    assert stored["spec"]["predictor"]["batcher"] == BATCHER
    assert stored["metadata"]["annotations"][manifests.INJECT] == "true"


@pytest.mark.parametrize("place", ["the service", "its predictor"])
def test_a_setting_that_cannot_be_used_is_refused_wherever_it_stands(
    admin: client.Client, namespace: str, place: str
) -> None:
    bad = {"carpool.dev/max-batch-size": "0"}
    if place == "the service":
        service = manifests.inference_service(namespace, {manifests.INJECT: "true", **bad})
    else:
        service = manifests.inference_service(namespace, {manifests.INJECT: "true"}, annotations=bad)
    with pytest.raises(client.Refused, match=r"carpool\.dev/max-batch-size") as refused:
        admin.create(service)
    assert "'0'" in refused.value.message


def test_a_setting_that_cannot_be_used_is_refused_on_update_too(admin: client.Client, namespace: str) -> None:
    stored = admin.create(manifests.inference_service(namespace, {manifests.INJECT: "true"})).object
    change = {"metadata": {"annotations": {"carpool.dev/max-batch-size": "lots"}}}
    with pytest.raises(client.Refused, match="'lots'"):
        admin.patch("InferenceService", stored["metadata"]["name"], change, namespace)


def test_a_concurrency_that_no_batch_can_fill_is_told(admin: client.Client, namespace: str) -> None:
    annotations = {manifests.INJECT: "true", "serving.kserve.io/deploymentMode": "Knative"}
    service = manifests.inference_service(namespace, annotations, containerConcurrency=1, batcher=BATCHER)
    assert any("containerConcurrency" in warning for warning in admin.create(service).warnings)


def test_an_unknown_key_warns_with_the_nearest_one(admin: client.Client, namespace: str) -> None:
    annotations = {manifests.INJECT: "true", "carpool.dev/max-latencies": "5"}
    warnings = admin.create(manifests.inference_service(namespace, annotations, batcher=BATCHER)).warnings
    assert any("did you mean carpool.dev/max-latency" in warning for warning in warnings)


def test_an_inference_service_that_does_not_speak_of_batching_hears_nothing(
    admin: client.Client, namespace: str
) -> None:
    answer = admin.create(manifests.inference_service(namespace))
    assert answer.warnings == ()


def test_fields_that_are_younger_than_the_definition_do_not_stop_it(admin: client.Client, namespace: str) -> None:
    service = manifests.inference_service(namespace, {manifests.INJECT: "true"}, batcher=BATCHER, younger={"a": 1})
    answer = admin.create(service)
    assert answer.object["spec"]["predictor"]["batcher"] == BATCHER
