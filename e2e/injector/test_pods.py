"""What the API server stores for pods that ask for the sidecar, and for pods that do not."""

from __future__ import annotations

import copy

import pytest

from e2e.cluster import client
from e2e.injector import installation, manifests, steps
from tests.injector import pods

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
# What a restricted namespace wants of a pod, and the app's container here has not.
POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_pod_that_asks_by_label_is_stored_with_a_native_sidecar(admin: client.Client, namespace: str) -> None:
    stored = admin.create(manifests.pod(namespace)).object
    assert [each["name"] for each in stored["spec"]["initContainers"]] == [manifests.SIDECAR]
    assert manifests.sidecar(stored)["restartPolicy"] == "Always"
    assert [each["name"] for each in stored["spec"]["containers"]] == ["kserve-container"]


def test_a_pod_may_ask_by_annotation(admin: client.Client, namespace: str) -> None:
    stored = admin.create(manifests.pod(namespace, labels={}, annotations=pods.OPT_IN)).object
    assert manifests.has_sidecar(stored)


def test_the_label_overrules_the_annotation(admin: client.Client, namespace: str) -> None:
    asked = manifests.pod(namespace, labels={manifests.INJECT: "false"}, annotations=pods.OPT_IN)
    assert not manifests.has_sidecar(admin.create(asked).object)


@pytest.mark.parametrize("word", ["true", "enabled"])
def test_a_namespace_may_ask_for_its_predictors(
    admin: client.Client, new_namespace: steps.NewNamespace, shared: installation.Installation, word: str
) -> None:
    namespace = new_namespace({**shared.labels, manifests.INJECT: word})
    predictor = admin.create(manifests.pod(namespace, labels={})).object
    database = {"name": "db", "image": "postgres:17"}
    other = admin.create(manifests.pod(namespace, database, labels={})).object
    opted_out = admin.create(manifests.pod(namespace, labels={manifests.INJECT: "false"})).object
    assert [manifests.has_sidecar(each) for each in (predictor, other, opted_out)] == [True, False, False]


def test_the_first_pod_of_a_namespace_that_was_just_made_gets_the_sidecar(
    admin: client.Client, new_namespace: steps.NewNamespace, shared: installation.Installation
) -> None:
    for _ in range(5):
        namespace = new_namespace({**shared.labels, manifests.INJECT: "enabled"})
        assert manifests.has_sidecar(admin.create(manifests.pod(namespace, labels={})).object)


def test_a_namespace_label_counts_from_the_moment_it_is_set(admin: client.Client, namespace: str) -> None:
    def changed_to(value: str | None) -> bool:
        admin.patch("Namespace", namespace, {"metadata": {"labels": {manifests.INJECT: value}}})
        # The API server's own view of the namespace's labels follows by a watch.
        return manifests.has_sidecar(eventual_pod(admin, namespace, wanted=value is not None))

    assert [changed_to("enabled"), changed_to(None), changed_to("true")] == [True, False, True]


def eventual_pod(admin: client.Client, namespace: str, *, wanted: bool) -> client.Object:
    """The pod that is stored once injection there is as wanted, or after some tries as it is."""
    for _ in range(50):
        stored = admin.create(manifests.pod(namespace, labels={}), dry_run=True).object
        if manifests.has_sidecar(stored) == wanted:
            break
    return stored


def test_pods_that_nobody_spoke_of_are_stored_as_without_an_injector(
    admin: client.Client, namespace: str, new_namespace: steps.NewNamespace
) -> None:
    plain = manifests.pod(namespace, labels={})
    elsewhere = copy.deepcopy(plain)
    elsewhere["metadata"]["namespace"] = new_namespace()
    assert comparable(admin.create(plain).object) == comparable(admin.create(elsewhere).object)


def test_a_pod_that_says_no_is_stored_as_without_an_injector(
    admin: client.Client, namespace: str, new_namespace: steps.NewNamespace
) -> None:
    plain = manifests.pod(namespace, labels={manifests.INJECT: "false"})
    elsewhere = copy.deepcopy(plain)
    elsewhere["metadata"]["namespace"] = new_namespace()
    assert comparable(admin.create(plain).object) == comparable(admin.create(elsewhere).object)


def comparable(stored: client.Object) -> client.Object:
    """A stored pod less what differs between two creations of the same one."""
    spec = copy.deepcopy(stored["spec"])
    for volume in spec.get("volumes", ()):
        if volume["name"].startswith("kube-api-access-"):
            volume["name"] = "kube-api-access"
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        for mount in container.get("volumeMounts", ()):
            if mount["name"].startswith("kube-api-access-"):
                mount["name"] = "kube-api-access"
    metadata = {key: stored["metadata"].get(key) for key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": spec}


def test_the_sidecar_takes_over_the_port_of_a_recognised_server(admin: client.Client, namespace: str) -> None:
    server = pods.sklearn(ports=[{"name": "http1", "containerPort": 8080}])
    stored = admin.create(manifests.pod(namespace, server)).object
    args, status = pods.flags(manifests.app(stored)["args"]), manifests.status(stored)
    assert args["--http_port"] == str(status["appPort"]) != "8080"
    assert manifests.sidecar_flags(stored)["--port"] == "8080"
    assert manifests.sidecar_flags(stored)["--component-port"] == args["--http_port"]


def test_probes_follow_the_server_to_its_new_port(admin: client.Client, namespace: str) -> None:
    probe = {"httpGet": {"path": "/v2/health/ready", "port": 8080}}
    server = pods.sklearn(readinessProbe=probe, livenessProbe={"tcpSocket": {"port": 8080}})
    stored = admin.create(manifests.pod(namespace, server)).object
    app, port = manifests.app(stored), manifests.status(stored)["appPort"]
    assert app["readinessProbe"]["httpGet"]["port"] == port
    assert app["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert app["livenessProbe"]["tcpSocket"]["port"] == port


def test_a_probe_by_port_name_asks_what_it_asked_before(admin: client.Client, namespace: str) -> None:
    server = pods.sklearn(
        ports=[{"name": "http1", "containerPort": 8080}], readinessProbe={"httpGet": {"path": "/", "port": "http1"}}
    )
    stored = admin.create(manifests.pod(namespace, server)).object
    app, port = manifests.app(stored), manifests.status(stored)["appPort"]
    named = {each.get("name"): each["containerPort"] for each in app.get("ports", ())}
    asked = app["readinessProbe"]["httpGet"]["port"]
    assert (named[asked] if isinstance(asked, str) else asked) == port


def test_a_named_port_moves_to_the_sidecar(admin: client.Client, namespace: str) -> None:
    server = pods.custom(ports=[{"name": "http", "containerPort": 7000}])
    stored = admin.create(manifests.pod(namespace, server, annotations={"carpool.dev/takeover": "named-port"})).object
    assert [each["containerPort"] for each in manifests.sidecar(stored)["ports"] if each["name"] == "http"] == [9081]
    assert "http" not in [each.get("name") for each in manifests.app(stored).get("ports", ())]
    assert manifests.sidecar_flags(stored)["--component-port"] == "7000"


def test_the_image_is_the_admins_choice(admin: client.Client, namespace: str) -> None:
    stored = admin.create(manifests.pod(namespace, annotations={"carpool.dev/image": "evil.example.com/x"})).object
    assert manifests.sidecar(stored)["image"] == installation.CONFIG["image"]


def test_settings_become_flags_of_the_sidecar(admin: client.Client, namespace: str) -> None:
    settings = {"carpool.dev/max-batch-size": "16", "carpool.dev/max-latency": "25"}
    flags = manifests.sidecar_flags(admin.create(manifests.pod(namespace, annotations=settings)).object)
    assert (flags["--max-batch-size"], flags["--max-latency"]) == ("16", "25")


def test_the_sidecar_satisfies_a_namespace_that_enforces_restricted_pod_security(
    admin: client.Client, new_namespace: steps.NewNamespace, shared: installation.Installation
) -> None:
    namespace = new_namespace({**shared.labels, **RESTRICTED})
    answer = admin.create(manifests.pod(namespace, securityContext=POD_SECURITY))
    assert manifests.has_sidecar(answer.object)


def test_the_sidecar_does_not_lean_on_the_pod_for_restricted_pod_security(
    admin: client.Client, new_namespace: steps.NewNamespace, shared: installation.Installation
) -> None:
    namespace = new_namespace({**shared.labels, **RESTRICTED})
    server = pods.sklearn()
    server["securityContext"] |= POD_SECURITY
    assert manifests.has_sidecar(admin.create(manifests.pod(namespace, server)).object)


def test_the_sidecar_has_no_service_account_token_and_the_app_keeps_its_own(
    admin: client.Client, namespace: str
) -> None:
    # The API server mounts it into every container that has nothing else at that path, also after webhooks.
    stored = admin.create(manifests.pod(namespace)).object
    assert manifests.has_token(stored, manifests.app(stored))
    assert not manifests.has_token(stored, manifests.sidecar(stored))


def test_dry_run_shows_the_sidecar_and_stores_nothing(admin: client.Client, namespace: str) -> None:
    pod = manifests.pod(namespace)
    shown = admin.create(pod, dry_run=True).object
    assert manifests.has_sidecar(shown)
    assert pod["metadata"]["name"] not in manifests.names(admin.list("Pod", namespace))


def test_the_status_annotation_tells_what_was_done(admin: client.Client, namespace: str) -> None:
    status = manifests.status(admin.create(manifests.pod(namespace)).object)
    told = {key: status[key] for key in ("takeover", "listenPort", "container")}
    assert told == {"takeover": "port-swap", "listenPort": 8080, "container": "kserve-container"}


def test_a_stored_pod_that_is_created_again_is_stored_the_same(admin: client.Client, namespace: str) -> None:
    stored = admin.create(manifests.pod(namespace)).object
    again = admin.create(manifests.as_new(stored)).object
    assert again["spec"] == stored["spec"]
    assert again["metadata"]["annotations"] == stored["metadata"]["annotations"]


@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_a_stored_pod_that_is_created_again_and_says_no_loses_the_sidecar(
    admin: client.Client, namespace: str, place: str
) -> None:
    asked = manifests.pod(namespace, **{"labels": {}, "annotations": {}, place: pods.OPT_IN})
    again = manifests.as_new(admin.create(asked).object)
    again["metadata"][place][manifests.INJECT] = "false"
    stored = admin.create(again).object
    assert not manifests.has_sidecar(stored)
    assert pods.flags(manifests.app(stored)["args"])["--http_port"] == "8080"


def test_fields_of_later_versions_and_of_devices_survive(
    admin: client.Client, namespace: str, new_namespace: steps.NewNamespace
) -> None:
    pod = pod_with_rare_fields(namespace)
    plain = copy.deepcopy(pod)
    plain["metadata"] |= {"namespace": new_namespace()}
    stored, without = admin.create(pod).object, admin.create(plain).object
    changed = {"args", "ports", "readinessProbe", "volumeMounts", "lifecycle"}
    app, app_without = manifests.app(stored), manifests.app(without)
    assert {key: app[key] for key in app.keys() - changed} == {
        key: app_without[key] for key in app_without.keys() - changed
    }
    unchanged = stored["spec"].keys() - {"containers", "initContainers", "volumes"}
    assert {key: stored["spec"][key] for key in unchanged} == {key: without["spec"].get(key) for key in unchanged}


def pod_with_rare_fields(namespace: str) -> client.Object:
    """With what older clients' models do not know, and what a GPU needs."""
    server = pods.sklearn(
        resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        volumeDevices=[{"name": "raw", "devicePath": "/dev/raw"}],
    )
    server["resources"]["limits"] |= {"nvidia.com/gpu": "1"}
    server["resources"]["claims"] = [{"name": "device"}]
    return manifests.pod(
        namespace,
        server,
        volumes=[{"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}}],
        resourceClaims=[{"name": "device", "resourceClaimName": "gpu"}],
        schedulingGates=[{"name": "example.com/quota"}],
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        os={"name": "linux"},
        setHostnameAsFQDN=True,
    )


def test_fields_that_the_api_server_does_not_know_do_not_stop_a_pod(admin: client.Client, namespace: str) -> None:
    pod = manifests.pod(namespace, futurePodField={"of": "2030"})
    answer = admin.create(pod)
    assert manifests.has_sidecar(answer.object)
    assert any("futurePodField" in warning for warning in answer.warnings)


def test_a_pod_on_the_hosts_network_is_stored_without_the_sidecar_and_says_why(
    admin: client.Client, namespace: str
) -> None:
    answer = admin.create(manifests.pod(namespace, hostNetwork=True))
    assert not manifests.has_sidecar(answer.object)
    assert any("hostNetwork" in warning for warning in answer.warnings)


def test_a_server_that_is_not_recognised_is_stored_without_the_sidecar_and_says_what_to_do(
    admin: client.Client, namespace: str
) -> None:
    answer = admin.create(manifests.pod(namespace, pods.custom()))
    assert not manifests.has_sidecar(answer.object)
    assert any("carpool.dev/" in warning for warning in answer.warnings)


def test_a_misspelt_annotation_is_named_with_the_nearest_one(admin: client.Client, namespace: str) -> None:
    answer = admin.create(manifests.pod(namespace, annotations={"carpool.dev/max-batchsize": "8"}))
    assert manifests.has_sidecar(answer.object)
    assert any("carpool.dev/max-batch-size" in warning for warning in answer.warnings)


def test_a_misspelt_wish_is_not_passed_over_in_silence(admin: client.Client, namespace: str) -> None:
    answer = admin.create(manifests.pod(namespace, labels={manifests.INJECT: "yes"}))
    assert not manifests.has_sidecar(answer.object)
    assert any("'yes'" in warning and '"true"' in warning for warning in answer.warnings)


def test_the_largest_pods_are_admitted(admin: client.Client, namespace: str) -> None:
    # etcd takes 1.5 MiB in one request; this pod and its copy in the review stay just below.
    server = pods.sklearn(env=[{"name": f"SETTING_{number}", "value": "x" * 1000} for number in range(1000)])
    assert manifests.has_sidecar(admin.create(manifests.pod(namespace, server)).object)
