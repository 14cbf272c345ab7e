"""Everything the checks look at, read from a cluster at once: each fact, or why it could not be had."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from carpool_injector.api import calls
from carpool_injector.certificates import pki, rotation
from carpool_injector.core import model, pod_annotations, surroundings
from carpool_injector.diagnosis import places
from carpool_injector.diagnosis.findings import Failed
from carpool_injector.diagnosis.places import MUTATING, VALIDATING, Place
from carpool_injector.objects import reach
from carpool_injector.objects.pod_state import PodState

KSERVE_WEBHOOK = "inferenceservice.serving.kserve.io"  # config/webhook of kserve/kserve
KSERVE_CONFIG = "inferenceservice-config"
_ASKING = f"{pod_annotations.INJECT} in (true,enabled)"
_HANDSHAKE_SECONDS = 3.0
_TRIED = 2  # endpoints whose certificate is asked for, by each way
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is known. Objects are raw JSON; None: there is none. `served` is the certificate that an endpoint shows, as
    PEM, None where none can be reached from here. `now` is the time of the certificates' checks (UTC).
    """

    place: Place
    now: datetime.datetime
    server: model.Version | Failed
    kubelets: Sequence[model.Version] | Failed
    mutating: model.Object | Failed | None
    validating: model.Object | Failed | None
    kserve_webhook: model.Object | Failed | None
    kserve_config: model.Object | Failed | None
    secret: calls.Secret | Failed | None
    endpoints: Sequence[model.Object] | Failed
    pods: Sequence[model.Object] | Failed
    sample: model.Object | Failed
    others: Sequence[model.Object] | Failed = ()
    """Registrations of other releases."""
    missing_secrets: Mapping[str, Sequence[str]] | Failed = dataclasses.field(default_factory=dict)
    """Namespaces whose pods get the sidecar, and the names of the pull secrets for it that are not there."""
    served: bytes | None = None
    slices: Sequence[model.Object] | Failed = ()
    """The EndpointSlices of all Services."""
    limit_ranges: Sequence[model.Object] | Failed = ()
    quotas: Sequence[model.Object] | Failed = ()
    policies: Sequence[model.Object] | Failed = ()
    """All that let callers in by a pod's port (`surroundings.POLICIES`)."""
    namespaces: Sequence[model.Namespace] = ()
    """Those that could be read."""
    strangers: Sequence[str] = ()
    """Addresses of endpoints at which somebody else answers from here, as pods' networks are not this machine's."""

    @property
    def states(self) -> Sequence[PodState] | Failed:
        """All pods, as far as the injector is concerned."""
        return self.pods if isinstance(self.pods, Failed) else [PodState(each) for each in self.pods]

    @property
    def left_out(self) -> dict[str, model.Namespace]:
        """The namespaces of whose pods the injector hears nothing."""
        if self.place.policy or not isinstance(self.mutating, dict):
            return {}
        reached = reach.reached(self.mutating, self.namespaces)
        return {each.name: each for each in self.namespaces if each.name not in reached}


class Api(places.Api, Protocol):
    """The calls that are needed of a `kube.Kube`; each may raise calls.Failure."""

    async def server_version(self) -> model.Version: ...
    async def kubelet_versions(self) -> list[model.Version]: ...
    async def read_webhooks(self, kind: str, name: str) -> model.Object | None: ...
    async def read_config_map(self, namespace: str, name: str) -> model.Object | None: ...
    async def read_secret(self, namespace: str, name: str) -> calls.Secret | None: ...
    async def read_endpoint_slices(self, namespace: str, service: str) -> list[model.Object]: ...
    async def list_pods(self, namespace: str | None = None, label_selector: str = "") -> list[model.Object]: ...
    async def list_endpoint_slices(self) -> list[model.Object]: ...
    async def list_limit_ranges(self) -> list[model.Object]: ...
    async def list_quotas(self) -> list[model.Object]: ...
    async def list_kind(self, group: str, version: str, plural: str, kind: str) -> list[model.Object]: ...
    async def list_namespaces(self) -> list[model.Namespace]: ...
    async def read_labelled_namespaces(self, label_selector: str) -> list[str]: ...
    async def has_secret(self, namespace: str, name: str) -> bool: ...
    async def dry_run_create_pod(self, namespace: str, pod: model.Object) -> model.Object: ...
    async def forwarded_certificate(self, namespace: str, pod: str, port: int, host: str) -> bytes | None: ...


Dial: TypeAlias = Callable[[str, int, str], Awaitable[bytes | None]]
"""Address, port and server name to the certificate that is shown there, as PEM; None where nobody answers."""

_CONTAINER: model.Object = {
    "name": "kserve-container",
    "image": "kserve-sklearnserver",
    "args": ["--http_port=8080"],
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}


def sample(place: Place) -> model.Object:
    """A pod that asks for the sidecar and can have it, by a policy as well; sent as a dry run, so it never exists."""
    metadata: model.Object = {"generateName": "carpool-check-", "labels": {pod_annotations.INJECT: "true"}}
    container = _CONTAINER
    if place.policy:
        metadata |= {"annotations": {f"{model.PREFIX}takeover": "named-port", f"{model.PREFIX}port": "http"}}
        ports, probe = [{"name": "http", "containerPort": 8080}], {"httpGet": {"port": "http"}}
        container = {**container, "name": "app", "ports": ports, "readinessProbe": probe}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


_FACTS: Mapping[str, Callable[[Api, Place], Awaitable[Any]]] = {
    "server": lambda api, place: api.server_version(),
    "kubelets": lambda api, place: api.kubelet_versions(),
    "mutating": lambda api, place: api.read_webhooks(MUTATING, place.mutating),
    "validating": lambda api, place: api.read_webhooks(VALIDATING, place.validating),
    "others": lambda api, place: _others(api, place),
    "kserve_webhook": lambda api, place: api.read_webhooks(MUTATING, KSERVE_WEBHOOK),
    "kserve_config": lambda api, place: api.read_config_map(place.kserve_namespace, KSERVE_CONFIG),
    "secret": lambda api, place: api.read_secret(place.namespace, place.secret),
    "endpoints": lambda api, place: api.read_endpoint_slices(place.namespace, place.service),
    "pods": lambda api, place: api.list_pods(),
    "sample": lambda api, place: api.dry_run_create_pod(place.sample_namespace, sample(place)),
    "slices": lambda api, place: api.list_endpoint_slices(),
    "limit_ranges": lambda api, place: api.list_limit_ranges(),
    "quotas": lambda api, place: api.list_quotas(),
    "policies": lambda api, place: _policies(api),
}
"""How each fact is asked for that is one by itself, by its field of `ClusterState`."""


async def gather(api: Api, place: Place, now: datetime.datetime, dial: Dial) -> ClusterState:
    """Asks the cluster everything at once; what cannot be had does not keep the rest from being told."""
    async with asyncio.TaskGroup() as group:
        asked = {name: group.create_task(_tried(ask(api, place))) for name, ask in _FACTS.items()}
        namespaces = group.create_task(_tried(api.list_namespaces()))
        labelled = group.create_task(_tried(api.read_labelled_namespaces(_ASKING)))
    known: dict[str, Any] = {name: task.result() for name, task in asked.items()}
    served, strangers = await _served(api, known["endpoints"], place, known["secret"], dial)
    return ClusterState(
        place=place,
        now=now,
        **known,
        missing_secrets=await _missing_secrets(api, known["sample"], known["pods"], _found(labelled.result())),
        served=served,
        strangers=strangers,
        namespaces=_found(namespaces.result()),
    )


async def _others(api: Api, place: Place) -> Sequence[model.Object]:
    return places.others(await api.list_webhooks(MUTATING, places.LABELS), place)


async def _policies(api: Api) -> Sequence[model.Object]:
    return [thing for each in surroundings.POLICIES for thing in await api.list_kind(*each) or ()]


def _found(fact: Sequence[_T] | Failed | None) -> Sequence[_T]:
    return () if isinstance(fact, Failed) else fact or ()


async def _missing_secrets(
    api: Api, sample: model.Object | Failed, pods: Sequence[model.Object] | Failed, labelled: Sequence[str]
) -> Mapping[str, Sequence[str]] | Failed:
    """What the injector would name in pods, asked of each namespace that has such pods or wants them."""
    known = [PodState(each) for each in _found(pods)]
    injected = [*([] if isinstance(sample, Failed) else [PodState(sample)]), *known]
    names = sorted({name for pod in injected for name in pod.pull_secrets})
    spaces = {pod.namespace for pod in known if pod.asks or pod.injected}
    missing: dict[str, list[str]] = {}
    for namespace in sorted(spaces.union(labelled)):
        for name in names:
            there = await _tried(api.has_secret(namespace, name))
            if isinstance(there, Failed):
                return there
            if not there:
                missing.setdefault(namespace, []).append(name)
    return missing


def ready_addresses(slices: Sequence[model.Object]) -> list[tuple[str, int]]:
    """Address and port of each ready endpoint."""
    return [(address, port) for each, port in _ready(slices) for address in each.get("addresses") or ()]


def ready_pods(slices: Sequence[model.Object]) -> list[tuple[str, int]]:
    """Name and port of each pod that is a ready endpoint."""
    targets = [(each.get("targetRef") or {}, port) for each, port in _ready(slices)]
    return [(str(target.get("name")), port) for target, port in targets if target.get("kind") == "Pod"]


def _ready(slices: Sequence[model.Object]) -> Iterator[tuple[model.Object, int]]:
    """Ready endpoints, with the first port of their slice."""
    for each in slices:
        port = next((port["port"] for port in each.get("ports") or () if port.get("port")), 443)
        for endpoint in each.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                yield endpoint, int(port)


async def shown_certificate(address: str, port: int, host: str) -> bytes | None:
    """The certificate a server shows, whoever signed it: it is looked at here, not trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=host)
    except (OSError, TimeoutError):
        return None
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()  # there is nothing to wait for
    return ssl.DER_cert_to_PEM_cert(shown).encode() if shown else None


async def _served(
    api: Api,
    endpoints: Sequence[model.Object] | Failed,
    place: Place,
    secret: calls.Secret | Failed | None,
    dial: Dial,
) -> tuple[bytes | None, list[str]]:
    """The certificate of the first endpoint that shows one, and where somebody else answered from here.

    Endpoints are asked from here, and those that cannot be reached so by way of the API server.
    """
    strangers: list[str] = []
    for address, port in ready_addresses(_found(endpoints))[:_TRIED]:
        found = await dial(address, port, place.host)
        if found is not None and is_injectors(found, place, secret):
            return found, strangers
        strangers += [f"{address}:{port}"] if found is not None else []
    for name, port in ready_pods(_found(endpoints))[:_TRIED]:
        shown = await _tried(api.forwarded_certificate(place.namespace, name, port, place.host))
        if isinstance(shown, bytes) and is_injectors(shown, place, secret):
            return shown, strangers
    return None, strangers


def is_injectors(shown: bytes, place: Place, secret: calls.Secret | Failed | None) -> bool:
    """Whether a certificate (PEM) names the injector's Service, or is the one in its Secret; true of what is none."""
    try:
        leaf = pki.read_certificates(shown)[0]
        kept = pki.read_certificates(secret.data[rotation.LEAF]) if isinstance(secret, calls.Secret) else []
    except (pki.Unreadable, KeyError):
        return True
    parent = place.host.partition(".")[2]
    return leaf in kept or not {place.host, f"*.{parent}"}.isdisjoint(pki.names_of(leaf))


async def _tried(call: Awaitable[_T]) -> _T | Failed:
    try:
        return await call
    except calls.Failure as failure:
        return Failed(str(failure), isinstance(failure, calls.Forbidden))
