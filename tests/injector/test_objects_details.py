"""What manifests and reviews of objects come to in the situations that lie next to the usual ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from injector import config_file
from injector.core import errors, injection, model
from injector.core.config import Config
from injector.objects import (
    collocation,
    explanation,
    inference_services,
    kserve_pods,
    manifests,
    review,
    runtimes,
    validation,
    workloads,
)
from tests.injector import pods as sample_pods
from tests.injector import reviews

Object = dict[str, Any]

CONFIG = config_file.parse(None)
RULES = validation.Rules(lambda pod, namespace: injection.inject(pod, CONFIG, namespace, model.Capabilities()), CONFIG)
ASKS = {"carpool.dev/inject": "true"}
MODE = inference_services.MODE


def deployment(template: Object, **metadata: Any) -> Object:
    spec = {"template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", **metadata}, "spec": spec}


def template(labels: Object | None = None, **annotations: str) -> Object:
    container = {"name": "app", "args": ["uvicorn", "a:b", "--port=8000"]}
    metadata = {"labels": ASKS if labels is None else labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def service(predictor: Object | None = None, labels: Object | None = None, **more: Any) -> Object:
    metadata = {"name": "iris", "labels": ASKS if labels is None else labels, **more.pop("metadata", {})}
    spec = {"predictor": predictor or {"model": {"modelFormat": {"name": "sklearn"}}}, **more.pop("spec", {})}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": spec,
        **more,
    }


def verdict(thing: Object, old: Object | None = None, **members: Any) -> review.Verdict:
    return validation.validate(reviews.request(thing, "UPDATE" if old else "CREATE", old=old, **members), RULES)


def warnings(thing: Object, old: Object | None = None) -> str:
    return "\n".join(verdict(thing, old).answer.warnings)


# --- Reviews


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_review_of_what_was_made_or_changed_has_an_object(operation: str) -> None:
    asked = reviews.asking(operation=operation, old=reviews.POD)
    asked["request"]["object"] = None
    with pytest.raises(errors.Malformed, match=f"the operation is {operation}"):
        review.read(json.dumps(asked).encode())


def test_warnings_are_kept_up_to_the_last_character_that_fits() -> None:
    fitting = [f"{number:02}" + "x" * 254 for number in range(15)]
    assert review.fit_warnings(fitting) == fitting
    assert review.fit_warnings([*fitting, "y"]) == [*fitting, "1 more warnings do not fit here"]


def test_words_with_hyphens_are_not_broken_in_a_warning() -> None:
    text = "x" * 235 + " carpool.dev/max-batch-size"
    assert review.fit_warnings([text]) == ["x" * 235, "carpool.dev/max-batch-size"]


@pytest.mark.parametrize(("dry_run", "read"), [(True, True), (False, False), (None, False), ("yes", False), (1, False)])
def test_only_a_dry_run_that_is_said_to_be_one_is_one(dry_run: Any, read: bool) -> None:
    assert reviews.request(dryRun=dry_run).dry_run is read


# --- Validation


@pytest.mark.parametrize(("controller", "denied"), [(True, False), (False, True), (None, True)])
def test_only_what_a_controller_applies_is_spared(controller: bool | None, denied: bool) -> None:
    owner = {"apiVersion": "x/v1", "kind": "Fleet", "name": "f", "uid": "1"}
    owner |= {} if controller is None else {"controller": controller}
    thing = deployment(template(**{"carpool.dev/slo": "fast"}), ownerReferences=[owner])
    assert verdict(thing).answer.allowed is not denied


def test_settings_without_a_wish_are_looked_into_for_what_is_likely_to_go_wrong() -> None:
    settings = {"annotations": {"carpool.dev/max-batch-size": "8", MODE: "Typo"}}
    assert "KServe knows" in warnings(service(labels={}, metadata=settings))
    assert warnings(service(labels={}, metadata={"annotations": {MODE: "Typo"}})) == ""


def test_a_setting_that_only_clashes_with_the_admins_defaults_is_told() -> None:
    config = Config(defaults={"max-batch-size": "4"})
    rules = validation.Rules(lambda pod, n: injection.inject(pod, config, n, model.Capabilities()), config)
    thing = deployment(template(labels={}, **{"carpool.dev/allowed-batch-sizes": "1,8"}))
    found = validation.examine(thing, None, rules)
    assert found is not None
    assert [text for text in found.problems.values() if "must not exceed" in text]


def test_a_setting_of_the_workload_that_its_template_has_too_is_not_misplaced() -> None:
    key = "carpool.dev/slo"
    thing = deployment(template(**{key: "50"}), annotations={key: "50"})
    assert warnings(thing) == ""
    thing["metadata"]["labels"] = {sample_pods.ISVC: "iris", "carpool.dev/inject": "true"}
    thing["spec"]["template"]["metadata"]["annotations"] = {}
    assert "does not reach" not in warnings(thing)


# --- InferenceServices


def test_a_limit_of_concurrency_equal_to_the_batch_size_is_fine_whatever_the_defaults_say() -> None:
    predictor = {
        "model": {"modelFormat": {"name": "sklearn"}},
        "containerConcurrency": 8,
        "batcher": {"maxBatchSize": 0},
    }
    for default, warned in (("8", False), ("9", True), ("0", True)):
        config = Config(defaults={"max-batch-size": default}) if default != "0" else CONFIG
        rules = validation.Rules(lambda pod, n, c=config: injection.inject(pod, c, n, model.Capabilities()), config)
        found = validation.examine(service(predictor), None, rules)
        assert found is not None
        assert any("containerConcurrency 8 is below" in text for text in found.warnings) is warned


def test_a_number_in_the_batcher_and_the_same_in_words_are_one() -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}}, "batcher": {"maxBatchSize": 8}}
    same = service(predictor, metadata={"annotations": {"carpool.dev/max-batch-size": "8"}})
    other = service(predictor, metadata={"annotations": {"carpool.dev/max-batch-size": "9"}})
    assert ("wins over" in warnings(same), "wins over" in warnings(other)) == (False, True)


def test_a_batcher_that_becomes_a_logger_does_not_turn_the_service() -> None:
    model_ = {"model": {"modelFormat": {"name": "sklearn"}}}
    batched, logged = service({**model_, "batcher": {}}), service({**model_, "logger": {}})
    assert "turns the Service" not in warnings(logged, batched)
    assert "adding spec.predictor.logger turns the Service to 9081" in warnings(logged, service(model_))
    knative = {"annotations": {MODE: "Knative"}}
    assert "turns" not in warnings(
        service({**model_, "logger": {}}, metadata=knative), service(model_, metadata=knative)
    )


def test_a_runtime_that_cannot_be_moved_is_no_matter_behind_kserves_agent() -> None:
    predictor = {"model": {"modelFormat": {"name": "torchserve"}}}
    assert "cannot be taken over" in warnings(service(predictor))
    assert "cannot be taken over" not in warnings(service({**predictor, "batcher": {}}))


@pytest.mark.parametrize(("name", "known"), [("kserve-sklearnserver", True), ("my-triton-23", True), ("acme", False)])
def test_a_runtime_is_known_by_a_name_within_its_own(name: str, known: bool) -> None:
    assert (runtimes.container(name) is not None) is known


def test_the_runtimes_name_counts_before_the_models_format() -> None:
    spec = {"model": {"runtime": "Kserve-Triton", "modelFormat": {"name": "onnx"}}}
    found = inference_services.read(service(spec))
    assert found.predictor.runtime == "kserve-triton"
    assert inference_services.read(service({"sklearn": {"storageUri": "gs://x"}})).predictor.runtime == "sklearn"


def test_what_stands_on_the_predictor_counts_before_metadata() -> None:
    predictor = {"labels": {"a": "p"}, "annotations": {"a": "p"}, "minReplicas": 1}
    found = inference_services.read(service(predictor, labels={"a": "m"}, metadata={"annotations": {"a": "m"}}))
    assert (found.predictor.labels["a"], found.predictor.annotations["a"]) == ("p", "p")


def test_a_lone_container_is_renamed_as_kserve_does_it_and_several_keep_their_names() -> None:
    def names(*containers: Object) -> list[str]:
        pod = inference_services.stand_in(inference_services.read(service({"containers": list(containers)})))
        return [each["name"] for each in pod["spec"]["containers"]]

    assert names({"name": "mine"}) == ["kserve-container"]
    assert names({"name": "mine"}, {"name": "other"}) == ["mine", "other"]


# --- Pods that will be made


@pytest.mark.parametrize(
    ("annotations", "status", "default", "queue_proxy"),
    [
        ({}, None, None, False),
        ({}, None, "Knative", True),
        ({MODE: "Standard"}, None, "Knative", False),
        ({MODE: "Serverless"}, None, "Standard", True),
        ({}, "Knative", None, True),
        ({MODE: "RawDeployment"}, "Knative", None, False),
    ],
)
def test_the_mode_is_the_annotations_else_the_statuss_else_the_clusters(
    annotations: Object, status: str | None, default: Any, queue_proxy: bool
) -> None:
    more = {"status": {"deploymentMode": status}} if status else {}
    pod = kserve_pods.expect(service(metadata={"annotations": annotations}, **more), default).pod
    assert ("queue-proxy" in [each["name"] for each in pod["spec"]["containers"]]) is queue_proxy


def test_the_port_asked_is_the_transformers_else_the_servers_first() -> None:
    first = {"name": "kserve-container", "ports": [{"containerPort": 7000}, {"containerPort": 7001}]}
    both = [first, {"name": "transformer-container", "ports": [{"containerPort": 7002}]}]
    for containers, port in (([first], "7000"), (both, "7002"), ([{"name": "kserve-container"}], "8080")):
        pod = kserve_pods.expect(service({"containers": containers, "containerConcurrency": 3}), "Knative").pod
        env = {item["name"]: item["value"] for item in sample_pods.container(pod, "queue-proxy")["env"]}
        assert (env["USER_PORT"], env["CONTAINER_CONCURRENCY"]) == (port, "3")


def test_what_is_added_to_a_runtime_comes_behind_what_it_has() -> None:
    given = {"modelFormat": {"name": "sklearn"}, "args": ["--workers=2"]}
    pod = kserve_pods.expect(service({"model": given})).pod
    assert sample_pods.container(pod, "kserve-container")["args"] == ["--http_port=8080", "--workers=2"]


def test_a_knative_services_container_keeps_its_name_or_gets_the_usual_one() -> None:
    def names(container: Object) -> list[str]:
        spec = {"template": {"spec": {"containers": [container]}}}
        thing = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": spec}
        return [each["name"] for each in kserve_pods.expect(thing).pod["spec"]["containers"]]

    assert names({"image": "a"}) == ["user-container", "queue-proxy"]
    assert names({"image": "a", "name": "mine"}) == ["mine", "queue-proxy"]


# --- Explanations and commands


def test_a_setting_of_the_namespace_is_shown_with_its_source_and_one_row_decides() -> None:
    namespace = model.Namespace("ml", {"carpool.dev/inject": "enabled"}, {"carpool.dev/slo": "50"})
    found = explanation.explain(deployment(template()), manifests.Wish(namespace=namespace))
    assert found is not None
    assert [(each.key, each.value, each.source) for each in found.settings] == [
        ("carpool.dev/slo", "50", "namespace ml")
    ]
    assert [row.decides for row in found.rows] == [True, False, False, False]


def test_the_namespace_of_a_template_counts_and_the_others_labels_hold_there_too() -> None:
    wish = manifests.Wish(namespace=model.Namespace("ml", {"carpool.dev/inject": "enabled"}))
    found = explanation.explain(deployment(template(labels={}), namespace="other"), wish)
    assert found is not None
    assert (found.namespace, found.result) == ("other", "injected")


def test_what_says_no_by_its_annotation_is_skipped_and_its_label_counts_before_that() -> None:
    no = template(labels={}, **{"carpool.dev/inject": "false"})
    _, report = manifests.inject(deployment(no), manifests.Wish())
    assert report is not None
    assert report.result == "skipped"
    no["metadata"]["labels"] = ASKS
    _, report = manifests.inject(deployment(no), manifests.Wish())
    assert report is not None
    assert report.result == "injected"


def test_annotations_of_the_command_count_before_the_manifests() -> None:
    thing = deployment(template(**{"carpool.dev/slo": "1"}))
    after, _ = manifests.inject(thing, manifests.Wish(annotations={"carpool.dev/slo": "2"}))
    assert after["spec"]["template"]["metadata"]["annotations"]["carpool.dev/slo"] == "2"


def test_injecting_again_is_told_as_unchanged_with_the_same_object() -> None:
    once, _ = manifests.inject(deployment(template()), manifests.Wish())
    twice, report = manifests.inject(once, manifests.Wish())
    assert twice is once
    assert report is not None
    assert report.result == "unchanged"


def test_an_object_that_only_has_a_generated_name_is_called_by_it() -> None:
    thing = {"kind": "Pod", "metadata": {"generateName": "web-"}}
    assert workloads.describe(thing) == "Pod/web-"


# --- Without a webhook


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
    with pytest.raises(errors.Refusal, match=key):
        declared(service(predictor, metadata={"annotations": annotations}))
    assert declared(service(predictor, metadata={"annotations": {MODE: "Standard"}}))


@pytest.mark.parametrize("name", ["grpc", "h2c-x", "http2"])
def test_a_server_that_speaks_no_http1_is_refused(name: str) -> None:
    server = {"name": "kserve-container", "ports": [{"containerPort": 9000, "name": name}]}
    with pytest.raises(errors.Refusal, match="gRPC or HTTP/2"):
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
    with pytest.raises(errors.Refusal, match="finds a custom predictor by its name only"):
        declared(service(predictor, metadata={"annotations": {MODE: "Standard"}}))


def test_a_runtimes_container_is_there_once_whatever_the_manifest_adds_to_it() -> None:
    predictor = {
        "model": {"modelFormat": {"name": "sklearn"}},
        "containers": [{"name": "kserve-container"}, {"name": "x"}],
    }
    pod = kserve_pods.expect(service(predictor)).pod
    assert [each["name"] for each in pod["spec"]["containers"]] == ["kserve-container", "x"]


@pytest.mark.parametrize(("value", "number"), [(3, 3), (0, 0), (True, None), ("3", None), (3.0, None), (None, None)])
def test_a_whole_number_is_neither_a_text_nor_a_yes(value: Any, number: int | None) -> None:
    assert inference_services.whole(value) == number


def test_an_explanation_tells_a_refusal_once() -> None:
    thing = deployment({"metadata": {"labels": ASKS}, "spec": {"containers": [{"name": "app"}]}})
    found = explanation.explain(thing, manifests.Wish())
    assert found is not None
    assert found.refusal is not None
    assert found.warnings == ()


def test_a_list_in_which_nothing_changes_is_the_same_list() -> None:
    held = {"apiVersion": "v1", "kind": "List", "items": [{"kind": "ConfigMap", "apiVersion": "v1"}]}
    after, reports = manifests.apply(held, lambda each: manifests.inject(each, manifests.Wish()))
    assert after is held
    assert reports == []


def test_an_unknown_setting_of_a_pod_that_asks_is_told_once() -> None:
    thing = deployment(template(**{"carpool.dev/zzzzzzzz": "1"}))
    assert len(verdict(thing).answer.warnings) == 1


def test_a_logger_makes_kserves_service_point_at_its_agent_in_the_stand_in_too() -> None:
    pod = inference_services.stand_in(inference_services.read(service({"containers": [{"name": "a"}], "logger": {}})))
    assert pod["metadata"]["annotations"] == {"internal.serving.kserve.io/logger": "true"}


def test_a_wish_in_other_words_is_explained_as_the_refusal_that_it_is() -> None:
    found = explanation.explain(deployment(template(labels={"carpool.dev/inject": "yes"})), manifests.Wish())
    assert found is not None
    assert (found.result, found.asked, found.plan) == ("refused", True, None)


def test_the_namespace_that_a_template_names_is_the_pods() -> None:
    thing = deployment(template(), namespace="outer")
    thing["spec"]["template"]["metadata"]["namespace"] = "inner"
    found = explanation.explain(thing, manifests.Wish())
    assert found is not None
    assert found.namespace == "inner"


def test_a_label_in_metadata_reaches_the_transformer_as_annotations_do() -> None:
    assert "carpool.dev/inject in metadata reaches the transformer" in warnings(
        service(spec={"transformer": {"x": {}}})
    )
    assert "reaches" not in warnings(service())


def test_a_startup_probe_of_the_server_is_no_trouble_with_knative() -> None:
    predictor = {"model": {"modelFormat": {"name": "sklearn"}, "startupProbe": {"tcpSocket": {"port": 8080}}}}
    assert declared(service(predictor, metadata={"annotations": {MODE: "Knative"}}))


def test_a_bad_setting_of_a_knative_service_is_told_once() -> None:
    metadata = {"labels": ASKS, "annotations": {"carpool.dev/slo": "fast"}}
    spec = {"template": {"metadata": metadata, "spec": {"containers": [{"image": "a"}]}}}
    thing = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": spec}
    problems, told = kserve_pods.findings(thing, CONFIG, model.Capabilities())
    assert len(problems) == 1
    assert told == ()
