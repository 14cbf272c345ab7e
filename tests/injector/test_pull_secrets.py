"""Sidecars' images are pulled with the admin's secrets: named once each, and taken out again with the sidecar."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector import config_file
from carpool_injector.core import injection, model, refusals
from carpool_injector.core.config import Config
from carpool_injector.objects import collocation, manifests
from tests.injector import object_samples, pods

CONFIG = Config(image_pull_secrets=["registry", "mirror"])
NAMESPACE = model.Namespace("models")


def injected(pod: model.Object, config: Config = CONFIG) -> model.Object:
    return injection.inject(pod, config, NAMESPACE, model.Capabilities()).pod


def named(pod: model.Object) -> list[str]:
    return [each["name"] for each in pod["spec"].get("imagePullSecrets", ())]


def test_a_pod_without_secrets_gets_the_admins() -> None:
    assert named(injected(pods.plain(pods.sklearn()))) == ["registry", "mirror"]


def test_a_secret_that_the_pod_has_already_is_not_named_twice_and_stays_when_the_sidecar_goes() -> None:
    pod = pods.plain(pods.sklearn(), imagePullSecrets=[{"name": "own"}, {"name": "mirror"}])
    done = injected(pod)
    assert named(done) == ["own", "mirror", "registry"]
    assert injection.uninject(done).pod == pod


def test_injecting_twice_is_injecting_once_and_another_configuration_replaces_what_the_first_one_added() -> None:
    done = injected(pods.plain(pods.sklearn()))
    assert injection.inject(done, CONFIG, NAMESPACE, model.Capabilities()).patch == []
    assert named(injected(done, Config(image_pull_secrets=["other"]))) == ["other"]
    assert "imagePullSecrets" not in injected(done, Config())["spec"]


def test_without_such_secrets_nothing_speaks_of_them() -> None:
    done = injected(pods.plain(pods.sklearn()), Config())
    assert "imagePullSecrets" not in done["spec"]
    assert "pullSecrets" not in done["metadata"]["annotations"]["carpool.dev/status"]


@pytest.mark.parametrize("bad", ["x", [1], [{"name": 3}]])
def test_secrets_that_are_no_list_of_names_are_malformed(bad: Any) -> None:
    with pytest.raises(refusals.Malformed, match="imagePullSecrets"):
        injected(pods.plain(pods.sklearn(), imagePullSecrets=bad))


@pytest.mark.parametrize("name", ["", "Registry", "a b", "x" * 254, "a/b", "-a"])
def test_a_name_that_no_secret_can_have_is_refused_in_the_configuration(name: str) -> None:
    with pytest.raises(refusals.BadConfig, match="imagePullSecrets"):
        config_file.parse({"imagePullSecrets": [name]})


def test_a_manifest_is_told_that_a_service_accounts_secrets_end_where_a_pods_begin() -> None:
    def warnings(**spec: Any) -> str:
        pod = pods.plain(pods.sklearn(), **spec)
        report = manifests.inject({**pod, "kind": "Pod"}, manifests.Injector(config=CONFIG))[1]
        assert report is not None
        return " ".join(report.warnings)

    assert "service account" in warnings()
    assert "service account" not in warnings(imagePullSecrets=[{"name": "own"}])


def test_an_inference_service_that_declares_the_sidecar_is_told_which_secrets_to_name() -> None:
    service = object_samples.service()
    assert any("registry, mirror" in text for text in collocation.declared(service, CONFIG)[1])
    service["spec"]["predictor"]["imagePullSecrets"] = [{"name": "registry"}, {"name": "mirror"}]
    assert not any("registry" in text for text in collocation.declared(service, CONFIG)[1])
