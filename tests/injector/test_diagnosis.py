"""Each check says what is wrong and what to do; facts are plain values, so every state of a cluster can be told."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from click import testing

import carpool_injector
from carpool_injector import cli
from carpool_injector.api import calls
from carpool_injector.certificates import pki, rotation, serving_certificate
from carpool_injector.commands import check
from carpool_injector.core import model
from carpool_injector.diagnosis import checks, cluster_state, findings, places
from carpool_injector.objects import pod_state
from carpool_injector.webhook import options

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
PLACE = cluster_state.Place()
CA = pki.issue_authority(NOW)
LEAF = pki.issue_leaf(CA, pki.service_names(PLACE.service, PLACE.namespace), NOW)
STATUS = {"version": carpool_injector.__version__, "config": "68ebfef2", "native": True}


def webhooks(bundle: bytes = CA.certificate, **members: Any) -> dict[str, Any]:
    client = {
        "caBundle": base64.b64encode(bundle).decode(),
        "service": {"name": PLACE.service, "namespace": PLACE.namespace},
    }
    entry = {"name": "pods.carpool.dev", "clientConfig": client, "failurePolicy": "Ignore", **members}
    return {"webhooks": [entry]}


def pod(name: str, status: Any = None, asks: bool = False, phase: str = "Running", sidecar: str = "") -> dict[str, Any]:
    annotations = {"carpool.dev/status": json.dumps(status)} if status else {}
    spec: dict[str, Any] = {"containers": [{"name": "app"}]}
    if sidecar == "native":
        spec["initContainers"] = [{"name": "carpool", "restartPolicy": "Always"}]
    elif sidecar:
        spec["containers"].append({"name": "carpool"})
    labels = {"carpool.dev/inject": "true"} if asks else {}
    metadata = {"name": name, "namespace": "models", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def endpoints(*ready: bool) -> list[dict[str, Any]]:
    found = [{"addresses": [f"10.0.0.{n}"], "conditions": {"ready": each}} for n, each in enumerate(ready)]
    return [{"ports": [{"port": 9443}], "endpoints": found}]


HEALTHY = cluster_state.ClusterState(
    place=PLACE,
    now=NOW,
    server=(1, 33),
    kubelets=[(1, 33), (1, 32)],
    mutating=webhooks(reinvocationPolicy="IfNeeded"),
    validating=webhooks(),
    kserve_webhook={"webhooks": []},
    kserve_config={"data": {"inferenceService": "{}", "deploy": '{"defaultDeploymentMode": "Standard"}'}},
    secret=calls.Secret({rotation.LEAF: LEAF.certificate}, "1"),
    endpoints=endpoints(True, True),
    pods=[pod("iris", STATUS, sidecar="native", asks=True), pod("web")],
    sample=pod("sample", STATUS, sidecar="native", asks=True),
    served=LEAF.certificate,
)
NOT_ALLOWED = cluster_state.Failed("list nodes: forbidden; a ClusterRole needs: …", forbidden=True)


def said(**changes: Any) -> list[findings.Finding]:
    known = dataclasses.replace(HEALTHY, **changes)
    return [finding for each in checks.run(known).values() for finding in each]


def bad(**changes: Any) -> list[tuple[str, str]]:
    """Verdict and text of all that is not right."""
    return [(finding.verdict, finding.text) for finding in said(**changes) if finding.verdict != "ok"]


def test_a_healthy_cluster_has_nothing_but_ok() -> None:
    assert bad() == []
    texts = "\n".join(finding.text for finding in said())
    for part in ("Kubernetes 1.33", "oldest node 1.32", "good for 30 days", "2 ready endpoints", "gets the sidecar"):
        assert part in texts


NEAR_ITS_END = NOW + pki.LEAF_LIFE - datetime.timedelta(days=6)
STRANGER = pki.issue_authority(NOW)


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        ({"server": cluster_state.Failed("no answer")}, "failed", "the API server does not tell its version"),
        ({"kubelets": [(1, 28)]}, "warning", "sidecars are ordinary containers here (oldest node 1.28)"),
        ({"kubelets": [(1, 30)], "server": (1, 31)}, "warning", "Services do not find their named ports"),
        ({"kubelets": NOT_ALLOWED}, "warning", "the versions of the nodes could not be checked"),
        (
            {"mutating": None},
            "failed",
            "there is no MutatingWebhookConfiguration zz-carpool-injector: no pod is injected",
        ),
        ({"validating": None}, "warning", "nobody hears of bad annotations"),
        ({"mutating": {"webhooks": []}}, "failed", "has no webhooks"),
        ({"mutating": NOT_ALLOWED}, "warning", "MutatingWebhookConfiguration zz-carpool-injector could not be checked"),
        (
            {"mutating": webhooks(), "place": dataclasses.replace(PLACE, mutating="carpool-injector")},
            "warning",
            "is called before inferenceservice.serving.kserve.io and not again",
        ),
        ({"kubelets": []}, "ok", "native sidecars work everywhere (no node tells its version)"),
        ({"mutating": webhooks(b"", reinvocationPolicy="IfNeeded")}, "failed", "its caBundle is empty"),
        ({"validating": webhooks(STRANGER.certificate)}, "failed", "does not trust the injector (ValidatingWebhook"),
        ({"now": NEAR_ITS_END}, "failed", "it is not renewed any more"),
        ({"now": NOW + 2 * pki.LEAF_LIFE}, "failed", "expired on"),
        ({"served": None, "secret": None}, "failed", "has none"),
        ({"served": None, "secret": NOT_ALLOWED}, "warning", "the certificate could not be checked"),
        ({"served": b"nonsense"}, "failed", "cannot be read"),
        (
            {"endpoints": endpoints(False), "sample": pod("x", asks=True)},
            "failed",
            "no ready endpoint: pods are created without the sidecar",
        ),
        ({"endpoints": NOT_ALLOWED}, "warning", "the endpoints of Service"),
        (
            {"sample": cluster_state.Failed("connection refused")},
            "failed",
            "a sample pod in namespace default (dry run) is not",
        ),
        ({"sample": NOT_ALLOWED}, "warning", "a sample pod in namespace default (dry run) could not be checked"),
        ({"sample": pod("x", asks=True)}, "failed", "gets no sidecar: the webhook was not asked"),
        ({"sample": pod("x", {"refused": "no-port", "message": "why"})}, "failed", "is refused: why"),
        ({"pods": [pod("lost", asks=True)]}, "warning", "asked for the sidecar and were missed: models/lost"),
        ({"pods": [pod("no", {"refused": "x", "message": "why"}, asks=True)]}, "warning", "models/no was refused: why"),
        ({"pods": [pod("a", STATUS, sidecar="classic")]}, "warning", "removed or changed the sidecar of: models/a"),
        ({"pods": [pod("a", STATUS)]}, "warning", "removed or changed the sidecar of: models/a"),
        (
            {"pods": [pod("a", {**STATUS, "config": "0"}, sidecar="native")]},
            "warning",
            "older version or configuration",
        ),
        ({"pods": NOT_ALLOWED}, "warning", "pods could not be checked"),
        ({"kserve_config": NOT_ALLOWED}, "warning", "could not be checked"),
        ({"missing_secrets": {"ml": ["registry"]}}, "warning", "namespace ml has no Secret registry, with which"),
        ({"missing_secrets": NOT_ALLOWED}, "warning", "the secrets with which sidecars' images are pulled could not"),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(changes: dict[str, Any], verdict: str, text: str) -> None:
    found = [finding for finding in said(**changes) if text in finding.text]
    assert [finding.verdict for finding in found] == [verdict], bad(**changes)
    assert found[0].fix or verdict == "ok"


SELECTIVE = webhooks(
    reinvocationPolicy="IfNeeded",
    namespaceSelector={
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [PLACE.namespace, "kube-system"]}
        ]
    },
)
SPACES = [model.Namespace(name) for name in ("models", PLACE.namespace, "kube-system", "default")]


def placed(namespace: str, *given: Any, **members: Any) -> dict[str, Any]:
    made = pod(*given, **members)
    made["metadata"]["namespace"] = namespace
    return made


def test_what_asks_in_a_namespace_that_the_webhooks_leave_out_is_not_said_to_need_a_restart() -> None:
    asking = [placed(PLACE.namespace, "a", asks=True), placed("kube-system", "b", asks=True), pod("c", asks=True)]
    found = bad(mutating=SELECTIVE, namespaces=SPACES, pods=asking)
    assert [text for _, text in found] == [
        "asked for the sidecar and were missed: models/c",
        "namespace carpool-system is the injector's own, whose pods never get a sidecar, though carpool-system/a asked "
        "for the sidecar",
        "namespace kube-system is left out by the webhooks, though kube-system/b asked for the sidecar",
    ]
    enabled = model.Namespace("kube-system", {"carpool.dev/inject": "enabled"})
    assert [text for _, text in bad(mutating=SELECTIVE, namespaces=[enabled])] == [
        "namespace kube-system is left out by the webhooks, though it asks for the sidecar"
    ]


def test_a_release_in_the_namespace_of_the_sample_pod_is_told_so() -> None:
    place = dataclasses.replace(PLACE, sample_namespace=PLACE.namespace)
    found = said(mutating=SELECTIVE, namespaces=SPACES, place=place, sample=pod("x", asks=True))
    (told,) = [each for each in found if "a sample pod" in each.text]
    assert (told.verdict, told.fix) == ("warning", "name another one: --sample-namespace")


def test_pods_that_were_missed_are_told_by_what_makes_each_of_them_anew() -> None:
    served, plain = pod("a", asks=True), pod("b", asks=True)
    served["metadata"]["labels"]["serving.kserve.io/inferenceservice"] = "iris"
    found = [finding for finding in said(pods=[served, plain]) if "were missed" in finding.text]
    assert [each.text.rpartition(": ")[2] for each in found] == ["models/a", "models/b"]
    assert "kubectl -n models annotate inferenceservice iris" in found[0].fix
    assert "delete the pod" in found[1].fix
    many = [pod(f"p{number}", asks=True) for number in range(7)]
    for number, each in enumerate(many):
        each["metadata"]["labels"]["serving.kserve.io/inferenceservice"] = f"s{number}"
    found = [finding for finding in said(pods=many) if "were missed" in finding.text]
    assert (len(found), found[-1].text.rpartition(": ")[2]) == (6, "models/p5, models/p6")


def test_blocking_webhooks_need_two_endpoints() -> None:
    blocking = webhooks(failurePolicy="Fail", reinvocationPolicy="IfNeeded")
    assert (
        "has one ready endpoint, and pods cannot be created without it"
        in bad(mutating=blocking, endpoints=endpoints(True, False))[0][1]
    )
    assert "such pods cannot be created" in bad(mutating=blocking, endpoints=[], sample=NOT_ALLOWED)[0][1]
    assert bad(endpoints=endpoints(True)) == []


def test_an_injector_that_answers_from_outside_the_cluster_needs_no_endpoints() -> None:
    assert bad(endpoints=[]) == []


def test_the_secret_stands_in_for_an_endpoint_that_cannot_be_reached_from_here() -> None:
    assert bad(served=None) == []
    assert any("has in its Secret" in finding.text for finding in said(served=None))


def test_a_certificate_with_an_intermediate_is_trusted_through_the_secrets_chain() -> None:
    chain = calls.Secret({rotation.LEAF: LEAF.certificate + CA.certificate}, "1")
    assert bad(secret=chain) == []


@pytest.mark.parametrize("key", ["serviceAnnotationDisallowedList", "serviceLabelDisallowedList"])
def test_kserve_that_keeps_our_keys_from_its_pods_is_a_failure(key: str) -> None:
    service = json.dumps({key: ["my.custom/1", "carpool.dev/inject"]})
    assert bad(kserve_config={"data": {"inferenceService": service}}) == [
        ("failed", "KServe keeps carpool.dev/inject from its pods")
    ]


@pytest.mark.parametrize("data", [None, {}, {"inferenceService": "not json", "agent": "[]"}])
def test_kserves_configuration_may_be_anything(data: Any) -> None:
    assert bad(kserve_config={"data": data}) == []


def test_a_cluster_without_kserve_is_fine() -> None:
    assert bad(kserve_config=None, kserve_webhook=None, mutating=webhooks()) == []


def test_many_pods_are_counted_and_some_named() -> None:
    ((_, text),) = bad(pods=[pod(f"p{number}", asks=True) for number in range(7)])
    assert text.endswith("models/p0, models/p1, models/p2, models/p3, models/p4 and 2 more")


def test_pods_that_are_all_named_are_not_counted_as_well() -> None:
    ((_, text),) = bad(pods=[pod(f"p{number}", asks=True) for number in range(5)])
    assert text.endswith("models/p0, models/p1, models/p2, models/p3, models/p4")


def test_pods_that_have_ended_do_not_count() -> None:
    assert bad(pods=[pod("done", asks=True, phase="Succeeded")]) == []


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "{}", '{"version": 1}'])
def test_a_status_that_is_none_is_no_status(text: str) -> None:
    found = pod("x", asks=True)
    found["metadata"]["annotations"] = {"carpool.dev/status": text}
    assert pod_state.PodState(found).injected is None


class FakeKube:
    """Answers from values; what is an exception is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        async def answer(*arguments: Any) -> Any:
            found = self.answers.get(name)
            found = found(*arguments) if callable(found) else found
            if isinstance(found, Exception):
                raise found
            return found

        return answer


async def nobody(address: str, port: int, host: str) -> bytes | None:
    return None


async def test_facts_that_cannot_be_had_do_not_keep_the_rest_from_being_told() -> None:
    api = FakeKube(
        server_version=(1, 33),
        kubelet_versions=calls.Forbidden("list nodes: forbidden"),
        read_webhooks=lambda kind, name: {"webhooks": [], "kind": kind, "name": name},
        list_pods=calls.Unavailable("list pods: no answer"),
        read_endpoint_slices=endpoints(True),
        dry_run_create_pod=lambda namespace, sample: {**sample, "namespace": namespace},
        list_webhooks=[BLUE],
        read_labelled_namespaces=[],
    )
    known = await cluster_state.gather(api, PLACE, NOW, nobody)
    assert known.server == (1, 33)
    assert known.kubelets == cluster_state.Failed("list nodes: forbidden", forbidden=True)
    assert known.pods == cluster_state.Failed("list pods: no answer")
    assert isinstance(known.kserve_webhook, dict)
    assert known.kserve_webhook["name"] == "inferenceservice.serving.kserve.io"
    assert isinstance(known.sample, dict)
    assert known.sample["namespace"] == "default"
    assert known.served is None


async def test_the_certificate_is_taken_from_the_first_endpoint_that_shows_one() -> None:
    asked = []

    async def dial(address: str, port: int, host: str) -> bytes | None:
        asked.append((address, port, host))
        return b"PEM" if address.endswith("2") else None

    api = FakeKube(
        read_endpoint_slices=endpoints(True, False, True), list_webhooks=[], list_pods=[], dry_run_create_pod={},
        read_labelled_namespaces=[],
    )  # fmt: skip
    assert (await cluster_state.gather(api, PLACE, NOW, dial)).served == b"PEM"
    host = "carpool-injector.carpool-system.svc"
    assert asked == [("10.0.0.0", 9443, host), ("10.0.0.2", 9443, host)]


OTHERS = pki.issue_leaf(STRANGER, ("router.local",), NOW).certificate


@pytest.mark.parametrize(
    ("secret", "names", "counts"),
    [
        (None, pki.service_names(PLACE.service, PLACE.namespace), True),
        (None, ("*.carpool-system.svc",), True),
        (None, ("router.local",), False),
        (NOT_ALLOWED, ("router.local",), False),
        (calls.Secret({rotation.LEAF: OTHERS}, "1"), (), True),
        (calls.Secret({rotation.LEAF: LEAF.certificate}, "1"), ("router.local",), False),
    ],
)
async def test_whoever_answers_at_an_address_counts_only_with_the_injectors_certificate(
    secret: Any, names: tuple[str, ...], counts: bool
) -> None:
    shown = pki.issue_leaf(STRANGER, names, NOW).certificate if names else OTHERS

    async def dial(address: str, port: int, host: str) -> bytes | None:
        return shown

    api = FakeKube(
        read_endpoint_slices=endpoints(True), list_webhooks=[], list_pods=[], dry_run_create_pod={},
        read_labelled_namespaces=[], read_secret=secret,
    )  # fmt: skip
    known = await cluster_state.gather(api, PLACE, NOW, dial)
    assert (known.served, known.strangers) == ((shown, []) if counts else (None, ["10.0.0.0:9443"]))


async def test_an_endpoint_that_cannot_be_reached_is_asked_by_way_of_the_api_server() -> None:
    asked = []

    def forwarded(*given: Any) -> bytes:
        asked.append(given)
        return OTHERS if given[1] == "injector-0" else LEAF.certificate

    slices = endpoints(True, True)
    for number, endpoint in enumerate(slices[0]["endpoints"]):
        endpoint["targetRef"] = {"kind": "Pod", "name": f"injector-{number}"}
    api = FakeKube(
        read_endpoint_slices=slices, list_webhooks=[], list_pods=[], dry_run_create_pod={},
        read_labelled_namespaces=[], read_secret=NOT_ALLOWED, forwarded_certificate=forwarded,
    )  # fmt: skip
    assert (await cluster_state.gather(api, PLACE, NOW, nobody)).served == LEAF.certificate
    assert asked == [(PLACE.namespace, f"injector-{number}", 9443, PLACE.host) for number in (0, 1)]
    api.answers["forwarded_certificate"] = calls.Forbidden("get pods/portforward: forbidden")
    assert (await cluster_state.gather(api, PLACE, NOW, nobody)).served is None


def test_where_somebody_else_answers_the_secrets_certificate_is_looked_at_and_that_is_told() -> None:
    assert bad(served=None, strangers=["10.0.0.0:9443"]) == []
    told = [finding.text for finding in said(served=None, strangers=["10.0.0.0:9443"])]
    where = "has in its Secret (its endpoints are not reachable from here: somebody else answers at 10.0.0.0:9443)"
    assert any(where in text for text in told)
    ((verdict, text),) = bad(served=None, strangers=["10.0.0.0:9443"], secret=NOT_ALLOWED)
    assert (verdict, "not reachable from here" in text) == ("warning", True)


def test_a_section_without_findings_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    check.tell({"Certificates": [], "Pods": [findings.ok("fine")]}, "text")
    assert capsys.readouterr().out.splitlines()[0] == "Pods"


async def test_a_certificate_is_read_from_a_real_handshake() -> None:
    tls = serving_certificate.make_context()
    serving_certificate.load_pair(tls, LEAF)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with server:
        shown = await cluster_state.shown_certificate("127.0.0.1", port, PLACE.host)
    assert shown is not None
    assert ssl.PEM_cert_to_DER_cert(shown.decode()) == ssl.PEM_cert_to_DER_cert(LEAF.certificate.decode())
    assert await cluster_state.shown_certificate("127.0.0.1", port, PLACE.host) is None


def test_the_places_are_those_of_serve_and_of_the_chart() -> None:
    chosen = options.Options()
    assert (PLACE.namespace, PLACE.service, PLACE.secret, PLACE.mutating, PLACE.validating) == (
        chosen.namespace, chosen.service_name, chosen.secret_name, f"zz-{chosen.mutating_webhook}",
        chosen.validating_webhook,
    )  # fmt: skip


async def test_pull_secrets_are_looked_for_where_pods_get_the_sidecar_or_are_to_get_it() -> None:
    there = {("a", "registry"), ("b", "mirror")}
    with_secrets = {**STATUS, "pullSecrets": ["registry", "mirror"]}

    def placed(namespace: str, **members: Any) -> dict[str, Any]:
        made = pod("p", **members)
        made["metadata"]["namespace"] = namespace
        return made

    api = FakeKube(
        dry_run_create_pod=pod("sample", with_secrets),
        list_pods=[placed("a", status=STATUS), placed("b", asks=True), placed("other")],
        read_labelled_namespaces=["c"],
        read_endpoint_slices=[],
        list_webhooks=[],
        has_secret=lambda *asked: asked in there,
    )
    known = await cluster_state.gather(api, PLACE, NOW, nobody)
    assert known.missing_secrets == {"a": ["mirror"], "b": ["registry"], "c": ["mirror", "registry"]}
    api.answers["has_secret"] = calls.Forbidden("get secrets: forbidden")
    known = await cluster_state.gather(api, PLACE, NOW, nobody)
    assert known.missing_secrets == cluster_state.Failed("get secrets: forbidden", forbidden=True)
    api.answers["dry_run_create_pod"] = pod("sample", STATUS)
    assert (await cluster_state.gather(api, PLACE, NOW, nobody)).missing_secrets == {}


def registration(name: str, namespace: str, service: str, *terms: str) -> dict[str, Any]:
    selector = {"matchExpressions": [{"key": key, "operator": "Exists"} for key in terms]}
    client = {"service": {"namespace": namespace, "name": service}}
    return {"metadata": {"name": name}, "webhooks": [{"clientConfig": client, "namespaceSelector": selector}]}


BLUE = registration("zz-blue-carpool-injector", "blue-system", "blue-carpool-injector")
GREEN = registration("green-injector", "green-system", "green-injector", "kubernetes.io/metadata.name", "team")


async def found(*registered: Any, **given: str) -> cluster_state.Place:
    api = FakeKube(list_webhooks=lambda kind, labels: list(registered), list_policies=[])
    return await places.find(api, **given)


async def test_a_release_is_found_whatever_it_is_called() -> None:
    place = await found(BLUE)
    assert (place.namespace, place.service, place.mutating) == (
        "blue-system", "blue-carpool-injector", "zz-blue-carpool-injector",
    )  # fmt: skip
    assert (place.secret, place.validating) == ("blue-carpool-injector-certificates", "blue-carpool-injector")


async def test_where_nothing_is_found_names_are_the_charts() -> None:
    assert await found() == PLACE
    refused = calls.Forbidden("list mutatingwebhookconfigurations: forbidden")
    api = FakeKube(list_webhooks=refused, list_policies=refused)
    assert await places.find(api) == PLACE
    assert (await found(service="mine-injector")).secret == "mine-injector-certificates"


async def test_a_release_in_mode_policy_is_found_and_has_no_webhook_to_look_at() -> None:
    samples = []

    def create(namespace: str, sample: dict[str, Any]) -> dict[str, Any]:
        samples.append(sample)
        return pod("sample", STATUS, sidecar="native", asks=True)

    api = FakeKube(
        list_webhooks=[], list_policies=[{"metadata": {"name": "carpool-injector"}}], list_pods=[],
        read_endpoint_slices=[], read_labelled_namespaces=[], dry_run_create_pod=create, server_version=(1, 36),
        kubelet_versions=[(1, 36)], list_endpoint_slices=[], list_limit_ranges=[], list_quotas=[], list_namespaces=[],
        list_kind=[],
    )  # fmt: skip
    place = await places.find(api)
    assert place.policy == "carpool-injector"
    known = await cluster_state.gather(api, place, NOW, nobody)
    found = [finding for each in checks.run(known).values() for finding in each]
    assert [each.text for each in found if each.verdict != "ok"] == []
    assert "mode policy" in " ".join(each.text for each in found)
    assert samples[0]["metadata"]["annotations"] == {"carpool.dev/takeover": "named-port", "carpool.dev/port": "http"}
    without = dataclasses.replace(known, sample=pod("sample", asks=True))
    assert [each.text for each in checks.trial(without)] == [
        "a sample pod in namespace default (dry run) gets no sidecar by the policy"
    ]


async def test_of_several_releases_one_has_to_be_named() -> None:
    with pytest.raises(places.Ambiguous, match=r"blue-system.*green-system.*--namespace"):
        await found(BLUE, GREEN)
    assert (await found(BLUE, GREEN, namespace="green-system")).mutating == "green-injector"
    assert (await found(BLUE, GREEN, mutating="zz-blue-carpool-injector")).namespace == "blue-system"


async def test_what_is_given_counts() -> None:
    given = {"namespace": "n", "service": "s", "mutating": "m", "secret": "x", "validating": "v"}
    place = await found(BLUE, GREEN, **given)
    assert {key: getattr(place, key) for key in given} == given


def test_another_injector_on_the_same_namespaces_is_told() -> None:
    assert bad(others=[BLUE])[0][1] == (
        "another injector, blue-carpool-injector in namespace blue-system, acts on the same namespaces: the one that "
        "is called last decides"
    )
    narrow = {**webhooks(reinvocationPolicy="IfNeeded"), **registration("x", "y", "z", "team")}
    assert not [text for _, text in bad(others=[GREEN], mutating=narrow) if "another injector" in text]
    assert [text for _, text in bad(others=[GREEN]) if "another injector" in text]
    assert bad(others=NOT_ALLOWED) == [("warning", "whether there is another injector could not be checked")]


def test_the_exit_status_tells_whether_something_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.tell(checks.run(HEALTHY), "text") == 0
    assert check.tell(checks.run(dataclasses.replace(HEALTHY, validating=None)), "text") == 0
    assert check.tell(checks.run(dataclasses.replace(HEALTHY, mutating=None)), "text") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "Webhooks" in lines
    assert "           -> install the chart, or name it with --mutating-webhook" in lines
    assert lines[-1].endswith("0 warning, 1 failed")


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    check.tell(checks.run(HEALTHY), "json")
    first = json.loads(capsys.readouterr().out)[0]
    assert first == {
        "group": "Kubernetes", "verdict": "ok", "text": "the API server answers: Kubernetes 1.33", "fix": "",
    }  # fmt: skip


def test_a_kubeconfig_that_is_not_there_is_told_with_status_2(tmp_path: Path) -> None:
    result = testing.CliRunner().invoke(cli.program, ["check", "--kubeconfig", str(tmp_path / "none")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("carpool-injector check: no way to a cluster")
