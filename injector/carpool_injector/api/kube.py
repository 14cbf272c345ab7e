"""The Kubernetes API: connects to a cluster and sends the injector's calls. Only here is the client library known.

Of the library only the ways to a cluster (service account, kubeconfig) and the transport are used. Objects pass as raw
JSON in both directions, because client models drop the fields that they do not know. Foreign exceptions end here: every
call can raise a `calls.Failure`, which names the verb, the resource and the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib.util
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp  # the client library's transport: its exceptions and timeouts are aiohttp's

from carpool_injector.api import calls, forwarding
from carpool_injector.api.calls import Call, Change, Object, Secret
from carpool_injector.core import model


@contextlib.contextmanager
def without_package_code(*packages: str) -> Iterator[None]:
    """Inside, modules of these packages (outer ones first) are imported without running the packages' `__init__`.

    `kubernetes` and `kubernetes.aio` would import two whole clients with requests, urllib3, oauthlib and websocket:
    11 MB of memory that the injector never uses. Afterwards the packages are as if never imported. A package that was
    already imported is left alone. Raises ModuleNotFoundError.
    """
    added = []
    try:
        for package in packages:
            if package not in sys.modules:
                spec = importlib.util.find_spec(package)
                if spec is None:
                    raise ModuleNotFoundError(f"No module named {package!r}", name=package)
                sys.modules[package] = importlib.util.module_from_spec(spec)
                added.append(package)
        yield
    finally:
        for package in added:
            del sys.modules[package]


with without_package_code("kubernetes", "kubernetes.aio"):
    from kubernetes.aio.client.api_client import ApiClient
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.config import config_exception, incluster_config, kube_config

# The library leaves these without types.
_load_kube_config: Any = kube_config.load_kube_config
_InClusterConfigLoader: Any = incluster_config.InClusterConfigLoader

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_FORWARD_SECONDS = 5.0
# The API server ends a watch after this long; a connection that is silent for longer is dead.
_WATCH_SECONDS = 240
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_WATCH_SECONDS + 30)

FIELD_MANAGER = "carpool-injector"
JSON = "application/json"
# Name, labels and annotations in place of the whole object.
_METADATA_ONLY = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_PAGE = 250
_PAGE_OF_NODES = 50  # a node lists all its images: tens of kilobytes
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts to watch
_DISCOVERY = "discovery.k8s.io/v1"
_SERVICE = "kubernetes.io/service-name"  # the label of a Service's EndpointSlices
_ADMISSION = "admissionregistration.k8s.io/v1"
_POLICY_VERSIONS = ("v1", "v1beta1")
_WEBHOOK_RESOURCES = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}

_log = logging.getLogger("carpool.injector.api")


class Kube:
    """One API server. Made by `connect`; `close` it in the same event loop. Calls end within 10 s or raise Failure."""

    def __init__(self, configuration: Configuration, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        # As Go's clients: the CAs of many clusters lack fields that OpenSSL's strict mode (Python 3.13) wants.
        configuration.disable_strict_ssl_verification = True
        self._client: Any = ApiClient(configuration)
        self._client.user_agent = FIELD_MANAGER

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        service_account: Path = SERVICE_ACCOUNT,
        environment: Mapping[str, str] = os.environ,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Kube:
        """The cluster of `kubeconfig`; without one that of the pod we run in, else of KUBECONFIG or ~/.kube/config.

        Nothing is sent yet. Raises Unconfigured.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None and context is None and (service_account / "token").is_file():
                token, authority = str(service_account / "token"), str(service_account / "ca.crt")
                _InClusterConfigLoader(token, authority, environ=environment).load_and_set(configuration)
            else:
                path = kubeconfig or environment.get("KUBECONFIG") or "~/.kube/config"
                _require_a_file(path, service_account)
                await _load_kube_config(path, context, configuration, persist_config=False)
            return cls(configuration, sleep)
        except Exception as error:  # the loader of kubeconfigs lets out whatever a malformed file provokes
            reason = " ".join(str(error).split())  # YAML's complaints have many lines
            raise calls.Unconfigured(f"no way to a cluster: {reason}; check --kubeconfig and --context") from error

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.close()

    # --- certificates ------------------------------------------------------------------------------------------------

    async def read_secret(self, namespace: str, name: str) -> Secret | None:
        """The Secret, None when there is none."""
        found = await self._find(Call("get", "secrets", namespace, name))
        return None if found is None else calls.secret(found)

    async def write_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], resource_version: str | None
    ) -> Secret:
        """Sets these keys, leaves others; creates the Secret when `resource_version` is None.

        Raises Conflict when it exists already or has another version by now.
        """
        body: Object = {"metadata": {"name": name}, "data": {key: calls.encoded(data[key]) for key in data}}
        if resource_version is None:
            body |= {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            return calls.secret(await self._ask(Call("create", "secrets", namespace), body=body))
        body["metadata"]["resourceVersion"] = resource_version
        call = Call("patch", "secrets", namespace, name)
        return calls.secret(await self._ask(call, body=body, content_type="application/merge-patch+json"))

    async def read_webhooks(self, kind: str, name: str) -> Object | None:
        """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration, None when there is none."""
        return await self._find(Call("get", _WEBHOOK_RESOURCES[kind], name=name, group=_ADMISSION))

    async def list_webhooks(self, kind: str, label_selector: str) -> list[Object]:
        """The configurations of this kind whose labels match."""
        return await self._list(Call("list", _WEBHOOK_RESOURCES[kind], group=_ADMISSION), label_selector)

    async def list_policies(self, label_selector: str) -> list[Object]:
        """The MutatingAdmissionPolicies whose labels match, in the newest version of their API that there is."""
        for version in _POLICY_VERSIONS:
            call = Call("list", "mutatingadmissionpolicies", group=f"admissionregistration.k8s.io/{version}")
            with contextlib.suppress(calls.NotFound):
                return await self._list(call, label_selector)
        return []

    async def set_ca_bundle(self, kind: str, configuration: Object, pem: bytes) -> Object:
        """Gives every entry of a webhook configuration, as it was read, this caBundle; returns what it is then.

        Raises NotFound, and Conflict when somebody has changed it since.
        """
        metadata, client = configuration["metadata"], {"caBundle": calls.encoded(pem)}
        entries = [{"name": entry["name"], "clientConfig": client} for entry in configuration.get("webhooks") or ()]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "webhooks": entries}
        call = Call("patch", _WEBHOOK_RESOURCES[kind], name=metadata["name"], group=_ADMISSION)
        return await self._ask(call, body=body, content_type="application/strategic-merge-patch+json")

    # --- namespaces and events: while serving ------------------------------------------------------------------------

    async def read_namespace(self, name: str) -> model.Namespace:
        """The namespace. Raises NotFound."""
        return calls.namespace(await self._ask(Call("get", "namespaces", name=name)))

    async def watch_namespaces(self) -> AsyncGenerator[dict[str, model.Namespace] | Change, None]:
        """All namespaces there are, by name, then each change.

        Goes on for ever: a watch that ends is resumed where it was; where it cannot be, all begins anew. Failures are
        logged and tried again, later and later.
        """
        version: str | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                if version is None:
                    known: dict[str, model.Namespace] = {}
                    async for page in self._pages(Call("list", "namespaces"), {}):
                        known |= {each.name: each for each in map(calls.namespace, page.get("items") or ())}
                        listed = page["metadata"]["resourceVersion"]
                    yield known
                    version = listed
                async with contextlib.aclosing(self._watch(Call("watch", "namespaces"), version)) as events:
                    async for kind, thing in events:
                        version, pause = thing["metadata"]["resourceVersion"], _FIRST_PAUSE
                        if kind in ("ADDED", "MODIFIED", "DELETED"):
                            namespace = calls.namespace(thing)
                            yield namespace.name, None if kind == "DELETED" else namespace
            except calls.Expired:
                version = None
            except calls.Failure as error:
                _log.warning("the watch of namespaces broke, the next try follows in %g s: %s", pause, error)
            except Exception:
                version = None
                _log.exception("the watch of namespaces broke because of a bug, the next try follows in %g s", pause)
            await self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def create_event(self, namespace: str, owner: Mapping[str, Any], reason: str, message: str) -> None:
        """Writes a Warning about `owner` (apiVersion, kind, name, uid) into its namespace."""
        moment = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        body = {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message, "count": 1,
            "metadata": {"generateName": f"{owner['name']}.", "namespace": namespace},
            "involvedObject": {**owner, "namespace": namespace},
            "source": {"component": FIELD_MANAGER}, "firstTimestamp": moment, "lastTimestamp": moment,
        }  # fmt: skip
        await self._ask(Call("create", "events", namespace), body=body)

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        """Ends this pod and no other of its name. Raises Unavailable where a PodDisruptionBudget does not allow it."""
        what = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": name}}
        body = {**what, "deleteOptions": {"preconditions": {"uid": uid}}}
        await self._ask(Call("create", "pods/eviction", namespace, name), body=body)

    # --- what the cluster can do; diagnosis --------------------------------------------------------------------------

    async def server_version(self) -> model.Version:
        """The API server's version, major and minor."""
        call = Call("get", "version", group="/")
        found = await self._ask(call)
        version = calls.version(f"{found.get('major')}.{found.get('minor')}", found.get("gitVersion"))
        if version is None:
            raise calls.Rejected(f"{call}: the answer has no version that can be read ({str(found)[:200]})")
        return version

    async def kubelet_versions(self) -> list[model.Version]:
        """The version of each node's kubelet, in no order.

        Left out are nodes that tell none that can be read: those that are not up yet, and some that are no kubelets.
        """
        nodes = self._items(Call("list", "nodes"), {"limit": str(_PAGE_OF_NODES)})
        told = [
            calls.version(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion"))
            async for node in nodes
        ]
        return [version for version in told if version is not None]

    async def list_pods(self, namespace: str | None = None, label_selector: str = "") -> list[Object]:
        """The pods of a namespace (None: of all) whose labels match."""
        return await self._list(Call("list", "pods", namespace), label_selector)

    async def list_pod_metadata(self) -> list[Object]:
        """The metadata of all pods that have not ended and have a label or an annotation of Carpool's.

        Nothing else of them is asked for. The others are let go page by page: a cluster may have very many.
        """
        running = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        found = []
        async for pod in self._items(Call("list", "pods"), running, _METADATA_LIST):
            metadata = pod["metadata"]
            metadata.pop("managedFields", None)  # who wrote which field, which is longer than all the rest
            keys = (*(metadata.get("labels") or ()), *(metadata.get("annotations") or ()))
            if any(key.startswith(model.PREFIX) for key in keys):
                found.append(pod)
        return found

    async def read_labelled_namespaces(self, label_selector: str) -> list[str]:
        """The names of the namespaces whose labels match."""
        found = await self._list(Call("list", "namespaces"), label_selector)
        return [each["metadata"]["name"] for each in found]

    async def has_secret(self, namespace: str, name: str) -> bool:
        """Whether there is such a Secret. Its content is not asked for."""
        try:
            await self._ask(Call("get", "secrets", namespace, name), accept=_METADATA_ONLY)
        except calls.NotFound:
            return False
        return True

    async def read_config_map(self, namespace: str, name: str) -> Object | None:
        """The ConfigMap, None when there is none."""
        return await self._find(Call("get", "configmaps", namespace, name))

    async def read_endpoint_slices(self, namespace: str, service: str) -> list[Object]:
        """The EndpointSlices of a Service."""
        return await self._list(Call("list", "endpointslices", namespace, group=_DISCOVERY), f"{_SERVICE}={service}")

    async def list_endpoint_slices(self) -> list[Object]:
        """The EndpointSlices of all Services."""
        return await self._list(Call("list", "endpointslices", group=_DISCOVERY), _SERVICE)

    async def list_limit_ranges(self) -> list[Object]:
        """The LimitRanges of all namespaces."""
        return await self._list(Call("list", "limitranges"))

    async def list_quotas(self) -> list[Object]:
        """The ResourceQuotas of all namespaces."""
        return await self._list(Call("list", "resourcequotas"))

    async def list_kind(self, group: str, version: str, plural: str, kind: str) -> list[Object]:
        """The objects of a kind in all namespaces, each with its kind; none where the cluster does not know it."""
        api = f"{group}/{version}"
        with contextlib.suppress(calls.NotFound):
            return [
                {"apiVersion": api, "kind": kind, **each} for each in await self._list(Call("list", plural, group=api))
            ]
        return []

    async def list_namespaces(self) -> list[model.Namespace]:
        """All namespaces."""
        return [calls.namespace(each) for each in await self._list(Call("list", "namespaces"))]

    async def dry_run_create_pod(self, namespace: str, pod: Object) -> Object:
        """The pod as it would be stored, after admission. Raises Rejected or Forbidden when it would not."""
        return await self._ask(Call("create", "pods", namespace), {"dryRun": "All"}, body=pod)

    async def forwarded_certificate(self, namespace: str, pod: str, port: int, host: str) -> bytes | None:
        """The certificate (PEM) that a pod's port shows for `host`, by way of the API server; None: it shows none."""
        call = Call("get", "pods/portforward", namespace, pod)
        rest = self._client.rest_client
        with _translated(call):
            _, url, headers, _, _ = await self._client.param_serialize(
                call.method, call.path, query_params=[("ports", str(port))], auth_settings=["BearerToken"]
            )
            async with (
                asyncio.timeout(_FORWARD_SECONDS),
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=rest.ssl_context)) as session,
                session.ws_connect(url, headers=headers, protocols=(forwarding.PROTOCOL,), proxy=rest.proxy) as socket,
            ):
                return await forwarding.shown_certificate(socket, host)

    # --- in pieces ---------------------------------------------------------------------------------------------------

    async def _find(self, call: Call) -> Object | None:
        try:
            return await self._ask(call)
        except calls.NotFound:
            return None

    async def _list(self, call: Call, label_selector: str = "") -> list[Object]:
        return [each async for each in self._items(call, {"labelSelector": label_selector})]

    async def _items(self, call: Call, query: Mapping[str, str], accept: str = JSON) -> AsyncGenerator[Object, None]:
        async for page in self._pages(call, query, accept):
            for each in page.get("items") or ():
                yield each

    async def _pages(self, call: Call, query: Mapping[str, str], accept: str = JSON) -> AsyncGenerator[Object, None]:
        following: str | None = ""
        while following is not None:
            page = await self._ask(call, {"limit": str(_PAGE), "continue": following, **query}, accept=accept)
            yield page
            following = page["metadata"].get("continue") or None

    async def _watch(self, call: Call, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Types and objects from `version` on, BOOKMARKs included, until the API server ends it. Raises Failure."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        with _translated(call):
            response = await self._open(call, {**query, "timeoutSeconds": str(_WATCH_SECONDS)}, timeout=_WATCH_TIMEOUT)
            try:
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise calls.failure_of(call, event["object"])
                    yield event["type"], event["object"]
            finally:
                response.close()

    async def _ask(self, call: Call, query: Mapping[str, str] | None = None, **rest: Any) -> Object:
        """Sends one call, with what `_open` takes besides, and returns the answer. Raises Failure."""
        with _translated(call):
            response = await self._open(call, query or {}, **rest)
            answer: Object = json.loads(await response.read())
            return answer

    async def _open(
        self,
        call: Call,
        query: Mapping[str, str],
        *,
        body: Object | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: aiohttp.ClientTimeout = _TIMEOUT,
    ) -> aiohttp.ClientResponse:
        """The answer, its body still to be read. Raises Failure for one that is no success."""
        by = {} if body is None else {"fieldManager": FIELD_MANAGER}
        method, url, headers, content, _ = await self._client.param_serialize(
            call.method,
            call.path,
            query_params=[(key, value) for key, value in {**by, **query}.items() if value],
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(method, url, headers, content, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 300:
            raise calls.failure(call, response.status, await response.read())
        return response


@contextlib.contextmanager
def _translated(call: calls.Call) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, ValueError, config_exception.ConfigException) as error:
        raise calls.unreachable(call, error) from error


def _require_a_file(paths: str, service_account: Path) -> None:
    """KUBECONFIG may name several files; those that do not exist are passed over, but one is needed."""
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise FileNotFoundError(f"there is no kubeconfig at {paths}, and no service account at {service_account}")
