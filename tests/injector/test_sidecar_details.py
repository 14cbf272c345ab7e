"""What of a sidecar container stays, goes or is set when somebody else had a hand in it, and its place in the pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from carpool_injector.core import injection, model, refusals
from carpool_injector.core.config import Config
from tests.injector import pods as sample_pods

Object = dict[str, Any]

IMAGE = "r.example/carpool:1"
CONFIG = Config(image=IMAGE, channels={"canary": "r.example/carpool:canary"})
LIMITS = {"cpu": "2", "memory": "4Gi"}


def pod(container: Object | None = None, annotations: Object | None = None, **spec: Any) -> Object:
    app = {"name": "app", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"], **(container or {})}
    chosen = {f"carpool.dev/{key}": value for key, value in (annotations or {}).items()}
    metadata = {"labels": {"carpool.dev/inject": "true"}, "annotations": chosen}
    return {"metadata": metadata, "spec": {"containers": [app], **spec}}


def outcome(given: Object, config: Config = CONFIG, native: bool = True) -> model.Outcome:
    found = injection.inject(given, config, model.Namespace("ml"), model.Capabilities(native, native))
    assert found.result == "injected", str(found.refusal)
    return found


def refusal(given: Object) -> refusals.Refusal:
    found = injection.inject(given, CONFIG, model.Namespace("ml"), model.Capabilities())
    assert found.refusal is not None, found.plan
    return found.refusal


def sidecar(given: Object) -> Object:
    return sample_pods.container(given, "carpool")


def stored() -> Object:
    """An injected pod, for others to change."""
    return copy.deepcopy(outcome(pod()).pod)


# --- Names that are taken


def test_another_image_of_the_admins_replaces_the_one_that_was_injected():
    after = outcome(stored(), Config(image="r.example/carpool:2")).pod
    assert sidecar(after)["image"] == "r.example/carpool:2"


@pytest.mark.parametrize("image", [IMAGE, "r.example/carpool:canary"])
def test_a_container_of_our_name_with_one_of_our_images_is_the_owners_way_to_add_to_it(image):
    declared = {"name": "carpool", "image": image, "env": [{"name": "TZ", "value": "UTC"}]}
    given = pod()
    given["spec"]["containers"].append(declared)
    found = sidecar(outcome(given).pod)
    assert (found["image"], found["env"]) == (IMAGE, [{"name": "TZ", "value": "UTC"}])


def test_a_container_of_our_name_with_another_image_is_somebody_elses():
    given = pod()
    given["spec"]["containers"].append({"name": "carpool", "image": "acme/car-pool:1"})
    assert refusal(given).code == "name-taken"


def test_a_volume_of_our_name_is_somebody_elses():
    refused = refusal(pod(volumes=[{"name": "carpool-no-token", "secret": {"secretName": "s"}}]))
    assert (refused.code, refused.fix) == ("name-taken", "rename it")


# --- Hooks and probes of the app


@pytest.mark.parametrize("port", [9082, 5000])
def test_a_hook_of_the_app_that_looks_like_ours_is_only_taken_away_where_it_is(port):
    given = stored()
    given["spec"]["containers"][0]["lifecycle"] = {"preStop": {"httpGet": {"path": "/drained", "port": port}}}
    after = injection.uninject(given).pod["spec"]["containers"][0]
    assert ("lifecycle" in after) is (port == 5000)


def test_another_hook_of_the_app_stays_when_ours_comes_and_goes():
    start = {"postStart": {"exec": {"command": ["true"]}}}
    injected = outcome(pod({"lifecycle": start})).pod
    assert set(injected["spec"]["containers"][0]["lifecycle"]) == {"postStart", "preStop"}
    assert injection.uninject(injected).pod["spec"]["containers"][0]["lifecycle"] == start


def test_a_pod_that_never_had_a_lifecycle_has_none_afterwards():
    assert "lifecycle" not in injection.uninject(stored()).pod["spec"]["containers"][0]


def test_behind_queue_proxy_its_probe_counts_and_not_the_apps():
    given = sample_pods.knative(sample_pods.sklearn())
    probe = next(i["value"] for i in sample_pods.container(given, "queue-proxy")["env"] if "READINESS" in i["name"])
    sample_pods.container(given, "kserve-container")["readinessProbe"] = {"httpGet": {"path": "/own", "port": 8080}}
    [variable] = sidecar(outcome(given).pod)["env"]
    assert variable == {"name": "SERVING_READINESS_PROBE", "value": probe}


@pytest.mark.parametrize(
    ("probe", "handed_on"),
    [
        ({"httpGet": {"path": "/r", "port": "http"}}, '{"httpGet":{"path":"/r","port":9083}}'),
        ({"tcpSocket": {"port": 8000}, "timeoutSeconds": 7}, '{"tcpSocket":{"port":9083},"timeoutSeconds":7}'),
        ({"grpc": {"port": 8001}, "periodSeconds": 3}, '{"grpc":{"port":8001}}'),
        ({"httpGet": {"path": "/r", "port": "nowhere"}}, None),
        ({"exec": {"command": ["true"]}}, None),
    ],
)
def test_the_apps_readiness_probe_is_handed_on_with_numbers_for_names(probe, handed_on):
    given = pod({"ports": [{"containerPort": 8000, "name": "http"}], "readinessProbe": probe})
    found = {item["name"]: item["value"] for item in sidecar(outcome(given).pod).get("env", [])}
    assert found == ({"SERVING_READINESS_PROBE": handed_on} if handed_on else {})


@pytest.mark.parametrize("handler", ["readinessProbe", "livenessProbe", "startupProbe", "postStart", "preStop"])
@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
def test_every_probe_and_hook_follows_the_app_to_its_port_and_back(handler, kind):
    action = {kind: {"port": 8000}}
    given = pod({handler: action} if handler.endswith("Probe") else {"lifecycle": {handler: action}})
    injected = outcome(given).pod
    app = injected["spec"]["containers"][0]
    assert (app.get(handler) or app["lifecycle"][handler])[kind]["port"] == 9083
    assert injection.uninject(injected).pod["spec"]["containers"] == given["spec"]["containers"]


# --- What others set on the sidecar


@pytest.mark.parametrize("name", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_of_the_sidecar_that_others_changed_is_put_right(name):
    for probe in ({"httpGet": {"path": "/", "port": 1}}, {"exec": {}}):
        given = stored()
        sidecar(given)[name] = probe
        assert sidecar(outcome(given).pod)[name] == sidecar(stored())[name]


@pytest.mark.parametrize(
    ("assigned", "kept"),
    [
        ({"runAsUser": 1000650000, "runAsGroup": 7}, True),
        ({"seLinuxOptions": {"level": "s0:c26,c5"}}, True),
        ({"runAsUser": 0}, False),
        ({"runAsGroup": 0}, False),
        ({"runAsUser": True}, False),
        ({"runAsUser": "1000"}, False),
        ({"seLinuxOptions": "s0"}, False),
        ({"procMount": "Unmasked"}, False),
    ],
)
def test_of_a_security_context_only_a_user_group_and_label_are_kept_and_never_root(assigned, kept):
    given = stored()
    ours = dict(sidecar(given)["securityContext"])
    sidecar(given)["securityContext"] |= assigned
    assert sidecar(outcome(given).pod)["securityContext"] == ({**ours, **assigned} if kept else ours)


@pytest.mark.parametrize(
    ("field", "value"),
    [("command", ["sh"]), ("workingDir", "/tmp"), ("stdin", True), ("stdinOnce", True), ("tty", True)],
)
def test_what_decides_which_program_runs_is_taken_from_nobody(field, value):
    given = stored()
    sidecar(given)[field] = value
    assert field not in sidecar(outcome(given).pod)


def test_a_restart_policy_goes_with_the_native_sidecar():
    assert "restartPolicy" not in sidecar(outcome(stored(), native=False).pod)


def test_amounts_that_others_changed_are_put_right_and_what_else_they_added_is_kept():
    given = stored()
    resources = sidecar(given)["resources"]
    resources["limits"]["cpu"] = "64"
    resources["requests"]["cpu"] = "0.1"
    resources["claims"] = [{"name": "gpu"}]
    after = sidecar(outcome(given).pod)["resources"]
    assert after["limits"]["cpu"] == "1"
    assert after["requests"]["cpu"] == "0.1", "100m in other words"
    assert after["claims"] == [{"name": "gpu"}]


# --- Resources and the way out


def test_limits_without_requests_make_a_pod_guaranteed_too():
    found = sidecar(outcome(pod({"resources": {"limits": LIMITS}})).pod)["resources"]
    assert found == {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}


def test_a_declared_sidecar_without_resources_does_not_keep_a_pod_from_being_guaranteed():
    given = pod({"resources": {"limits": LIMITS}})
    given["spec"]["containers"].append({"name": "carpool", "image": IMAGE})
    found = sidecar(outcome(given).pod)["resources"]
    assert found["requests"] == found["limits"]


def test_an_annotated_request_is_the_limit_as_well_in_a_guaranteed_pod():
    given = pod({"resources": {"limits": LIMITS}}, {"resources-requests-cpu": "200m"})
    amounts = {"cpu": "200m", "memory": "512Mi"}
    assert sidecar(outcome(given).pod)["resources"] == {"requests": amounts, "limits": amounts}


def test_an_amount_equal_to_its_limit_is_left_in_its_own_words():
    found = sidecar(outcome(pod(annotations={"resources-requests-cpu": "1000m"})).pod)["resources"]
    assert (found["requests"]["cpu"], found["limits"]["cpu"]) == ("1000m", "1")


@pytest.mark.parametrize(
    ("annotations", "resources"),
    [
        ({}, {}),
        ({"resources-limits-memory": "512Mi"}, {"limits": {"memory": "512Mi"}}),
        (
            {"resources-requests-cpu": "1", "resources-limits-cpu": "2"},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
        ),
    ],
)
def test_in_a_pod_with_resources_of_its_own_only_annotated_ones_are_set(annotations, resources):
    given = pod(annotations=annotations, resources={"limits": {"cpu": "8", "memory": "8Gi"}})
    assert sidecar(outcome(given).pod)["resources"] == resources


@pytest.mark.parametrize(("key", "value"), [("quiet-period", "3"), ("grace-period", "12")])
def test_an_annotated_period_is_not_worked_out(key, value):
    given = pod(annotations={key: value}, terminationGracePeriodSeconds=300)
    assert [flag for flag in sidecar(outcome(given).pod)["args"] if flag.startswith(f"--{key}")] == [f"--{key}={value}"]


def test_the_place_of_the_token_is_covered_read_only_by_a_volume_without_one():
    after = outcome(pod()).pod
    [mount] = sidecar(after)["volumeMounts"]
    assert mount["readOnly"] is True
    [volume] = after["spec"]["volumes"]
    [source] = volume["projected"]["sources"]
    assert source.keys() == {"downwardAPI"}
    assert "volumes" not in injection.uninject(after).pod["spec"]


def test_a_node_can_be_drained_without_a_flag_for_the_sidecars_sake():
    """kubectl takes each emptyDir for data that is lost (pkg/drain/filters.go of kubernetes/kubectl)."""
    assert all("emptyDir" not in volume for volume in outcome(pod()).pod["spec"]["volumes"])


def test_an_emptydir_of_an_older_injector_is_replaced_in_place():
    before = outcome(pod()).pod
    [volume] = before["spec"]["volumes"]
    before["spec"]["volumes"] = [
        {"name": volume["name"], "emptyDir": {"medium": "Memory"}},
        {"name": "b", "emptyDir": {}},
    ]
    assert outcome(before).pod["spec"]["volumes"] == [volume, {"name": "b", "emptyDir": {}}]
