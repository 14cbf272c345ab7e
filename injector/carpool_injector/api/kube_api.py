"""The calls the injector makes to the Kubernetes API, on top of whatever sends them.

Objects pass as raw JSON, both ways: client models drop fields they do not know. `kube.Kube` is the one that talks to a
cluster; its failures are those of `kube_calls`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from carpool_injector.api import kube_calls, kube_objects
from carpool_injector.api.kube_calls import Call
from carpool_injector.api.kube_objects import Change, Object, Secret, Version
from carpool_injector.core import model

FIELD_MANAGER = "carpool-injector"
JSON = "application/json"

_PAGE = 250
_PAGE_OF_NODES = 50  # a node lists all its images: tens of kilobytes
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts to watch
_ADMISSION = "admissionregistration.k8s.io/v1"
_WEBHOOK_RESOURCES = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}

_log = logging.getLogger("carpool.injector.api")


class Api(abc.ABC):
    """Every method can raise Failure; that and its kinds are `kube_calls`'."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep

    @abc.abstractmethod
    async def request(self, call: Call, query: Mapping[str, str], body: Object | None, content_type: str) -> Object:
        """Sends one call and returns the answer. Raises Failure."""

    @abc.abstractmethod
    def stream(self, call: Call, query: Mapping[str, str]) -> AsyncGenerator[Object, None]:
        """Sends a watch and yields its events (type, object) until the API server ends it. Raises Failure."""

    # --- certificates ------------------------------------------------------------------------------------------------

    async def read_secret(self, namespace: str, name: str) -> Secret | None:
        """The Secret, None when there is none."""
        found = await self._find(Call("get", "secrets", namespace, name))
        return None if found is None else kube_objects.secret(found)

    async def write_secret(
        self,
        namespace: str,
        name: str,
        data: Mapping[str, bytes],
        resource_version: str | None,
        labels: Mapping[str, str],
    ) -> Secret:
        """Sets these keys and labels, leaves others; creates the Secret when `resource_version` is None.

        Raises Conflict when it exists already or has another version by now.
        """
        body = kube_objects.secret_body(name, data, resource_version, labels)
        if resource_version is None:
            return kube_objects.secret(await self._send(Call("create", "secrets", namespace), body))
        call = Call("patch", "secrets", namespace, name)
        return kube_objects.secret(await self._send(call, body, "application/merge-patch+json"))

    async def read_webhooks(self, kind: str, name: str) -> Object | None:
        """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration, None when there is none."""
        return await self._find(Call("get", _WEBHOOK_RESOURCES[kind], name=name, group=_ADMISSION))

    async def set_ca_bundle(self, kind: str, name: str, pem: bytes, resource_version: str | None = None) -> Object:
        """Gives every entry of a webhook configuration this caBundle; returns the configuration as it is then.

        Raises NotFound, and Conflict when it has another version than `resource_version` or changes meanwhile.
        """
        found = await self._ask(Call("get", _WEBHOOK_RESOURCES[kind], name=name, group=_ADMISSION))
        call = Call("patch", _WEBHOOK_RESOURCES[kind], name=name, group=_ADMISSION)
        if resource_version not in (None, found["metadata"]["resourceVersion"]):
            raise kube_calls.Conflict(f"{call}: changed by somebody else meanwhile; read it again")
        body = kube_objects.ca_bundle_body(found, pem)
        return await self._send(call, body, "application/strategic-merge-patch+json")

    # --- namespaces and events: while serving ------------------------------------------------------------------------

    async def read_namespace(self, name: str) -> model.Namespace:
        """The namespace. Raises NotFound."""
        found = await self._ask(Call("get", "namespaces", name=name))
        return kube_objects.namespace(found)

    async def list_namespaces(self) -> list[Object]:
        """All namespaces."""
        return (await self._list(Call("list", "namespaces")))[0]

    async def watch_namespaces(self) -> AsyncGenerator[Change, None]:
        """Type, name, labels and annotations: ADDED for each namespace there is, SYNCED once, then each change.

        Types are ADDED, MODIFIED, DELETED and SYNCED (with an empty name). Goes on for ever: a watch that ends is
        resumed where it was; where it cannot be, all begins anew: DELETED for what has gone meanwhile, ADDED for each,
        SYNCED. Failures are logged and tried again, later and later.
        """
        known: set[str] = set()
        version: str | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                if version is None:
                    namespaces, version = await self._list(Call("list", "namespaces"))
                    for change in kube_objects.changes_from_anew(known, namespaces):
                        yield change
                async with contextlib.aclosing(self._watch(Call("watch", "namespaces"), version)) as events:
                    async for kind, found in events:
                        version, pause = found["metadata"]["resourceVersion"], _FIRST_PAUSE
                        if kind in ("ADDED", "MODIFIED", "DELETED"):
                            change = kube_objects.change(kind, found)
                            (known.discard if kind == "DELETED" else known.add)(change[1])
                            yield change
            except kube_calls.Expired:
                version = None
            except kube_calls.Failure as error:
                _log.warning("the watch of namespaces broke, the next try follows in %g s: %s", pause, error)
            await self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def create_event(self, namespace: str, owner: Mapping[str, Any], reason: str, message: str) -> None:
        """Writes a Warning about `owner` (apiVersion, kind, name, uid) into its namespace."""
        now = datetime.datetime.now(datetime.UTC)
        body = kube_objects.event_body(namespace, owner, reason, message, FIELD_MANAGER, now)
        await self._send(Call("create", "events", namespace), body)

    # --- what the cluster can do; diagnosis --------------------------------------------------------------------------

    async def server_version(self) -> Version:
        """The API server's version, major and minor."""
        found = await self._ask(Call("get", "version", group="/"))
        return kube_objects.version(f"{found['major']}.{found['minor']}")

    async def kubelet_versions(self) -> list[Version]:
        """The version of each node's kubelet, in no order."""
        nodes = self._pages(Call("list", "nodes"), limit=_PAGE_OF_NODES)
        return [
            kube_objects.version(node["status"]["nodeInfo"]["kubeletVersion"])
            async for page in nodes
            for node in page.get("items") or ()
        ]

    async def list_pods(self, namespace: str | None = None, label_selector: str = "") -> list[Object]:
        """The pods of a namespace (None: of all) whose labels match."""
        return (await self._list(Call("list", "pods", namespace), {"labelSelector": label_selector}))[0]

    async def read_config_map(self, namespace: str, name: str) -> Object | None:
        """The ConfigMap, None when there is none."""
        return await self._find(Call("get", "configmaps", namespace, name))

    async def read_endpoint_slices(self, namespace: str, service: str) -> list[Object]:
        """The EndpointSlices of a Service."""
        call = Call("list", "endpointslices", namespace, group="discovery.k8s.io/v1")
        return (await self._list(call, {"labelSelector": f"kubernetes.io/service-name={service}"}))[0]

    async def dry_run_create_pod(self, namespace: str, pod: Object) -> Object:
        """The pod as it would be stored, after admission. Raises Rejected or Forbidden when it would not."""
        return await self._send(Call("create", "pods", namespace), pod, query={"dryRun": "All"})

    # --- in pieces ---------------------------------------------------------------------------------------------------

    async def _ask(self, call: Call, query: Mapping[str, str] | None = None) -> Object:
        return await self.request(call, query or {}, None, JSON)

    async def _find(self, call: Call) -> Object | None:
        try:
            return await self._ask(call)
        except kube_calls.NotFound:
            return None

    async def _send(
        self,
        call: Call,
        body: Object,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        return await self.request(call, {"fieldManager": FIELD_MANAGER, **(query or {})}, body, content_type)

    async def _list(self, call: Call, query: Mapping[str, str] | None = None) -> tuple[list[Object], str]:
        """All items, and the version of the list, from which a watch can go on."""
        items: list[Object] = []
        version = ""
        async for page in self._pages(call, query):
            items += page.get("items") or ()
            version = page["metadata"]["resourceVersion"]
        return items, version

    async def _pages(
        self, call: Call, query: Mapping[str, str] | None = None, limit: int = _PAGE
    ) -> AsyncGenerator[Object, None]:
        following: str | None = ""
        while following is not None:
            page = await self._ask(call, {"limit": str(limit), "continue": following, **(query or {})})
            yield page
            following = page["metadata"].get("continue") or None

    async def _watch(self, call: Call, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Types and objects from `version` on, BOOKMARKs included."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        async with contextlib.aclosing(self.stream(call, query)) as events:
            async for event in events:
                if event["type"] == "ERROR":
                    raise kube_calls.failure_of(call, event["object"])
                yield event["type"], event["object"]
