"""A sidecar that the InferenceService itself declares, where no webhook adds one."""

from __future__ import annotations

import pytest

from carpool_injector.core import refusals
from carpool_injector.objects import collocation
from tests.injector.object_samples import CONFIG, MODE, Object, service


def declared(thing: Object) -> Object:
    found, _ = collocation.declared(thing, CONFIG)
    return found


def test_a_declared_sidecar_takes_no_port_that_the_server_has_and_stays_one_when_declared_again() -> None:
    thing = service(metadata={"annotations": {MODE: "Standard", "carpool.dev/port": "9083"}})
    once = declared(thing)
    [container] = once["spec"]["predictor"]["containers"]
    assert container["ports"][0]["containerPort"] == 9084
    assert declared(once) == once


def test_volumes_of_others_stay_when_a_declared_sidecar_goes() -> None:
    volumes = [{"name": "cache", "emptyDir": {}}]
    thing = service({"model": {"modelFormat": {"name": "sklearn"}}, "volumes": volumes})
    assert collocation.removed(declared(thing)) == thing


@pytest.mark.parametrize("mode", [None, "Knative"])
@pytest.mark.parametrize("key", ["readinessProbe", "livenessProbe"])
def test_a_probe_of_the_server_is_refused_unless_the_mode_is_certain_to_be_standard(key: str, mode: str | None) -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}, key: {"tcpSocket": {"port": 8080}}}}
    annotations = {MODE: mode} if mode else {}
    with pytest.raises(refusals.Refusal, match=key):
        declared(service(predictor, metadata={"annotations": annotations}))
    assert declared(service(predictor, metadata={"annotations": {MODE: "Standard"}}))


@pytest.mark.parametrize("name", ["grpc", "h2c-x", "http2"])
def test_a_server_that_speaks_no_http1_is_refused(name: str) -> None:
    server = {"name": "kserve-container", "ports": [{"containerPort": 9000, "name": name}]}
    with pytest.raises(refusals.Refusal, match="gRPC or HTTP/2"):
        declared(service({"containers": [server]}, metadata={"annotations": {MODE: "Standard"}}))


@pytest.mark.parametrize(("word", "warned"), [("true", True), ("false", False)])
def test_only_a_label_that_asks_for_a_second_sidecar_is_warned_of(word: str, warned: bool) -> None:
    thing = service(labels={"carpool.dev/inject": word}, metadata={"annotations": {MODE: "Standard"}})
    _, told = collocation.declared(thing, CONFIG)
    assert any("second sidecar" in text for text in told) is warned
    assert not any("should its runtime declare a port" in text for text in told)


def test_containers_beside_a_runtime_need_no_server_among_them() -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}}, "containers": [{"name": "exporter"}]}
    found = declared(service(predictor, metadata={"annotations": {MODE: "Standard"}}))
    assert [each["name"] for each in found["spec"]["predictor"]["containers"]] == ["exporter", "transformer-container"]
    del predictor["model"]
    with pytest.raises(refusals.Refusal, match="finds a custom predictor by its name only"):
        declared(service(predictor, metadata={"annotations": {MODE: "Standard"}}))


def test_a_startup_probe_of_the_server_is_no_trouble_with_knative() -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}, "startupProbe": {"tcpSocket": {"port": 8080}}}}
    assert declared(service(predictor, metadata={"annotations": {MODE: "Knative"}}))
