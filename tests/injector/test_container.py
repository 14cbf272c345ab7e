"""The sidecar container: its resources, its way out, and what stays of it when it is built anew."""

from __future__ import annotations

import copy

import pytest

from carpool_injector.core import injection, model
from carpool_injector.core.config import Amounts, Config, Limits, Resources

NOWHERE, CLUSTER = model.Namespace("ml"), model.Capabilities()
EQUAL = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "2000m", "memory": "4096Mi"}}


def pod(annotations=None, container=None, **spec):
    app = {"name": "app", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"], **(container or {})}
    chosen = {"carpool.dev/inject": "true"} | {
        f"carpool.dev/{key}": value for key, value in (annotations or {}).items()
    }
    return {"metadata": {"annotations": chosen}, "spec": {"containers": [app], **spec}}


def outcome(given, config=None, capabilities=CLUSTER):
    found = injection.inject(given, config or Config(), NOWHERE, capabilities)
    assert found.result == "injected", str(found.refusal)
    return found


def sidecar(given, config=None, capabilities=CLUSTER):
    spec = outcome(given, config, capabilities).pod["spec"]
    return next(c for c in [*spec.get("initContainers", []), *spec["containers"]] if c["name"] == "carpool")


def test_requests_and_limits_are_always_set():
    assert sidecar(pod())["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"cpu": "1", "memory": "1Gi"},
    }


def test_a_guaranteed_pod_stays_guaranteed_for_a_modest_amount():
    resources = sidecar(pod(container={"resources": EQUAL}))["resources"]
    assert resources == {kind: {"cpu": "500m", "memory": "512Mi"} for kind in ("requests", "limits")}


def test_the_admin_chooses_what_sidecars_of_guaranteed_pods_get():
    config = Config(resources=Resources(guaranteed=Amounts(cpu="1", memory="256Mi")))
    resources = sidecar(pod(container={"resources": EQUAL}), config)["resources"]
    assert resources == {kind: {"cpu": "1", "memory": "256Mi"} for kind in ("requests", "limits")}


@pytest.mark.parametrize(
    ("resources", "cpu", "memory"),
    [
        (Resources(limits=Limits(cpu="250m", memory="256Mi")), "250m", "256Mi"),
        (Resources(requests=Amounts(cpu="800m", memory="768Mi")), "800m", "768Mi"),
        (Resources(limits=Limits(memory="8Gi")), "500m", "512Mi"),
    ],
)
def test_in_guaranteed_pods_the_admins_other_requests_and_limits_are_bounds(resources, cpu, memory):
    found = sidecar(pod(container={"resources": EQUAL}), Config(resources=resources))["resources"]
    assert found == {kind: {"cpu": cpu, "memory": memory} for kind in ("requests", "limits")}


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_one_annotated_amount_is_request_and_limit_in_a_guaranteed_pod(kind):
    given = pod({f"resources-{kind}-cpu": "2"}, container={"resources": EQUAL})
    resources = sidecar(given)["resources"]
    assert resources == {kind: {"cpu": "2", "memory": "512Mi"} for kind in ("requests", "limits")}
    assert outcome(given).warnings == ()


def test_two_annotated_amounts_that_differ_are_taken_and_cost_a_guaranteed_pod_its_class_with_a_warning():
    given = pod({"resources-requests-cpu": "1", "resources-limits-cpu": "2"}, container={"resources": EQUAL})
    resources = sidecar(given)["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("1", "2")
    assert [text for text in outcome(given).warnings if "not of the class Guaranteed any more" in text]


@pytest.mark.parametrize("resources", [EQUAL, {}, {"limits": EQUAL["limits"]}])
@pytest.mark.parametrize("annotations", [{}, {"resources-limits-cpu": "none"}, {"resources-requests-cpu": "2"}])
def test_injecting_twice_gives_the_same_resources(resources, annotations):
    first = outcome(pod(annotations, container={"resources": resources}))
    assert outcome(first.pod).patch == []


NO_LIMIT = Config(resources=Resources(limits=Limits(memory="1Gi")))


@pytest.mark.parametrize(("annotations", "config"), [({}, NO_LIMIT), ({"resources-limits-cpu": "none"}, Config())])
def test_the_limit_of_cpu_can_be_left_out(annotations, config):
    expected = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    assert sidecar(pod(annotations), config)["resources"] == expected


def test_an_annotation_gives_a_limit_where_the_admin_has_none():
    resources = sidecar(pod({"resources-limits-cpu": "2"}), NO_LIMIT)["resources"]
    assert resources["limits"] == {"cpu": "2", "memory": "1Gi"}


def test_a_guaranteed_pod_has_a_limit_of_cpu_whatever_others_have():
    assert sidecar(pod(container={"resources": EQUAL}), NO_LIMIT)["resources"]["limits"]["cpu"] == "500m"
    given = pod({"resources-limits-cpu": "none"}, container={"resources": EQUAL})
    assert sidecar(given)["resources"]["limits"]["cpu"] == "500m"
    assert [text for text in outcome(given).warnings if "none has no effect" in text]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("cpu limit for init container carpool", {"cpu": "2"}),
        ("cpu request for container app; cpu, ephemeral-storage limit for init container carpool", {"cpu": "2"}),
        ("cpu limit for container carpool", {"cpu": "2"}),
        ("cpu limit for container app", {}),
        ("memory limit for init container carpool", {}),
        ("cpu limit for init container carpool-db", {}),
    ],
)
def test_a_limit_that_the_namespaces_limit_range_gave_is_kept(told, kept):
    stored = copy.deepcopy(outcome(pod(), NO_LIMIT).pod)
    stored["metadata"]["annotations"]["kubernetes.io/limit-ranger"] = f"LimitRanger plugin set: {told}"
    stored["spec"]["initContainers"][0]["resources"]["limits"]["cpu"] = "2"
    again = outcome(stored, NO_LIMIT)
    assert again.pod["spec"]["initContainers"][0]["resources"]["limits"] == {"memory": "1Gi", **kept}
    assert outcome(again.pod, NO_LIMIT).patch == []


@pytest.mark.parametrize(
    "resources", [{"limits": {"cpu": "2"}}, {**EQUAL, "requests": {"cpu": "1"}}, {"requests": EQUAL["requests"]}, {}]
)
def test_a_burstable_pod_is_not_made_to_request_its_limits(resources):
    assert sidecar(pod(container={"resources": resources}))["resources"]["requests"] == {
        "cpu": "100m",
        "memory": "128Mi",
    }


@pytest.mark.parametrize(
    ("annotations", "requests", "limits"),
    [
        ({"resources-limits-cpu": "50m"}, {"cpu": "50m", "memory": "128Mi"}, {"cpu": "50m", "memory": "1Gi"}),
        ({"resources-requests-memory": "2Gi"}, {"cpu": "100m", "memory": "2Gi"}, {"cpu": "1", "memory": "2Gi"}),
        ({"resources-requests-cpu": "0.5"}, {"cpu": "0.5", "memory": "128Mi"}, {"cpu": "1", "memory": "1Gi"}),
    ],
)
def test_an_annotation_past_the_other_default_takes_that_with_it(annotations, requests, limits):
    assert sidecar(pod(annotations))["resources"] == {"requests": requests, "limits": limits}


def test_the_admin_chooses_image_user_and_pull_policy():
    config = Config(image="r.example/c@sha256:" + "0" * 64, run_as_user=1234, image_pull_policy="Always")
    built = sidecar(pod(), config)
    assert (built["image"], built["imagePullPolicy"]) == (config.image, "Always")
    assert built["securityContext"]["runAsUser"] == 1234


def test_without_a_users_number_the_image_or_openshift_chooses_one():
    assert "runAsUser" not in sidecar(pod())["securityContext"]


def test_a_channel_is_one_of_the_admins_images():
    config = Config(channels={"canary": "r.example/c:canary"})
    assert sidecar(pod({"image-channel": "canary"}), config)["image"] == "r.example/c:canary"


@pytest.mark.parametrize(
    ("grace", "flags"),
    [
        (None, []),
        (30, []),
        (300, ["--grace-period=295"]),
        (86_406, ["--grace-period=86400"]),
        (10**9, ["--grace-period=86400"]),
        (10, ["--quiet-period=1.67", "--grace-period=5"]),
        (1, ["--quiet-period=0.167", "--grace-period=0.5"]),
        (0, ["--quiet-period=0.0667", "--grace-period=0.2"]),
    ],
)
def test_the_way_out_fits_into_the_pods_own_time_for_it(grace, flags):
    spec = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    assert [flag for flag in sidecar(pod(**spec))["args"] if "period" in flag] == flags


@pytest.mark.parametrize(
    ("annotations", "grace", "flags"),
    [
        ({"grace-period": "12"}, 300, ["--grace-period=12", "--quiet-period=4"]),
        ({"quiet-period": "2"}, 120, ["--quiet-period=2", "--grace-period=115"]),
        ({"quiet-period": "30"}, 120, ["--quiet-period=30", "--grace-period=115"]),
        ({"quiet-period": "1", "grace-period": "2"}, 30, ["--quiet-period=1", "--grace-period=2"]),
    ],
)
def test_a_period_that_is_annotated_is_kept_and_the_other_one_worked_out(annotations, grace, flags):
    found = sidecar(pod(annotations, terminationGracePeriodSeconds=grace))
    assert [flag for flag in found["args"] if "period" in flag] == flags


@pytest.mark.parametrize(
    ("annotations", "grace"),
    [({"quiet-period": "20"}, 10), ({"quiet-period": "25"}, None), ({"grace-period": "0"}, 30)],
)
def test_a_quiet_period_that_does_not_fit_is_refused(annotations, grace):
    spec = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    refusal = injection.inject(pod(annotations, **spec), Config(), NOWHERE, CLUSTER).refusal
    assert refusal is not None
    assert "-period: got " in str(refusal)


def test_a_grace_period_longer_than_the_pods_is_told():
    warnings = outcome(pod({"grace-period": "60"})).warnings
    assert any("longer than terminationGracePeriodSeconds" in text for text in warnings)


@pytest.mark.parametrize(("user", "ours"), [(0, 65532), (1000, None), (None, None)])
def test_a_pod_of_root_does_not_make_the_sidecar_root(user, ours):
    built = sidecar(pod(securityContext={} if user is None else {"runAsUser": user}))
    assert built["securityContext"].get("runAsUser") == ours
    assert built["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("proxy", ["istio-proxy", "linkerd-proxy"])
def test_beside_a_mesh_proxy_that_starts_after_init_containers_the_sidecar_is_an_ordinary_container(proxy):
    given = pod()
    given["spec"]["containers"].append({"name": proxy, "image": proxy})
    found = outcome(given)
    assert found.plan.native is False
    again = copy.deepcopy(outcome(pod()).pod)
    again["spec"]["containers"].append({"name": proxy, "image": proxy})
    assert outcome(again).pod["spec"].get("initContainers") is None


def test_beside_a_native_mesh_proxy_the_sidecar_is_native():
    assert outcome(pod(initContainers=[{"name": "istio-proxy", "restartPolicy": "Always"}])).plan.native


def test_a_host_port_is_kept_by_an_ordinary_container():
    found = outcome(pod(container={"ports": [{"containerPort": 8000, "hostPort": 80}]}))
    assert found.plan.native is False
    assert found.pod["spec"]["containers"][-1]["ports"][0]["hostPort"] == 80


def test_a_native_sidecar_that_cannot_work_is_refused_where_it_was_asked_for():
    given = pod({"sidecar-mode": "native"}, container={"ports": [{"containerPort": 8000, "hostPort": 80}]})
    refusal = injection.inject(given, Config(), NOWHERE, CLUSTER).refusal
    assert refusal.code == "no-native-sidecars"
    assert "hostPort" in refusal.message


def test_dollars_in_a_value_reach_the_sidecar_as_they_were_written():
    args = sidecar(pod({"predictor-health-path": "/h?a=$(X)&b=$$"}))["args"]
    assert args[-1] == "--predictor-health-path=/h?a=$$(X)&b=$$$$"


@pytest.mark.parametrize("name", ["carpool-app", "carpool-admin", "carpool-http"])
def test_a_port_with_one_of_our_names_is_refused(name):
    ports = [{"containerPort": 8000}, {"containerPort": 8001, "name": name}]
    refusal = injection.inject(pod(container={"ports": ports}), Config(), NOWHERE, CLUSTER).refusal
    assert refusal.code == "name-taken"


def test_being_asked_again_after_the_api_server_filled_in_defaults_changes_nothing():
    found = outcome(pod({"resources-requests-cpu": "0.5"}, container={"ports": [{"containerPort": 8000}]}))
    stored = copy.deepcopy(found.pod)
    ours = stored["spec"]["initContainers"][0]
    ours |= {"terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent"}
    ours["resources"]["requests"]["cpu"] = "500m"
    for port in [*ours["ports"], *stored["spec"]["containers"][0]["ports"]]:
        port["protocol"] = "TCP"
    again_found = injection.inject(stored, Config(), NOWHERE, CLUSTER)
    assert again_found.patch == []


def test_what_another_webhook_added_to_the_sidecar_is_kept():
    found = outcome(pod())
    stored = copy.deepcopy(found.pod)
    ours = stored["spec"]["initContainers"][0]
    ours["env"] = [*ours.get("env", []), {"name": "DD_AGENT", "value": "x"}]
    ours["volumeMounts"].append({"name": "certs", "mountPath": "/certs"})
    assert injection.inject(stored, Config(), NOWHERE, CLUSTER).patch == []


@pytest.mark.parametrize("field", ["image", "args", "securityContext", "startupProbe", "volumeMounts", "restartPolicy"])
def test_what_another_webhook_took_from_the_sidecar_is_restored(field):
    found = outcome(pod())
    stored = copy.deepcopy(found.pod)
    del stored["spec"]["initContainers"][0][field]
    assert injection.inject(stored, Config(), NOWHERE, CLUSTER).pod == found.pod


def test_a_variable_that_is_no_longer_needed_goes():
    probed = pod(container={"readinessProbe": {"httpGet": {"path": "/r", "port": 8000}}})
    stored = copy.deepcopy(outcome(probed).pod)
    del stored["spec"]["containers"][0]["readinessProbe"]
    assert "env" not in injection.inject(stored, Config(), NOWHERE, CLUSTER).pod["spec"]["initContainers"][0]


def test_a_cluster_without_native_sidecars_gets_a_classic_one_at_the_end():
    given = pod()
    given["spec"]["containers"].append({"name": "log-shipper"})
    spec = outcome(given, capabilities=model.Capabilities(False, False)).pod["spec"]
    assert [container["name"] for container in spec["containers"]] == ["app", "log-shipper", "carpool"]
    assert "initContainers" not in spec
    assert "restartPolicy" not in spec["containers"][-1]


def test_a_sidecar_that_becomes_native_leaves_the_containers():
    classic = injection.inject(pod(), Config(), NOWHERE, model.Capabilities(False, False))
    native = injection.inject(classic.pod, Config(), NOWHERE, CLUSTER)
    assert [container["name"] for container in native.pod["spec"]["containers"]] == ["app"]
    assert [container["name"] for container in native.pod["spec"]["initContainers"]] == ["carpool"]


@pytest.mark.parametrize(
    ("server", "kubelet", "able", "by_name"),
    [((1, 28), (1, 28), False, False), ((1, 30), (1, 30), True, False), ((1, 32), (1, 32), True, False),
     ((1, 33), (1, 29), True, True), ((1, 33), (1, 28), False, False), ((1, 33), None, True, True)],
)  # fmt: skip
def test_what_a_cluster_can_do_is_told_by_its_versions(server, kubelet, able, by_name):
    found = model.Capabilities.of(server, kubelet)
    assert (found.native_sidecars, found.native_named_ports) == (able, by_name)


def test_limits_of_the_admin_hold_for_defaults_too():
    config = Config(resources=Resources(limits=Limits(cpu="2", memory="2Gi")))
    assert sidecar(pod(), config)["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
