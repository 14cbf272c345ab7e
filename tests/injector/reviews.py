"""AdmissionReviews as the API server sends them, and what comes back, decoded; a server to send them to, over TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import jsonpatch

from carpool_injector.certificates import pki, serving_certificate
from carpool_injector.core import model, refusals
from carpool_injector.objects import review
from carpool_injector.webhook import connections, server

Object = dict[str, Any]

NAMES = ("carpool-injector.carpool-system.svc", "localhost")
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "iris-", "labels": {"carpool.dev/inject": "true"}},
    "spec": {"containers": [{"name": "app", "image": "model:1", "ports": [{"containerPort": 8080}]}]},
}
KINDS = {
    "Pod": ("", "v1"),
    "Deployment": ("apps", "v1"),
    "StatefulSet": ("apps", "v1"),
    "DaemonSet": ("apps", "v1"),
    "ReplicaSet": ("apps", "v1"),
    "Job": ("batch", "v1"),
    "CronJob": ("batch", "v1"),
    "InferenceService": ("serving.kserve.io", "v1beta1"),
}


def asking(thing: Object | None = None, operation: str = "CREATE", old: Object | None = None, **members: Any) -> Object:
    """An AdmissionReview about an object (POD unless given) in the namespace `models`."""
    thing = POD if thing is None and operation != "DELETE" else thing
    kind = str((thing or old or POD)["kind"])
    group, version = KINDS.get(kind, ("acme.example", "v1"))
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": f"{kind.lower()}s"},
        "namespace": "models",
        "operation": operation,
        "userInfo": {"username": "admin", "groups": ["system:masters"]},
        "object": thing,
        "oldObject": old,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **members,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def request(thing: Object | None = None, operation: str = "CREATE", **members: Any) -> review.Request:
    """The same as the webhooks' handlers see it."""
    return review.read(json.dumps(asking(thing, operation, **members)).encode())


def response(body: bytes) -> Object:
    """The `response` of an answer, checked to be a well-formed AdmissionReview."""
    answer = json.loads(body)
    assert answer["kind"] == "AdmissionReview"
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    found: Object = answer["response"]
    return found


def patch(found: Object) -> list[Object]:
    """The decoded patch of a response; [] for none."""
    if "patch" not in found:
        return []
    assert found["patchType"] == "JSONPatch"
    decoded: list[Object] = json.loads(base64.b64decode(found["patch"], validate=True))
    return decoded


def patched(thing: Object, found: Object) -> Object:
    """The object as the API server stores it."""
    result: Object = jsonpatch.apply_patch(thing, patch(found))
    return result


# --- a stand-in for the injector: each outcome is one label away ---------------------------------------------------

PLAN = model.Plan("port-swap", True, "app", 8081, 8080, 9082)
ASKED = model.Decision(True, True, "the pod's label", "asked")
REFUSAL = refusals.Refusal("unknown-server", "the app's port cannot be moved", "set carpool.dev/app-port-arg")


def inject(pod: Object, namespace: model.Namespace) -> model.Outcome:
    """Injects pods labelled carpool.dev/inject=true, unless the label `fate` says refused, skipped or bug."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    fate = labels.get("fate", "injected" if labels.get("carpool.dev/inject") == "true" else "unconcerned")
    if fate == "bug":
        raise KeyError("a bug")
    if not isinstance(pod.get("spec"), dict):
        raise refusals.Malformed("spec: must be an object")
    if fate == "refused":
        status = [{"op": "add", "path": "/metadata/annotations", "value": {"carpool.dev/status": "{}"}}]
        return model.Outcome(pod, ASKED, patch=status, refusal=REFUSAL, warnings=(f"no sidecar: {REFUSAL}",))
    if fate == "skipped":
        return model.Outcome(pod, model.Decision(False, False, "the namespace", "not-a-predictor"))
    if fate == "unconcerned":
        return model.Outcome(pod, model.Decision(False, False, "nobody", "not-asked", concerned=False))
    container = {"name": "carpool", "image": f"sidecar-for-{namespace.name}"}
    added = [{"op": "add", "path": "/spec/initContainers", "value": [container]}]
    return model.Outcome(pod, ASKED, patch=added, plan=PLAN, warnings=("a word of warning",))


@dataclass
class Known:
    """Namespaces that are simply there."""

    namespaces: Mapping[str, model.Namespace]

    async def get(self, name: str) -> model.Namespace:
        if name not in self.namespaces:
            raise review.Unanswerable(f"namespace {name!r} could not be read: no such one")
        return self.namespaces[name]


async def until(condition: Callable[[], bool | Awaitable[bool]], pause: float = 0.0) -> None:
    """Returns once the condition holds; asks again after each pause (seconds, or 0: each turn of the loop)."""
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        await asyncio.sleep(pause)


# --- a server over TLS -----------------------------------------------------------------------------------------------


@dataclass
class Endpoint:
    """A client of a server that listens on the loopback interface."""

    session: aiohttp.ClientSession
    url: str
    tls: ssl.SSLContext | None

    async def post(self, path: str, body: Any, **options: Any) -> aiohttp.ClientResponse:
        """Posts an object as JSON, or bytes as they are, with the API server's Content-Type unless another is given."""
        data = body if isinstance(body, bytes) or hasattr(body, "__aiter__") else json.dumps(body).encode()
        data = io.BytesIO(data) if isinstance(data, bytes) else data
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        found = await self.session.post(
            f"{self.url}{path}", data=data, headers=headers, ssl=self.tls or True, **options
        )
        await found.read()
        return found

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        async with self.session.get(f"{self.url}{path}", ssl=self.tls or True) as found:
            return found.status, await found.text()


def certificates() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's TLS context with a fresh certificate for NAMES, and a client's that trusts it and nothing else."""
    now = datetime.datetime.now(datetime.UTC)
    root = pki.issue_authority(now)
    tls = serving_certificate.make_context()
    serving_certificate.load_pair(tls, pki.issue_leaf(root, NAMES, now))
    return tls, ssl.create_default_context(cadata=root.certificate.decode())


@contextlib.asynccontextmanager
async def serving(subject: server.Server, grace: float = 1.0) -> AsyncIterator[Endpoint]:
    """The server's TLS application on a free port, with a client that keeps its connection."""
    tls, trusting = certificates()
    listener = connections.Listener(subject.reviews(), grace, most=100)
    port = await listener.open("127.0.0.1", 0, tls)
    connector = aiohttp.TCPConnector(force_close=False)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Endpoint(session, f"https://localhost:{port}", trusting)
    finally:
        await listener.close()
