"""The Kubernetes client reads and writes objects on loopback: certificates, namespaces, events, what diagnosis asks."""

from __future__ import annotations

import base64
import contextlib
import datetime

import pytest

from carpool_injector.api import calls
from carpool_injector.certificates import certificate_controller, pki, serving_certificate
from carpool_injector.core import model
from tests.injector.fake_api_server import status

WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/carpool-injector"
SECRET = "/api/v1/namespaces/carpool-system/secrets/certificates"
MUTATING = ("MutatingWebhookConfiguration", "carpool-injector")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bert-5d4", "uid": "u-1"}


def put_webhooks(api, path=WEBHOOK, entries=2):
    service = {"service": {"name": "carpool-injector", "namespace": "carpool-system"}}
    webhooks = [{"name": f"w{i}", "clientConfig": dict(service), "timeoutSeconds": 5} for i in range(entries)]
    api.put(path, {"kind": "MutatingWebhookConfiguration", "webhooks": webhooks})


# --- certificates --------------------------------------------------------------------------------------------------


async def test_a_secret_is_created_read_and_changed_at_its_version_only(api, client):
    assert await client.read_secret("carpool-system", "certificates") is None
    made = await client.write_secret("carpool-system", "certificates", {"tls.crt": b"\x00one"}, None)
    assert await client.read_secret("carpool-system", "certificates") == made
    assert made.data == {"tls.crt": b"\x00one"}
    changed = await client.write_secret("carpool-system", "certificates", {"ca.crt": b"two"}, made.resource_version)
    assert changed.data == {"tls.crt": b"\x00one", "ca.crt": b"two"}
    with pytest.raises(
        calls.Conflict, match="patch secrets carpool-system/certificates: changed or created by somebody"
    ):
        await client.write_secret("carpool-system", "certificates", {"ca.crt": b"three"}, made.resource_version)
    with pytest.raises(calls.Conflict):
        await client.write_secret("carpool-system", "certificates", {"ca.crt": b"three"}, None)
    assert (await client.read_secret("carpool-system", "certificates")).data["ca.crt"] == b"two"


async def test_a_secret_without_data_is_one(api, client):
    api.put(SECRET, {"kind": "Secret", "metadata": {}})
    assert (await client.read_secret("carpool-system", "certificates")).data == {}


async def test_the_ca_bundle_goes_into_every_entry_and_nothing_else_changes(api, client):
    put_webhooks(api)
    before = await client.read_webhooks(*MUTATING)
    after = await client.set_ca_bundle(MUTATING[0], before, b"PEM")
    for entry, was in zip(after["webhooks"], before["webhooks"], strict=True):
        assert base64.b64decode(entry["clientConfig"].pop("caBundle")) == b"PEM"
        assert entry == was
    assert after["metadata"]["resourceVersion"] == api.objects[WEBHOOK]["metadata"]["resourceVersion"]
    assert api.requests[-1].query["fieldManager"] == "carpool-injector"


async def test_a_ca_bundle_is_not_written_over_what_somebody_has_changed_meanwhile(api, client):
    put_webhooks(api)
    before = await client.read_webhooks(*MUTATING)
    put_webhooks(api)
    with pytest.raises(calls.Conflict):
        await client.set_ca_bundle(MUTATING[0], before, b"PEM")
    before = await client.read_webhooks(*MUTATING)
    api.instead = [status(409, "Conflict", "the object has been modified")]
    with pytest.raises(calls.Conflict):
        await client.set_ca_bundle(MUTATING[0], before, b"PEM")
    await client.set_ca_bundle(MUTATING[0], before, b"PEM")
    assert await client.read_webhooks("ValidatingWebhookConfiguration", "carpool-injector") is None


async def test_the_certificates_are_made_published_and_taken_into_service_through_the_real_client(api, client):
    put_webhooks(api)
    now = serving_certificate.utc_now()
    made = serving_certificate.ServingCertificate(
        serving_certificate.make_context(), pki.service_names("carpool-injector", "carpool-system"), now
    )
    kept = certificate_controller.CertificateController(client, made, "carpool-system", "certificates", [MUTATING])
    for _ in range(2):
        await kept.step()
        assert made.unverified is None
    bundle = api.objects[WEBHOOK]["webhooks"][1]["clientConfig"]["caBundle"]
    assert bundle == api.objects[SECRET]["data"]["ca.crt"]
    assert sorted(api.objects[SECRET]["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert [request.method for request in api.requests] == ["GET", "GET", "POST", "PATCH", "GET", "GET"]


# --- namespaces and events -----------------------------------------------------------------------------------------


async def test_a_namespace_is_read_with_labels_and_annotations(api, client):
    api.put("/api/v1/namespaces/models", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    api.put("/api/v1/namespaces/bare", {"metadata": {}})
    assert await client.read_namespace("models") == model.Namespace("models", {"a": "b"}, {"c": "d"})
    assert await client.read_namespace("bare") == model.Namespace("bare", {}, {})
    with pytest.raises(calls.NotFound, match="get namespaces none"):
        await client.read_namespace("none")


async def test_all_pages_of_a_list_are_read(api, client):
    for number in range(620):
        api.namespace(f"n{number:03}")
    async with contextlib.aclosing(client.watch_namespaces()) as changes:
        names = [*await anext(changes)]
    assert names == [f"n{number:03}" for number in range(620)]
    assert len(api.requests) == 3


async def test_an_event_is_written_about_its_owner(api, client):
    await client.create_event("models", OWNER, "CarpoolSidecarRefused", "no port")
    [body] = api.bodies
    assert body["involvedObject"] == {**OWNER, "namespace": "models"}
    assert (body["type"], body["reason"], body["message"], body["count"]) == (
        "Warning",
        "CarpoolSidecarRefused",
        "no port",
        1,
    )
    assert body["metadata"] == {"generateName": "bert-5d4.", "namespace": "models"}
    written = datetime.datetime.fromisoformat(body["lastTimestamp"])
    assert abs(datetime.datetime.now(datetime.UTC) - written) < datetime.timedelta(minutes=1)
    assert api.requests[0].path == "/api/v1/namespaces/models/events"


async def test_of_pods_only_the_metadata_of_those_that_speak_of_carpool_is_kept(api, client):
    says = {"labels": {"carpool.dev/inject": "true"}, "managedFields": [{"manager": "x"}]}
    for number, metadata in enumerate(
        [says, {"annotations": {"carpool.dev/inject": "true"}}, {}, {"labels": {"a": "b"}}] * 100
    ):
        api.put(f"/api/v1/namespaces/models/pods/p{number:03}", {"metadata": dict(metadata)})
    found = await client.list_pod_metadata()
    assert len(found) == 200
    assert not any("managedFields" in pod["metadata"] for pod in found)
    assert "as=PartialObjectMetadataList;" in api.requests[0].headers["Accept"]
    assert api.requests[0].query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


async def test_a_pod_is_evicted_by_its_uid_and_a_budget_that_forbids_it_is_told(api, client):
    await client.evict_pod("models", "bert-1", "u-1")
    assert api.requests[-1].path == "/api/v1/namespaces/models/pods/bert-1/eviction"
    body = api.bodies[-1]
    assert (body["apiVersion"], body["kind"]) == ("policy/v1", "Eviction")
    assert body["deleteOptions"] == {"preconditions": {"uid": "u-1"}}
    api.instead = [status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")]
    with pytest.raises(calls.Unavailable, match=r"create pods/eviction models/bert-2: .* disruption budget"):
        await client.evict_pod("models", "bert-2", "u-2")


# --- what the cluster can do; diagnosis ----------------------------------------------------------------------------


async def test_versions_of_server_and_kubelets_are_numbers(api, client):
    for number, version in enumerate(["v1.29.3", "v1.33.4-gke.1100", *["v1.31.0+k3s1"] * 120]):
        api.put(f"/api/v1/nodes/n{number:03}", {"status": {"nodeInfo": {"kubeletVersion": version}}})
    assert await client.server_version() == (1, 33)
    assert await client.kubelet_versions() == [(1, 29), (1, 33), *[(1, 31)] * 120]
    assert len(api.requests) == 4


@pytest.mark.parametrize(
    "node",
    [{}, {"status": {}}, *({"status": {"nodeInfo": {"kubeletVersion": told}}} for told in ("", "unknown", None))],
)
async def test_a_node_that_tells_no_version_is_left_out(api, client, node):
    api.put("/api/v1/nodes/virtual", node)
    api.put("/api/v1/nodes/real", {"status": {"nodeInfo": {"kubeletVersion": "v1.31.0"}}})
    assert await client.kubelet_versions() == [(1, 31)]


@pytest.mark.parametrize(
    ("answer", "version"),
    [({"major": "1", "minor": "29+"}, (1, 29)), ({"major": "", "minor": "", "gitVersion": "v1.30.2-x"}, (1, 30))],
)
async def test_the_servers_version_is_read_from_what_it_tells(api, client, answer, version):
    api.git_version = answer
    assert await client.server_version() == version


async def test_a_server_that_tells_no_version_is_a_failure_in_words(api, client):
    api.git_version = {"major": "", "minor": ""}
    with pytest.raises(calls.Rejected, match="no version that can be read"):
        await client.server_version()


async def test_webhook_configurations_are_listed_by_label(api, client):
    folder = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    for name, labels in {"ours": {"part": "a"}, "theirs": {}}.items():
        api.put(f"{folder}/{name}", {"metadata": {"labels": labels}})
    found = await client.list_webhooks("MutatingWebhookConfiguration", "part=a")
    assert [each["metadata"]["name"] for each in found] == ["ours"]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_policies_are_listed_in_the_version_that_there_is(api, client, version):
    folder = f"/apis/admissionregistration.k8s.io/{version}/mutatingadmissionpolicies"
    api.put(f"{folder}/ours", {"metadata": {"labels": {"part": "a"}}})
    found = await client.list_policies("part=a")
    assert [each["metadata"]["name"] for each in found] == ["ours"]


async def test_a_secret_is_known_to_exist_without_its_content(api, client):
    api.put("/api/v1/namespaces/ml/secrets/registry", {"data": {}})
    assert await client.has_secret("ml", "registry")
    assert not await client.has_secret("ml", "none")
    assert "as=PartialObjectMetadata;" in api.requests[0].headers["Accept"]


async def test_namespaces_are_found_by_label(api, client):
    for name, labels in {"a": {"x": "y"}, "b": {}}.items():
        api.put(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
    assert await client.read_labelled_namespaces("x=y") == ["a"]


async def test_pods_config_maps_and_endpoint_slices_are_raw(api, client):
    pod = {"metadata": {"labels": {"app": "bert"}}, "spec": {"futurePodField": 1}}
    api.put("/api/v1/namespaces/models/pods/a", pod)
    api.put("/api/v1/namespaces/other/pods/b", {"metadata": {}})
    assert [p["spec"]["futurePodField"] for p in await client.list_pods("models", "app=bert")] == [1]
    assert await client.list_pods("models", "app=other") == []
    assert len(await client.list_pods()) == 2
    api.put("/api/v1/namespaces/kserve/configmaps/inferenceservice-config", {"data": {"agent": "{}"}})
    assert (await client.read_config_map("kserve", "inferenceservice-config"))["data"] == {"agent": "{}"}
    assert await client.read_config_map("kserve", "none") is None
    slices = "/apis/discovery.k8s.io/v1/namespaces/carpool-system/endpointslices"
    for service in ("carpool-injector", "another"):
        api.put(
            f"{slices}/{service}-1", {"metadata": {"labels": {"kubernetes.io/service-name": service}}, "endpoints": []}
        )
    [found] = await client.read_endpoint_slices("carpool-system", "carpool-injector")
    assert found["metadata"]["name"] == "carpool-injector-1"
    names = [each["metadata"]["name"] for each in await client.list_endpoint_slices()]
    assert sorted(names) == ["another-1", "carpool-injector-1"]


async def test_rules_of_namespaces_are_listed_everywhere(api, client):
    for namespace in ("models", "other"):
        api.put(f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": {"of": namespace}}})
        api.put(f"/api/v1/namespaces/{namespace}/limitranges/r", {"metadata": {"namespace": namespace}, "spec": {}})
        api.put(f"/api/v1/namespaces/{namespace}/resourcequotas/q", {"metadata": {"namespace": namespace}, "spec": {}})
    for found in (await client.list_limit_ranges(), await client.list_quotas()):
        assert [each["metadata"]["namespace"] for each in found] == ["models", "other"]
    assert {each.name: each.annotations for each in await client.list_namespaces()} == {
        "models": {"of": "models"}, "other": {"of": "other"},
    }  # fmt: skip


async def test_the_objects_of_a_kind_are_listed_with_what_they_are(api, client):
    api.put("/apis/networking.k8s.io/v1/namespaces/models/networkpolicies/p", {"metadata": {"namespace": "models"}})
    [found] = await client.list_kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"]) == (
        "networking.k8s.io/v1", "NetworkPolicy", "p",
    )  # fmt: skip


async def test_a_dry_run_stores_nothing_and_gives_back_all_fields(api, client):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "check-"},
        "spec": {"futureField": None, "n": 1.5},
    }
    found = await client.dry_run_create_pod("models", pod)
    assert found == {**pod, "status": {"phase": "Pending"}}
    assert api.objects == {}
    message = 'admission webhook "m.carpool.dev" denied the request: max-batch-size is 0'
    api.instead = [status(400, "BadRequest", message)]
    with pytest.raises(calls.Rejected, match=r"create pods models: not accepted .*max-batch-size is 0"):
        await client.dry_run_create_pod("models", pod)
