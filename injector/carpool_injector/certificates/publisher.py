"""Tells the API server, through the webhook configurations, whom to trust: the I/O around `publication`."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from carpool_injector.api import kube_calls, kube_objects
from carpool_injector.certificates import publication

_log = logging.getLogger("carpool.injector.certificates")


class Webhook(NamedTuple):
    """A webhook configuration: its kind (MutatingWebhookConfiguration, ValidatingWebhookConfiguration), its name."""

    kind: str
    name: str


class Api(Protocol):
    """The part of `kube.Kube` that is used here."""

    async def read_webhooks(self, kind: str, name: str) -> kube_objects.Object | None: ...

    async def set_ca_bundle(
        self, kind: str, name: str, pem: bytes, resource_version: str | None = None
    ) -> kube_objects.Object: ...


class Publisher:
    """Reads the configurations, later changes only what nobody else has changed meanwhile."""

    # _found: each configuration as last read or written; those that do not exist are absent.

    def __init__(self, api: Api, webhooks: Sequence[Webhook]) -> None:
        self.webhooks = tuple(webhooks)
        self._api = api
        self._found: dict[Webhook, kube_objects.Object] = {}
        self._sightings = publication.Sightings()

    async def read(self) -> None:
        """Reads all configurations. Raises kube_calls.Failure, as `publish` does.

        To be called before the Secret is read: a change of the Secret's bundle by another replica then shows as a
        conflict when this one publishes what it read.
        """
        found: dict[Webhook, kube_objects.Object] = {}
        for webhook in self.webhooks:
            configuration = await self._api.read_webhooks(*webhook)
            if configuration is not None:
                found[webhook] = configuration
        self._found = found

    async def publish(self, bundle: bytes, now: datetime.datetime) -> None:
        """Puts `bundle` (PEM) into every entry that lacks part of it. Raises Failure, after trying the others."""
        failure: kube_calls.Failure | None = None
        for webhook, configuration in self._found.items():
            wanted = publication.with_bundle(configuration, bundle, now)
            if wanted is None:
                continue
            try:
                version = configuration["metadata"]["resourceVersion"]
                self._found[webhook] = await self._api.set_ca_bundle(*webhook, wanted, version)
                _log.info("published the CA bundle in %s %s", *webhook)
            except kube_calls.Failure as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def trusted(self) -> bytes:
        """The CAs (PEM, or b"") that every entry has, as last read or published."""
        return publication.trusted_by_all(self._found.values())

    def settled(self, now: datetime.datetime) -> bytes:
        """Those of `trusted` that have been for a while."""
        return self._sightings.settled(self.trusted(), now)

    def missing(self) -> str | None:
        """What to tell about configurations that do not exist; None when all do."""
        absent = [f"{webhook.kind} {webhook.name}" for webhook in self.webhooks if webhook not in self._found]
        if not absent:
            return None
        return f"not found: {' and '.join(absent)}; install them, or check the names this server was given"
