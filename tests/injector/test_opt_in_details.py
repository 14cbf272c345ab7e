"""Who is meant by a wish for the sidecar, what a status may claim, and what is said to whoever applies the pod."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from carpool_injector.core import decision, injection, model, permission, pods, sites, values
from carpool_injector.core.config import Amounts, Config
from tests.injector import pods as sample_pods

Object = dict[str, Any]

BATCHER = "internal.serving.kserve.io/batcher"
ENABLED = {"carpool.dev/inject": "enabled"}


def pod(container: Object | None = None, annotations: Object | None = None, labels: Object | None = None) -> Object:
    app = {"name": "app", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"], **(container or {})}
    metadata = {
        "labels": {"carpool.dev/inject": "true"} if labels is None else labels,
        "annotations": annotations or {},
    }
    return {"metadata": metadata, "spec": {"containers": [app]}}


def outcome(given: Object, namespace: model.Namespace | None = None, config: Config | None = None) -> model.Outcome:
    return injection.inject(given, config or Config(), namespace or model.Namespace("ml"), model.Capabilities())


def decided(given: Object, namespace: model.Namespace, config: Config | None = None) -> model.Decision:
    return decision.who_asks(decision.Asked(pods.read(given), namespace, config or Config(), sites.is_predictor))


# --- Who is asked


@pytest.mark.parametrize("word", ["enabled", "true"])
def test_an_annotation_of_the_namespace_asks_for_nothing(word):
    namespace = model.Namespace(
        "ml", annotations={"carpool.dev/inject": word, "carpool.dev/kserve-batcher": "takeover"}
    )
    assert decided(pod(labels={}, annotations={BATCHER: "true"}), namespace).reason == "not-asked"


def test_a_namespace_that_leaves_kserves_batcher_alone_has_not_spoken_of_its_pods():
    namespace = model.Namespace("ml", {"carpool.dev/kserve-batcher": "leave"})
    found = decided(pod(labels={}, annotations={BATCHER: "true"}), namespace, Config(kserve_batcher="takeover"))
    assert (found.reason, found.concerned) == ("not-asked", False)


def test_a_word_on_the_namespace_that_is_no_answer_is_not_told_to_databases():
    namespace = model.Namespace("ml", {"carpool.dev/inject": "yes"})
    assert decided({"spec": {"containers": [{"name": "db", "image": "postgres:16"}]}}, namespace).reason == "not-asked"


def test_a_long_word_is_cut_in_what_is_told_of_it():
    found = outcome(pod(labels={"carpool.dev/inject": "x" * 5000}))
    assert found.refusal is not None
    assert len(found.refusal.message) < 200


@pytest.mark.parametrize(
    ("labels", "components", "reason"),
    [
        ({"component": "transformer"}, None, None),
        ({sample_pods.ISVC: "iris"}, None, None),
        ({sample_pods.ISVC: "iris", "component": "predictor"}, None, None),
        ({sample_pods.ISVC: "iris", "component": "predictor"}, "transformer", "other-component"),
        ({sample_pods.ISVC: "iris", "component": "transformer"}, None, "other-component"),
        ({sample_pods.ISVC: "iris", "component": "explainer"}, "predictor,explainer", None),
        ({sample_pods.ISVC: "iris", "component": "explain"}, "predictor,explainer", "other-component"),
    ],
)
def test_a_wish_is_meant_for_the_components_it_names(labels, components, reason):
    assert permission.skip_reason(pods.read(pod(labels=labels)), components) == reason


def test_a_static_pod_is_only_a_mirror_and_is_left_alone():
    found = outcome(pod(annotations={"kubernetes.io/config.mirror": "f00"}))
    assert (found.result, found.decision.reason, found.patch) == ("skipped", "mirror-pod", [])


@pytest.mark.parametrize(("policy", "refused"), [("Never", True), ("OnFailure", True), ("Always", False)])
def test_a_pod_that_ends_by_itself_needs_a_native_sidecar(policy, refused):
    given = pod(annotations={"carpool.dev/sidecar-mode": "classic"})
    given["spec"]["restartPolicy"] = policy
    assert (outcome(given).refusal is not None) is refused
    del given["metadata"]["annotations"]["carpool.dev/sidecar-mode"]
    assert outcome(given).result == "injected"


# --- What a status may claim


def claimed(**claims: Any) -> Object:
    """An injected pod whose status says something else."""
    given = copy.deepcopy(outcome(pod()).pod)
    annotations = given["metadata"]["annotations"]
    annotations["carpool.dev/status"] = json.dumps({**json.loads(annotations["carpool.dev/status"]), **claims})
    return given


def test_a_status_that_was_copied_to_a_pod_of_other_containers_says_nothing_of_it():
    copied = {"carpool.dev/status": outcome(pod()).pod["metadata"]["annotations"]["carpool.dev/status"]}
    args = ["uvicorn", "a:b", "--host=0.0.0.0", "--port=9083"]
    given = pod({"args": args, "name": "other"}, annotations=copied)
    found = outcome(given)
    assert found.plan is not None
    assert found.plan.listen_port == 9083, "where the app listens; it was not moved there by us"
    assert injection.uninject(given).pod["spec"] == given["spec"]


def without_sidecar(given, also_volume):
    group = "initContainers" if "initContainers" in given["spec"] else "containers"
    given["spec"][group] = [each for each in given["spec"][group] if each["name"] != "carpool"]
    if also_volume:
        del given["spec"]["volumes"]


def renamed_sidecar(given, also_status):
    held = [*given["spec"].get("initContainers", ()), *given["spec"]["containers"]]
    next(each for each in held if each["name"] == "carpool")["name"] = "batcher"
    if also_status:
        del given["metadata"]["annotations"]["carpool.dev/status"]


@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("edit", [without_sidecar, renamed_sidecar])
@pytest.mark.parametrize("native", ["native", "classic"])
def test_a_pod_whose_sidecar_was_renamed_or_taken_out_by_hand_stays_as_it_is(native, edit, also):
    given = copy.deepcopy(outcome(pod(annotations={"carpool.dev/sidecar-mode": native})).pod)
    edit(given, also)
    for found in (injection.uninject(given), outcome(given)):
        assert (found.patch, found.result, found.refusal.code) == ([], "refused", "unknown-sidecar")
        assert "its container 'carpool' is not there" in found.refusal.message
        assert ("container 'batcher' mounts its volume carpool-no-token" in found.refusal.message) == (
            edit is renamed_sidecar
        )
    given["metadata"]["labels"] = {"carpool.dev/inject": "false"}
    assert outcome(given).patch == [], "switching it off does not take its record either"


def test_a_sidecar_that_is_declared_to_kserve_is_none_that_was_renamed():
    mounts = [{"name": "carpool-no-token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
    given = pod({"name": "transformer-container", "volumeMounts": mounts})
    assert injection.uninject(given).refusal is None


@pytest.mark.parametrize("args", [["--port=7000"], ["--port", "7000"], []])
def test_uninject_tells_of_a_port_flag_that_somebody_edited(args):
    command = ["uvicorn", "a:b", "--host=0.0.0.0"]
    given = copy.deepcopy(outcome(pod({"args": [*command, "--port=8000"]})).pod)
    assert injection.uninject(given).warnings == ()
    given["spec"]["containers"][0]["args"] = [*command, *args]
    found = injection.uninject(given)
    assert found.pod["spec"]["containers"][0]["args"] == [*command, *args]
    assert "--port of container 'app' does not say 9083" in found.warnings[0]
    assert "see that the app listens on 8000 again" in found.warnings[0]


@pytest.mark.parametrize("value", ["7000", None])
@pytest.mark.parametrize("before", [[{"name": "UVICORN_PORT", "value": "8000"}], []])
def test_uninject_tells_of_a_port_variable_that_somebody_edited(before, value):
    given = pod({"args": ["uvicorn", "a:b", "--host=0.0.0.0"], "env": before})
    given = copy.deepcopy(outcome(given).pod)
    assert injection.uninject(given).warnings == ()
    given["spec"]["containers"][0]["env"] = [{"name": "UVICORN_PORT", "value": value}] if value else []
    found = injection.uninject(given)
    assert "UVICORN_PORT of container 'app' does not say 9083" in found.warnings[0]
    assert found.pod["spec"]["containers"][0].get("env", []) == given["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(
    "claims",
    [
        {"container": "gone"},
        {"appPort": "9083"},
        {"appPort": 0},
        {"listenPort": 65536},
        {"native": "true"},
        {"takeover": "other"},
        {"toldBy": "--port\n"},
        {"toldBy": "x" * 129},
        {"batcher": "x" * 65},
    ],
)
def test_a_sidecar_of_which_no_status_tells_is_left_with_all_that_is_known_of_it(claims):
    given = claimed(**claims)
    for found in (injection.uninject(given), outcome(given)):
        assert (found.patch, found.result, found.refusal.code) == ([], "refused", "unknown-sidecar")
    looked_for = "container 'gone', which is not there" if "container" in claims else "cannot be read"
    assert looked_for in found.refusal.message
    given["metadata"]["labels"] = {"carpool.dev/inject": "false"}
    assert outcome(given).patch == [], "switching it off does not take its record either"


@pytest.mark.parametrize("kept", [{}, {"carpool.dev/port": "9083"}])
def test_a_copy_of_an_injected_pod_without_its_status_is_recognised(kept):
    given = copy.deepcopy(outcome(pod()).pod)
    given["metadata"]["annotations"] = dict(kept)
    found = outcome(given)
    assert found.patch == []
    assert "there is no annotation carpool.dev/status" in found.warnings[0]
    assert injection.uninject(given).refusal.code == "unknown-sidecar"


@pytest.mark.parametrize("flag", ["--server.port", "-p", "--http_port", "-Dserver-port"])
def test_every_flag_that_can_be_named_can_be_given_back(flag):
    given = pod({"args": ["serve", f"{flag}=8000"]}, annotations={"carpool.dev/app-port-arg": flag})
    found = outcome(given)
    assert found.pod["spec"]["containers"][0]["args"] == ["serve", f"{flag}=9083"]
    assert injection.uninject(found.pod).pod == given


@pytest.mark.parametrize("value", ["true", "enabled-by-someone", "x" * 64])
def test_kserves_batcher_annotation_comes_back_with_the_value_it_had(value):
    given = sample_pods.kserve(sample_pods.sklearn(), annotations={BATCHER: value})
    injected = outcome(given).pod
    assert BATCHER not in injected["metadata"]["annotations"]
    assert injection.uninject(injected).pod["metadata"] == given["metadata"]


def test_a_refusal_is_told_in_at_most_512_characters():
    ports = [{"containerPort": port} for port in range(1000, 1400)]
    found = outcome(pod({"args": [], "ports": ports}))
    assert found.status is not None
    assert len(found.status["message"]) == 512


def test_uninjecting_what_was_never_injected_concerns_nobody():
    found = injection.uninject(pod())
    assert (found.patch, found.decision.concerned) == ([], False)


def test_a_pod_nobody_asked_for_keeps_a_status_that_somebody_wrote():
    given = pod(labels={}, annotations={"carpool.dev/status": "theirs"})
    found = outcome(given)
    assert found.result == "unconcerned"
    assert found.pod is given


def test_a_pod_asked_for_by_its_namespace_is_not_told_in_its_status_why_not():
    given = sample_pods.kserve(sample_pods.custom(), **{"carpool.dev/inject": ""})
    del given["metadata"]["labels"]["carpool.dev/inject"]
    found = outcome(given, model.Namespace("ml", ENABLED))
    assert (found.result, found.patch) == ("skipped", [])
    assert found.refusal is not None


def test_a_sidecar_goes_when_the_pod_can_no_longer_have_it():
    given = copy.deepcopy(outcome(pod()).pod)
    given["spec"]["hostNetwork"] = True
    found = outcome(given)
    assert found.refusal is not None
    assert {**found.pod["spec"], "hostNetwork": True} == {**pod()["spec"], "hostNetwork": True}


# --- Where settings come from


@pytest.mark.parametrize(
    ("admin", "namespace", "kserve", "own", "size"),
    [
        ("1", None, None, None, "1"),
        ("1", "2", None, None, "2"),
        ("1", "2", "3", None, "3"),
        ("1", "2", "3", "4", "4"),
        ("1", "2", "0", None, "2"),
    ],
)
def test_the_nearer_to_the_pod_a_setting_stands_the_more_it_counts(admin, namespace, kserve, own, size):
    annotations = {BATCHER: "true", **({BATCHER + "-max-batchsize": kserve} if kserve else {})}
    annotations |= {"carpool.dev/max-batch-size": own} if own else {}
    where = model.Namespace("ml", {}, {"carpool.dev/max-batch-size": namespace} if namespace else {})
    given = sample_pods.kserve(sample_pods.sklearn(), annotations=annotations)
    found = outcome(given, where, Config(defaults={"max-batch-size": admin}))
    assert sample_pods.flags(sample_pods.container(found.pod, "carpool")["args"])["--max-batch-size"] == size


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("max-batchsize", "1", True),
        ("max-batchsize", "100000", True),
        ("max-batchsize", "100001", False),
        ("max-batchsize", "0", False),
        ("max-batchsize", "٣", False),
        ("max-latency", "59999", True),
        ("max-latency", "60000", False),
        ("max-latency", "0000000001", False),
    ],
)
def test_kserves_own_numbers_are_taken_over_within_the_range_of_ours_and_told_beyond_it(key, value, taken):
    asked = {BATCHER: "true", f"{BATCHER}-{key}": value}
    found = outcome(sample_pods.kserve(sample_pods.sklearn(), annotations=asked))
    setting = {"max-batchsize": "--max-batch-size", "max-latency": "--max-latency"}[key]
    assert (setting in sample_pods.flags(sample_pods.container(found.pod, "carpool")["args"])) is taken
    assert len(found.warnings) == (0 if taken else 1)


def test_what_the_admin_allows_at_most_may_be_asked_for_and_nothing_above_it():
    config = Config(max_resources=Amounts(cpu="2", memory="3Gi"))
    for name, most, more in (("cpu", "2000m", "2001m"), ("memory", "3Gi", "3073Mi")):
        for kind in ("requests", "limits"):
            key = f"carpool.dev/resources-{kind}-{name}"
            assert outcome(pod(annotations={key: most}), config=config).result == "injected"
            refused = outcome(pod(annotations={key: more}), config=config).refusal
            assert refused is not None
            assert f"at most {getattr(config.max_resources, name)}" in str(refused)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1n", "1e-9"), ("1u", "1e-6"), ("1m", "0.001"), ("1.5", "1.5"), ("1k", "1000"), ("1M", "1e6"), ("1G", "1e9"),
     ("1T", "1e12"), ("1Ki", "1024"), ("1Mi", "1048576"), ("1Gi", "1073741824"), ("1Ti", "1099511627776")],
)  # fmt: skip
def test_a_quantity_stands_for_its_number(text, amount):
    assert values.amount(text) == values.Decimal(amount)


@pytest.mark.parametrize(
    ("port", "allowed"),
    [("1", True), ("65535", True), ("http", True), ("a-very-long-one", True), ("8080-http", True), ("0", False),
     ("65536", False), ("99999", False), ("a-very-long-name", False), ("Http", False), ("a--b", False), ("", False)],
)  # fmt: skip
def test_a_port_is_a_number_that_can_be_listened_on_or_a_name_that_a_port_can_have(port, allowed):
    refused = outcome(pod(annotations={"carpool.dev/port": port, "carpool.dev/takeover": "none"})).refusal
    assert (refused is None or refused.code != "bad-annotation") is allowed


@pytest.mark.parametrize(
    ("value", "allowed"), [("0.1", True), ("0.001", False), ("0", False), ("0.0", False), ("86401", False)]
)
def test_a_time_has_a_least_value(value, allowed):
    assert (outcome(pod(annotations={"carpool.dev/keep-alive": value})).refusal is None) is allowed


@pytest.mark.parametrize("value", ["", "x", "-1", "1e3"])
def test_what_is_no_number_is_not_taken_for_the_least_one(value):
    assert outcome(pod(annotations={"carpool.dev/max-latency": value})).result == "refused"


# --- What is said


@pytest.mark.parametrize(
    ("concurrency", "size", "warned"),
    [
        ("0", None, False),
        ("31", None, True),
        ("32", None, False),
        ("8", "8", False),
        ("7", "8", True),
        ("٣", None, False),
    ],
)
def test_a_concurrency_below_the_batch_size_is_warned_of(concurrency, size, warned):
    settings = {"carpool.dev/max-batch-size": size} if size else {}
    given = sample_pods.knative(sample_pods.sklearn(), annotations=settings)
    for item in sample_pods.container(given, "queue-proxy")["env"]:
        if item["name"] == "CONTAINER_CONCURRENCY":
            item["value"] = concurrency
    assert any("containerConcurrency" in text for text in outcome(given).warnings) is warned


@pytest.mark.parametrize(
    ("hook", "warned"),
    [
        ({"exec": {"command": ["sleep", "1"]}}, True),
        ({"httpGet": {"path": "/bye", "port": 1}}, True),
        ({"httpGet": {"path": "/wait-for-drain", "port": 8022}}, False),
    ],
)
def test_a_hook_of_the_apps_own_is_warned_of_and_not_one_that_belongs_to_the_platform(hook, warned):
    found = outcome(pod({"lifecycle": {"preStop": hook}}))
    assert any("preStop hook of its own" in text for text in found.warnings) is warned


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("max-batchsize", "; did you mean carpool.dev/max-batch-size?"),
        ("injekt", "; did you mean carpool.dev/inject?"),
        ("kserve-batchr", "; did you mean carpool.dev/kserve-batcher?"),
        ("zzzzzzzzzzzzzzzzzzzzzzzz", ""),
    ],
)
def test_an_unknown_setting_is_told_with_the_nearest_known_one(key, hint):
    [warning] = outcome(pod(annotations={f"carpool.dev/{key}": "1"})).warnings
    assert warning == f"annotation carpool.dev/{key} is unknown and has no effect{hint}"


def test_an_unknown_setting_is_told_by_80_characters_and_without_control_characters():
    for length, cut in ((80, False), (81, True)):
        [warning] = outcome(pod(annotations={"carpool.dev/" + "z" * (length - 12): "1"})).warnings
        assert ("…" in warning) is cut
    [warning] = outcome(pod(annotations={"carpool.dev/\x1b[31m": "1"})).warnings
    assert warning.isprintable()


def test_annotations_of_ours_that_are_no_settings_are_not_told_as_unknown():
    given = pod(annotations={"carpool.dev/inject": "true", "carpool.dev/kserve-batcher": "leave", "acme.io/x": "1"})
    assert outcome(given).warnings == ()
