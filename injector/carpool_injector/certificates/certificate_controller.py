"""Self-managed certificates: keeps Secret, caBundle and TLS context in step, in every replica alike.

There is no leader. A round reads, decides (`rotation`), writes with the version it has read, publishes, and only then
serves; a replica that loses a write begins anew. While the API server is away, the certificate stays in service.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from carpool_injector.api import calls
from carpool_injector.certificates import pki, rotation, serving_certificate

# Three small reads a round. So soon a caBundle that somebody cleared is healed: until then, with failurePolicy Fail, no
# pod that asks for a sidecar can be created.
POLL_SECONDS = 10.0
# Helm creates webhook configurations after Deployments; nobody should wait for us longer than for them.
MISSING_SECONDS = 2.0

_SHORTEST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
_AFTER_CONFLICT_SECONDS = 0.2
# Part of each pause that is left to chance, so that replicas started together drift apart.
_JITTER = 0.2

_log = logging.getLogger("carpool.injector.certificates")


class Webhook(NamedTuple):
    """A webhook configuration: its kind (MutatingWebhookConfiguration, ValidatingWebhookConfiguration), its name."""

    kind: str
    name: str


class Api(Protocol):
    """The part of `kube.Kube` that is used here."""

    async def read_webhooks(self, kind: str, name: str) -> calls.Object | None: ...

    async def set_ca_bundle(
        self, kind: str, name: str, pem: bytes, resource_version: str | None = None
    ) -> calls.Object: ...

    async def read_secret(self, namespace: str, name: str) -> calls.Secret | None: ...

    async def write_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], resource_version: str | None
    ) -> calls.Secret: ...


class Publisher:
    """Reads the configurations, later changes only what nobody else has changed meanwhile."""

    # _found: each configuration as last read or written; those that do not exist are absent.

    def __init__(self, api: Api, webhooks: Sequence[Webhook]) -> None:
        self.webhooks = tuple(webhooks)
        self._api = api
        self._found: dict[Webhook, calls.Object] = {}
        self._sightings = rotation.Sightings()

    async def read(self) -> None:
        """Reads all configurations. Raises calls.Failure, as `publish` does.

        To be called before the Secret is read: a change of the Secret's bundle by another replica then shows as a
        conflict when this one publishes what it read.
        """
        found: dict[Webhook, calls.Object] = {}
        for webhook in self.webhooks:
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
                version = configuration["metadata"]["resourceVersion"]
                self._found[webhook] = await self._api.set_ca_bundle(*webhook, wanted, version)
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
        absent = [f"{webhook.kind} {webhook.name}" for webhook in self.webhooks if webhook not in self._found]
        if not absent:
            return None
        return f"not found: {' and '.join(absent)}; install them, or check the names this server was given"


@dataclass(frozen=True)
class Settings:
    """Where the certificates are kept, and which webhook configurations get the CA; empty: none."""

    namespace: str
    secret: str
    webhooks: tuple[Webhook, ...]


def utc_now() -> datetime.datetime:
    """The wall clock: certificates live in calendar time."""
    return datetime.datetime.now(datetime.UTC)


class CertificateController:
    """`run` it for as long as the server runs; read `served.info`."""

    def __init__(
        self,
        api: Api,
        served: serving_certificate.ServingCertificate,
        settings: Settings,
        *,
        clock: Callable[[], datetime.datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.served = served
        self._api = api
        self._settings = settings
        self._publisher = Publisher(api, settings.webhooks)
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def run(self) -> None:
        """Rounds for ever, every few seconds while all goes well. Ends only by cancellation."""
        troubles = 0
        while True:
            pause, trouble = await self._round(troubles)
            self.served.info.last_error = trouble
            troubles = troubles + 1 if trouble else 0
            await self._sleep(pause * (1 - _JITTER * self._chance()))

    async def step(self) -> datetime.datetime:
        """One round; returns when the next is due (UTC). Raises calls.Failure, pki.Unreadable."""
        await self._publisher.read()
        secret = await self._api.read_secret(self._settings.namespace, self._settings.secret)
        now = self._clock()
        decision = rotation.decide(
            None if secret is None else secret.data, now, self.served.names, self._settled(secret, now)
        )
        if decision.action is not rotation.Action.KEEP:
            await self._write(decision, secret)
        bundle = decision.contents[rotation.BUNDLE]
        try:
            await self._publisher.publish(bundle, now)
        finally:
            self._serve(decision.contents, bundle, now)
        return decision.look_again

    async def _round(self, troubles: int) -> tuple[float, str | None]:
        """One round and its outcome: seconds until the next, and what went wrong."""
        try:
            wait = (await self.step() - self._clock()).total_seconds()
            missing = self._publisher.missing()
            return min(max(wait, _SHORTEST_SECONDS), MISSING_SECONDS if missing else POLL_SECONDS), missing
        except calls.Conflict as conflict:
            _log.debug("another replica was faster: %s", conflict)
            pause, trouble = _AFTER_CONFLICT_SECONDS, str(conflict)
        except (calls.Failure, pki.Unreadable) as error:
            _log.warning("certificates are not kept up to date, the next try follows: %s", error)
            pause, trouble = _SHORTEST_SECONDS, str(error)
        except Exception as error:
            _log.exception("certificates are not kept up to date because of a bug; the next try follows")
            pause, trouble = _SHORTEST_SECONDS, repr(error)
        self.served.look(self._clock())
        return min(pause * 2 ** min(troubles, 10), _LONGEST_SECONDS), trouble

    async def _write(self, decision: rotation.Decision, secret: calls.Secret | None) -> None:
        where = self._settings
        version = None if secret is None else secret.resource_version
        await self._api.write_secret(where.namespace, where.secret, decision.contents, version)
        _log.info("Secret %s/%s: %s (%s)", where.namespace, where.secret, decision.action.value, decision.reason)

    def _settled(self, secret: calls.Secret | None, now: datetime.datetime) -> bytes:
        if self._settings.webhooks:
            return self._publisher.settled(now)
        return b"" if secret is None else secret.data.get(rotation.BUNDLE, b"")

    def _serve(self, contents: Mapping[str, bytes], bundle: bytes, now: datetime.datetime) -> None:
        is_published = bool(self._settings.webhooks)
        trusted = self._publisher.trusted() if is_published else bundle
        settled = self._publisher.settled(now) if is_published else bundle
        pair = pki.Pair(contents[rotation.LEAF], contents[rotation.LEAF_KEY])
        if self.served.offer(pair, trusted, settled, now):
            _log.info("serving a certificate valid until %s", self.served.info.not_after)
