"""The Kubernetes client against an API server on loopback: what is sent, what comes back, what failures say."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import subprocess
import sys

import pytest
from aiohttp import web

from injector.api import kube
from injector.certificates import authority, context, keeper, publisher, served
from injector.core import model
from tests.injector.fake_api_server import FakeApiServer, status

WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/carpool-injector"
SECRET = "/api/v1/namespaces/carpool-system/secrets/certificates"
MUTATING = ("MutatingWebhookConfiguration", "carpool-injector")
# The transport tries an idempotent request once more when a connection ends without an answer.
HANG_UP = ("hang up", "hang up")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bert-5d4", "uid": "u-1"}


@pytest.fixture
async def api(aiohttp_server):
    made = FakeApiServer()
    made.server = await aiohttp_server(made.app)
    return made


def write_kubeconfig(path, url, **user):
    """A kubeconfig with two contexts; the current one leads to `url`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me"}},
            {"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "me"}},
        ],
        "clusters": [
            {"name": "here", "cluster": {"server": url}},
            {"name": "elsewhere", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
async def client(api, tmp_path):
    url = str(api.server.make_url("")).rstrip("/")
    made = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", url), sleep=no_pause)
    yield made
    await made.close()


async def no_pause(seconds):
    await asyncio.sleep(0)


def put_webhooks(api, path=WEBHOOK, entries=2):
    service = {"service": {"name": "carpool-injector", "namespace": "carpool-system"}}
    webhooks = [{"name": f"w{i}", "clientConfig": dict(service), "timeoutSeconds": 5} for i in range(entries)]
    api.put(path, {"kind": "MutatingWebhookConfiguration", "webhooks": webhooks})


# --- certificates --------------------------------------------------------------------------------------------------


async def test_a_secret_is_created_read_and_changed_at_its_version_only(api, client):
    assert await client.read_secret("carpool-system", "certificates") is None
    made = await client.write_secret(
        "carpool-system", "certificates", {"tls.crt": b"\x00one"}, None, {"app": "carpool"}
    )
    assert await client.read_secret("carpool-system", "certificates") == made
    assert made.data == {"tls.crt": b"\x00one"}
    changed = await client.write_secret("carpool-system", "certificates", {"ca.crt": b"two"}, made.resource_version, {})
    assert changed.data == {"tls.crt": b"\x00one", "ca.crt": b"two"}
    assert api.objects[SECRET]["metadata"]["labels"] == {"app": "carpool"}
    with pytest.raises(
        kube.Conflict, match="patch secrets carpool-system/certificates: changed or created by somebody"
    ):
        await client.write_secret("carpool-system", "certificates", {"ca.crt": b"three"}, made.resource_version, {})
    with pytest.raises(kube.Conflict):
        await client.write_secret("carpool-system", "certificates", {"ca.crt": b"three"}, None, {})
    assert (await client.read_secret("carpool-system", "certificates")).data["ca.crt"] == b"two"


async def test_a_secret_without_data_is_one(api, client):
    api.put(SECRET, {"kind": "Secret", "metadata": {}})
    assert (await client.read_secret("carpool-system", "certificates")).data == {}


async def test_the_ca_bundle_goes_into_every_entry_and_nothing_else_changes(api, client):
    put_webhooks(api)
    before = await client.read_webhooks(*MUTATING)
    after = await client.set_ca_bundle(*MUTATING, b"PEM", before["metadata"]["resourceVersion"])
    for entry, was in zip(after["webhooks"], before["webhooks"], strict=True):
        assert base64.b64decode(entry["clientConfig"].pop("caBundle")) == b"PEM"
        assert entry == was
    assert after["metadata"]["resourceVersion"] == api.objects[WEBHOOK]["metadata"]["resourceVersion"]
    assert api.requests[-1].query["fieldManager"] == "carpool-injector"


async def test_a_ca_bundle_is_not_written_over_what_somebody_has_changed_meanwhile(api, client):
    put_webhooks(api)
    version = (await client.read_webhooks(*MUTATING))["metadata"]["resourceVersion"]
    put_webhooks(api)
    with pytest.raises(kube.Conflict):
        await client.set_ca_bundle(*MUTATING, b"PEM", version)
    api.instead = [None, status(409, "Conflict", "the object has been modified")]
    with pytest.raises(kube.Conflict):
        await client.set_ca_bundle(*MUTATING, b"PEM")
    await client.set_ca_bundle(*MUTATING, b"PEM")
    assert await client.read_webhooks("ValidatingWebhookConfiguration", "carpool-injector") is None


async def test_the_certificates_are_made_published_and_taken_into_service_through_the_real_client(api, client):
    put_webhooks(api)
    now = keeper.utc_now()
    made = served.Served(context.make(), authority.service_names("carpool-injector", "carpool-system"), now)
    settings = keeper.Settings("carpool-system", "certificates", (publisher.Webhook(*MUTATING),), {"app": "carpool"})
    kept = keeper.Keeper(client, made, settings)
    for _ in range(2):
        await kept.step()
        assert made.facts.is_verified
    bundle = api.objects[WEBHOOK]["webhooks"][1]["clientConfig"]["caBundle"]
    assert bundle == api.objects[SECRET]["data"]["ca.crt"]
    assert sorted(api.objects[SECRET]["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert [request.method for request in api.requests] == ["GET", "GET", "POST", "GET", "PATCH", "GET", "GET"]


# --- namespaces and events -----------------------------------------------------------------------------------------


async def test_a_namespace_is_read_with_labels_and_annotations(api, client):
    api.put("/api/v1/namespaces/models", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    api.put("/api/v1/namespaces/bare", {"metadata": {}})
    assert await client.read_namespace("models") == model.Namespace("models", {"a": "b"}, {"c": "d"})
    assert await client.read_namespace("bare") == model.Namespace("bare", {}, {})
    with pytest.raises(kube.NotFound, match="get namespaces none"):
        await client.read_namespace("none")


async def test_all_pages_of_a_list_are_read(api, client):
    for number in range(620):
        api.namespace(f"n{number:03}")
    names = [found["metadata"]["name"] for found in await client.list_namespaces()]
    assert names == [f"n{number:03}" for number in range(620)]
    assert len(api.requests) == 3


class Watch:
    """A watch of namespaces, read change by change as (type, name)."""

    def __init__(self, client):
        self.changes = client.watch_namespaces()

    async def read(self, count):
        return [(kind, name) for kind, name, _, _ in [await anext(self.changes) for _ in range(count)]]


@pytest.fixture
async def watch(client):
    made = Watch(client)
    yield made
    await made.changes.aclose()


async def follow(api, watch, count, *acts):
    """The next changes, while `acts` happen to the API server once somebody watches it."""
    reading = asyncio.ensure_future(watch.read(count))
    await api.begun.get()
    for act in acts:
        act()
    return await reading


async def test_a_watch_tells_all_there_is_then_synced_then_each_change(api, watch):
    api.namespace("one", {"a": "b"})
    api.namespace("two")
    assert [await anext(watch.changes) for _ in range(3)] == [
        ("ADDED", "one", {"a": "b"}, {}),
        ("ADDED", "two", {}, {}),
        ("SYNCED", "", {}, {}),
    ]
    changes = await follow(
        api,
        watch,
        3,
        lambda: api.namespace("three"),
        lambda: api.namespace("one"),
        lambda: api.delete("/api/v1/namespaces/two"),
    )
    assert changes == [("ADDED", "three"), ("MODIFIED", "one"), ("DELETED", "two")]


@pytest.mark.parametrize("ending", ["end", "break"])
async def test_a_watch_that_ends_or_breaks_goes_on_from_where_it_was(api, watch, ending):
    api.namespace("one")
    await watch.read(2)
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Namespace", "metadata": {"resourceVersion": "7000"}}}
    reading = asyncio.ensure_future(watch.read(2))
    await api.begun.get()
    api.namespace("one")
    api.tell(bookmark)
    api.tell(ending)
    assert await api.begun.get() == "7000"
    api.namespace("two")
    assert await reading == [("MODIFIED", "one"), ("ADDED", "two")]
    assert sum("watch" not in request.query for request in api.requests) == 1


@pytest.mark.parametrize("is_answered_by_status", [True, False])
async def test_a_watch_whose_version_is_forgotten_begins_anew_and_tells_who_has_gone(api, watch, is_answered_by_status):
    api.namespace("one")
    api.namespace("two")
    await watch.read(3)
    reading = asyncio.ensure_future(watch.read(4))
    await api.begun.get()
    if is_answered_by_status:
        api.instead = [status(410, "Expired", "too old resource version")]
    else:
        api.forgets_versions_before = api.version + 3
    api.tell("end")
    del api.objects["/api/v1/namespaces/one"]
    api.objects["/api/v1/namespaces/three"] = {"metadata": {"name": "three", "resourceVersion": "1"}}
    api.version += 5
    assert await reading == [("DELETED", "one"), ("ADDED", "three"), ("ADDED", "two"), ("SYNCED", "")]


async def test_a_watch_outlasts_an_api_server_that_is_away_or_says_no(api, watch, caplog):
    api.namespace("one")
    no = status(403, "Forbidden", 'User "u" cannot list resource "namespaces"')
    api.instead = [*HANG_UP, status(500, "InternalError", "etcd is away"), no, web.Response(text="<html>")]
    assert await watch.read(2) == [("ADDED", "one"), ("SYNCED", "")]
    assert caplog.text.count("the watch of namespaces broke, the next try follows") == 4
    assert 'apiGroups: [""], resources: ["namespaces"], verbs: ["list"]' in caplog.text


async def test_a_watch_waits_longer_and_longer_while_nothing_works(api, tmp_path):
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 9:
            api.instead = []

    api.instead = [status(503, "ServiceUnavailable", "starting") for _ in range(20)]
    url = str(api.server.make_url("")).rstrip("/")
    client = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", url), sleep=pause)
    async with contextlib.aclosing(client.watch_namespaces()) as changes:
        assert (await anext(changes))[0] == "SYNCED"
    await client.close()
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


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


# --- what the cluster can do; diagnosis ----------------------------------------------------------------------------


async def test_versions_of_server_and_kubelets_are_numbers(api, client):
    for number, version in enumerate(["v1.29.3", "v1.33.4-gke.1100", *["v1.31.0+k3s1"] * 120]):
        api.put(f"/api/v1/nodes/n{number:03}", {"status": {"nodeInfo": {"kubeletVersion": version}}})
    assert await client.server_version() == (1, 33)
    assert await client.kubelet_versions() == [(1, 29), (1, 33), *[(1, 31)] * 120]
    assert len(api.requests) == 4


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
    with pytest.raises(kube.Rejected, match=r"create pods models: not accepted .*max-batch-size is 0"):
        await client.dry_run_create_pod("models", pod)


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (status(401, "Unauthorized", "Unauthorized"), kube.Forbidden, "does not accept our credentials"),
        (
            status(403, "Forbidden", "cannot get"),
            kube.Forbidden,
            r'a Role .* \[""\], resources: \["secrets"\], verbs: \["get"\]',
        ),
        (status(429, "TooManyRequests", "slow down"), kube.Unavailable, "slow down.*try again later"),
        (status(500, "InternalError", "etcd is away"), kube.Unavailable, "etcd is away"),
        (web.Response(status=502, text="<html>bad gateway"), kube.Unavailable, "<html>bad gateway"),
        (web.Response(status=422), kube.Rejected, "HTTP status 422"),
        (web.Response(text="<html>a login page"), kube.Unavailable, "no answer from the API server"),
        ("hang up", kube.Unavailable, "no answer from the API server.*check that it runs"),
    ],
)
async def test_failures_name_the_call_and_the_next_step(api, client, answer, failure, words):
    api.instead = list(HANG_UP) if answer == "hang up" else [answer]
    with pytest.raises(failure, match=words) as caught:
        await client.read_secret("carpool-system", "certificates")
    assert str(caught.value).startswith("get secrets carpool-system/certificates: ")
    assert isinstance(caught.value, kube.Failure)


async def test_an_api_server_that_is_not_there_is_unavailable(tmp_path):
    client = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))
    with pytest.raises(kube.Unavailable, match="get version: no answer"):
        await client.server_version()
    await client.close()


@pytest.mark.looptime
async def test_an_api_server_that_does_not_answer_is_given_up_after_ten_seconds(tmp_path, looptime):
    async def hold(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}"))
    with pytest.raises(kube.Unavailable, match="get version"):
        await client.server_version()
    assert 10 <= looptime < 12
    await client.close()
    server.close()
    await server.wait_closed()


async def test_odd_names_stay_inside_their_part_of_the_path(api, client):
    await client.read_config_map("a/../b", "c?d")
    assert api.requests[-1].raw_path == "/api/v1/namespaces/a%2F..%2Fb/configmaps/c%3Fd"


# --- ways to a cluster ---------------------------------------------------------------------------------------------


async def test_a_token_and_another_context_of_the_kubeconfig_are_used(api, tmp_path):
    api.token = "t0ken"
    url = str(api.server.make_url("")).rstrip("/")
    path = write_kubeconfig(tmp_path / "config", url, token="t0ken")
    client = await kube.Kube.connect(path)
    assert await client.server_version() == (1, 33)
    await client.close()
    client = await kube.Kube.connect(path, "elsewhere")
    with pytest.raises(kube.Unavailable):
        await client.server_version()
    await client.close()


async def test_in_a_pod_the_service_account_is_used(tmp_path):
    now = datetime.datetime.now(datetime.UTC)
    ca = authority.issue_authority(now)
    tls = context.make()
    context.load(tls, authority.issue_leaf(ca, ("localhost",), now))
    api = FakeApiServer()
    api.token = "from-the-kubelet"
    runner = web.AppRunner(api.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    (tmp_path / "token").write_text("from-the-kubelet")
    (tmp_path / "ca.crt").write_bytes(ca.certificate)
    environment = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(runner.addresses[0][1])}
    client = await kube.Kube.connect(service_account=tmp_path, environment=environment)
    assert await client.server_version() == (1, 33)
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "content", [None, "", "junk: [", "a: b", "current-context: x\ncontexts: []\nclusters: []\nusers: []"]
)
async def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path, content):
    if content is not None:
        (tmp_path / "config").write_text(content)
    with pytest.raises(kube.Unconfigured, match=r"no way to a cluster: .*check --kubeconfig and --context"):
        await kube.Kube.connect(str(tmp_path / "config"))


async def test_no_kubeconfig_and_no_service_account_is_told(tmp_path):
    environment = {"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"}
    with pytest.raises(kube.Unconfigured, match=r"there is no kubeconfig at .*/a:.*/b, and no service account at"):
        await kube.Kube.connect(service_account=tmp_path, environment=environment)


# --- memory --------------------------------------------------------------------------------------------------------


def test_the_synchronous_client_and_its_libraries_are_not_loaded_and_can_be_afterwards():
    program = """if True:
        import sys
        import injector.api.kube
        assert "kubernetes" not in sys.modules
        unused = {"requests", "urllib3", "oauthlib", "websocket", "kubernetes.client"} & sys.modules.keys()
        assert not unused, unused
        import kubernetes
        assert kubernetes.client.CoreV1Api
        print("fine")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")
