"""Self-managed certificates: keeps Secret, caBundle and TLS context in step, in every replica alike.

There is no leader. A round reads, decides (`rotation`), writes with the version it has read, publishes, and only then
serves; a replica that loses a write begins anew. While the API server is away, the certificate stays in service.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from carpool_injector.api import calls, kube
from carpool_injector.certificates import pki, rotation, serving_certificate

# Three small reads a round. So soon a caBundle that somebody cleared is healed: until then, with failurePolicy Fail, no
# pod that asks for a sidecar can be created.
POLL_SECONDS = 10.0
# Helm creates webhook configurations after Deployments; nobody should wait for us longer than for them.
MISSING_SECONDS = 2.0
AGAIN_SECONDS = 1.0  # after a change: there may be another to make

_log = logging.getLogger("carpool.injector.certificates")

Webhook = tuple[str, str]
"""A webhook configuration: its kind (MutatingWebhookConfiguration, ValidatingWebhookConfiguration), its name."""


class Publisher:
    """Reads the configurations, later changes only what nobody else has changed meanwhile."""

    # _found: each configuration as last read or written; those that do not exist are absent.

    def __init__(self, api: kube.Kube, webhooks: Sequence[Webhook]) -> None:
        self._webhooks = tuple(webhooks)
        self._api = api
        self._found: dict[Webhook, calls.Object] = {}
        self._sightings = rotation.Sightings()

    async def read(self) -> None:
        """Reads all configurations. Raises calls.Failure, as `publish` does.

        To be called before the Secret is read: a change of the Secret's bundle by another replica then shows as a
        conflict when this one publishes what it read.
        """
        found: dict[Webhook, calls.Object] = {}
        for webhook in self._webhooks:
            configuration = await self._api.read_webhooks(*webhook)
            if configuration is not None:
                found[webhook] = configuration
        self._found = found

    async def publish(self, bundle: bytes, now: datetime.datetime) -> None:
        """Puts `bundle` (PEM) into every entry that lacks part of it. Raises Failure, after trying the others."""
        failure: calls.Failure | None = None
        for webhook, configuration in self._found.items():
            wanted = rotation.with_bundle(configuration, bundle, now)
            if wanted is None:
                continue
            try:
                self._found[webhook] = await self._api.set_ca_bundle(webhook[0], configuration, wanted)
                _log.info("published the CA bundle in %s %s", *webhook)
            except calls.Failure as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def trusted(self) -> bytes:
        """The CAs (PEM, or b"") that every entry has, as last read or published."""
        return rotation.trusted_by_all(self._found.values())

    def settled(self, now: datetime.datetime) -> bytes:
        """Those of `trusted` that have been for a while."""
        return self._sightings.settled(self.trusted(), now)

    def missing(self) -> str | None:
        """What to tell about configurations that do not exist; None when all do."""
        absent = [" ".join(webhook) for webhook in self._webhooks if webhook not in self._found]
        if not absent:
            return None
        return f"not found: {' and '.join(absent)}; install them, or check the names this server was given"


class CertificateController(serving_certificate.Supplier):
    """Keeps the Secret `namespace`/`secret`, and the caBundle of `webhooks`. Where there are none, nobody publishes."""

    longest_seconds = 60.0

    def __init__(
        self,
        api: kube.Kube,
        served: serving_certificate.ServingCertificate,
        namespace: str,
        secret: str,
        webhooks: Sequence[Webhook],
        **timing: Any,
    ) -> None:
        super().__init__(served, **timing)
        self._api = api
        self._place = (namespace, secret)
        self._publishes = bool(webhooks)
        self._publisher = Publisher(api, webhooks)

    async def step(self) -> float:
        """One round; returns the seconds until the next. Raises calls.Failure, pki.Unreadable."""
        await self._publisher.read()
        secret = await self._api.read_secret(*self._place)
        contents = None if secret is None else secret.data
        now = self._clock()
        settled = self._publisher.settled(now) if self._publishes else (contents or {}).get(rotation.BUNDLE, b"")
        decision = rotation.decide(contents, now, self.served.names, settled)
        is_kept = decision.action is rotation.Action.KEEP
        if not is_kept:
            version = None if secret is None else secret.resource_version
            await self._api.write_secret(*self._place, decision.contents, version)
            _log.info("Secret %s/%s: %s (%s)", *self._place, decision.action.value, decision.reason)
        try:
            await self._publisher.publish(decision.contents[rotation.BUNDLE], now)
        finally:
            self._serve(decision.contents, now)
        self.served.last_error = self._publisher.missing()
        longest = MISSING_SECONDS if self.served.last_error else POLL_SECONDS
        return longest if is_kept else AGAIN_SECONDS

    def _serve(self, contents: Mapping[str, bytes], now: datetime.datetime) -> None:
        trusted = settled = contents[rotation.BUNDLE]
        if self._publishes:
            trusted, settled = self._publisher.trusted(), self._publisher.settled(now)
        pair = pki.Pair(contents[rotation.LEAF], contents[rotation.LEAF_KEY])
        if self.served.offer(pair, trusted, settled, now):
            _log.info("serving a certificate valid until %s", self.served.not_after)
