"""Where the injector is in a cluster: as the chart names its objects, and as they are found there.

A release's name and `fullnameOverride` are in the names of all its objects. So the registration is looked for by the
chart's labels, and tells the Service, by whose name the rest is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
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


class Api(Protocol):
    """The call that is needed of a `kube.Kube`."""

    async def list_webhooks(self, kind: str, label_selector: str) -> list[model.Object]: ...
    async def list_policies(self, label_selector: str) -> list[model.Object]: ...


async def find(api: Api, **given: str | None) -> Place:
    """The place of the injector that was meant.

    What is given of a `Place`'s names counts. The rest is read from the one registration with the chart's labels (in
    the namespace that was given); where there is none, or it may not be read, names are the chart's. Raises `Ambiguous`
    where there are several.
    """
    told = {name: value for name, value in given.items() if value is not None}
    if told.keys() >= {"mutating", "service", "namespace"}:
        return _named(told)
    try:
        registered = [_names(each) for each in await api.list_webhooks(MUTATING, LABELS)]
    except calls.Failure:
        registered = []
    found = [names for names in registered if all(told.get(name, value) == value for name, value in names.items())]
    if len(found) > 1:
        places = ", ".join(f"{each['mutating']} (namespace {each['namespace']})" for each in found)
        raise Ambiguous(f"there are several injectors: {places}; name one with --namespace or --mutating-webhook")
    policy = "" if found or "mutating" in told else await _policy(api)
    known = {name: value for each in found for name, value in each.items() if value}
    return _named({**known, **told, "policy": policy})


def _names(configuration: model.Object) -> dict[str, str]:
    namespace, service = service_of(configuration)
    return {"namespace": namespace, "service": service, "mutating": _name(configuration)}


def _named(names: Mapping[str, str]) -> Place:
    """The place with the names that the chart derives from the Service's, where nothing else is known."""
    service = names.get("service", Place.service)
    derived = {"secret": f"{service}-certificates", "mutating": f"{_FIRST_IN_ORDER}{service}", "validating": service}
    return Place(**{**derived, **names})


async def _policy(api: Api) -> str:
    """The name of the chart's policy; empty where there is none, or it may not be read."""
    try:
        found = await api.list_policies(LABELS)
    except calls.Failure:
        return ""
    return _name(found[0]) if found else ""


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


def _name(configuration: model.Object) -> str:
    return str((configuration.get("metadata") or {}).get("name"))
