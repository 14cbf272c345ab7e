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


class CertificateController(serving_certificate.Supplier):
    """Keeps the Secret `namespace`/`secret`, and the caBundle of `webhooks`. Where there are none, nobody publishes."""

    longest_seconds = 60.0

    # _found: each configuration as last read or written; those that do not exist are absent.

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
        self._webhooks = tuple(webhooks)
        self._found: dict[Webhook, calls.Object] = {}
        self._sightings = rotation.Sightings()

    async def step(self) -> float:
        """One round; returns the seconds until the next. Raises calls.Failure, pki.Unreadable."""
        # Before the Secret: a change of its bundle by another replica then shows as a conflict, when this one publishes
        # what it read.
        read = {webhook: await self._api.read_webhooks(*webhook) for webhook in self._webhooks}
        self._found = {webhook: configuration for webhook, configuration in read.items() if configuration is not None}
        secret = await self._api.read_secret(*self._place)
        contents = {} if secret is None else secret.data
        now = self._clock()
        _, settled = self._known(contents.get(rotation.BUNDLE, b""), now)
        decision = rotation.decide(contents, now, self.served.names, settled)
        is_kept = decision.action is rotation.Action.KEEP
        if not is_kept:
            version = None if secret is None else secret.resource_version
            await self._api.write_secret(*self._place, decision.contents, version)
            _log.info("Secret %s/%s: %s (%s)", *self._place, decision.action.value, decision.reason)
        try:
            await self._publish(decision.contents[rotation.BUNDLE], now)
        finally:
            self._serve(decision.contents, now)
        absent = [" ".join(webhook) for webhook in self._webhooks if webhook not in self._found]
        advice = "install them, or check the names this server was given"
        self.served.last_error = f"not found: {' and '.join(absent)}; {advice}" if absent else None
        longest = MISSING_SECONDS if absent else POLL_SECONDS
        return longest if is_kept else AGAIN_SECONDS

    def _known(self, bundle: bytes, now: datetime.datetime) -> tuple[bytes, bytes]:
        """The CAs (PEM, or b"") that every entry has, and those that have been there for a while.

        Without configurations all of `bundle`: who has it from somewhere else is not asked.
        """
        if not self._webhooks:
            return bundle, bundle
        trusted = rotation.trusted_by_all(self._found.values())
        return trusted, self._sightings.settled(trusted, now)

    async def _publish(self, bundle: bytes, now: datetime.datetime) -> None:
        """Puts `bundle` (PEM) into every entry that lacks part of it, unless somebody else has changed it meanwhile.

        Raises calls.Failure, after trying the others.
        """
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

    def _serve(self, contents: Mapping[str, bytes], now: datetime.datetime) -> None:
        trusted, settled = self._known(contents[rotation.BUNDLE], now)
        pair = pki.Pair(contents[rotation.LEAF], contents[rotation.LEAF_KEY])
        if self.served.offer(pair, trusted, settled, now):
            _log.info("serving a certificate valid until %s", self.served.not_after)
