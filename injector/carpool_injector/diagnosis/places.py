"""Where the injector is in a cluster: as the chart names its objects, and as they are found there.

A release's name and `fullnameOverride` are in the names of all its objects. So the registration is looked for by the
chart's labels, and tells the Service, by whose name the rest is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from carpool_injector.api import calls
from carpool_injector.core import model

MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
LABELS = "app.kubernetes.io/part-of=carpool,app.kubernetes.io/component=injector"
"""What the chart's objects bear, whatever the release is called."""
_FIRST_IN_ORDER = "zz-"  # the chart's webhook.namePrefix


class Ambiguous(Exception):
    """There are several injectors, and nobody said which one is meant. The message tells how to say it."""


@dataclass(frozen=True, slots=True)
class Given:
    """What somebody said about where things are; None: it is to be found, or the chart's default."""

    namespace: str | None = None
    service: str | None = None
    secret: str | None = None
    mutating: str | None = None
    validating: str | None = None
    kserve_namespace: str = "kserve"
    sample_namespace: str = "default"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the injector and KServe are in the cluster, and where a sample pod is tried (nothing is created).

    The defaults are the names that the chart gives to a release named carpool.
    """

    namespace: str = "carpool-system"
    service: str = "carpool-injector"
    secret: str = "carpool-injector-certificates"  # noqa: S105 - a name
    mutating: str = _FIRST_IN_ORDER + "carpool-injector"
    validating: str = "carpool-injector"
    kserve_namespace: str = "kserve"
    sample_namespace: str = "default"
    policy: str = ""
    """The MutatingAdmissionPolicy of a release in mode policy, which has no injector."""

    @property
    def host(self) -> str:
        """The name the API server expects in the certificate."""
        return f"{self.service}.{self.namespace}.svc"


_CHARTS = Place()


class Api(Protocol):
    """The call that is needed of a `kube.Kube`."""

    async def list_webhooks(self, kind: str, label_selector: str) -> list[model.Object]: ...
    async def list_policies(self, label_selector: str) -> list[model.Object]: ...


async def find(api: Api, given: Given) -> Place:
    """The place of the injector that was meant.

    What was given counts. The rest is read from the one registration with the chart's labels (in the namespace that was
    given); where there is none, or it may not be read, names are the chart's. Raises `Ambiguous` where there are
    several.
    """
    if given.mutating is not None and given.service is not None and given.namespace is not None:
        return named(given, given.namespace, given.service)
    try:
        found = await api.list_webhooks(MUTATING, LABELS)
    except calls.Failure:
        found = []
    matching = [each for each in found if _is_meant(each, given)]
    if len(matching) > 1:
        places = ", ".join(f"{_name(each)} (namespace {service_of(each)[0]})" for each in matching)
        raise Ambiguous(f"there are several injectors: {places}; name one with --namespace or --mutating-webhook")
    namespace, service = service_of(matching[0]) if matching else ("", "")
    mutating = given.mutating or (_name(matching[0]) if matching else None)
    chosen = dataclasses.replace(given, mutating=mutating)
    policy = "" if matching or given.mutating else await _policy(api)
    place = named(
        chosen, given.namespace or namespace or _CHARTS.namespace, given.service or service or _CHARTS.service
    )
    return dataclasses.replace(place, policy=policy)


async def _policy(api: Api) -> str:
    """The name of the chart's policy; empty where there is none, or it may not be read."""
    try:
        found = await api.list_policies(LABELS)
    except calls.Failure:
        return ""
    return _name(found[0]) if found else ""


def named(given: Given, namespace: str, service: str) -> Place:
    """The place with the names that the chart derives from the Service's, where nothing else was given."""
    return Place(
        namespace=namespace,
        service=service,
        secret=given.secret or f"{service}-certificates",
        mutating=given.mutating or f"{_FIRST_IN_ORDER}{service}",
        validating=given.validating or service,
        kserve_namespace=given.kserve_namespace,
        sample_namespace=given.sample_namespace,
    )


def service_of(configuration: model.Object) -> tuple[str, str]:
    """Namespace and name of the Service that a webhook configuration calls; empty where it calls none."""
    for entry in configuration.get("webhooks") or ():
        service = (entry.get("clientConfig") or {}).get("service") or {}
        if service:
            return str(service.get("namespace")), str(service.get("name"))
    return "", ""


def others(found: Sequence[model.Object], place: Place) -> list[model.Object]:
    """The registrations that are not the one at this place."""
    return [each for each in found if _name(each) != place.mutating]


def is_narrowed(configuration: model.Object) -> bool:
    """Whether it acts on namespaces with labels of somebody's choice only, not on all but those of the system."""
    return any(
        term.get("key") != "kubernetes.io/metadata.name" and not str(term.get("key")).startswith(model.PREFIX)
        for entry in configuration.get("webhooks") or ()
        for term in (entry.get("namespaceSelector") or {}).get("matchExpressions") or ()
    )


def _is_meant(configuration: model.Object, given: Given) -> bool:
    namespace, service = service_of(configuration)
    wanted = ((given.namespace, namespace), (given.service, service), (given.mutating, _name(configuration)))
    return all(asked is None or asked == found for asked, found in wanted)


def _name(configuration: model.Object) -> str:
    return str((configuration.get("metadata") or {}).get("name"))
