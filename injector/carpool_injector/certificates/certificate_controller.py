"""Self-managed certificates: keeps Secret, caBundle and TLS context in step, in every replica alike.

There is no leader. A round reads, decides (`rotation`), writes with the version it has read, publishes, and only then
serves; who loses a write begins anew. While the API server is away, the certificate in hand goes on being served.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from carpool_injector.api import kube_calls, kube_objects
from carpool_injector.certificates import pem, publisher, rotation, serving_certificate

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


class Api(publisher.Api, Protocol):
    """The part of `kube.Kube` that is used here."""

    async def read_secret(self, namespace: str, name: str) -> kube_objects.Secret | None: ...

    async def write_secret(
        self,
        namespace: str,
        name: str,
        data: Mapping[str, bytes],
        resource_version: str | None,
        labels: Mapping[str, str],
    ) -> kube_objects.Secret: ...


@dataclass(frozen=True)
class Settings:
    """Where the certificates are kept, and which configurations are told of them (none: nobody is)."""

    namespace: str
    secret: str
    webhooks: tuple[publisher.Webhook, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


def utc_now() -> datetime.datetime:
    """The wall clock: certificates live in calendar time."""
    return datetime.datetime.now(datetime.UTC)


class Keeper:
    """`run` it for as long as the server runs; read `served.facts`."""

    def __init__(
        self,
        api: Api,
        served: serving_certificate.Served,
        settings: Settings,
        *,
        clock: Callable[[], datetime.datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.served = served
        self._api = api
        self._settings = settings
        self._publisher = publisher.Publisher(api, settings.webhooks)
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def run(self) -> None:
        """Rounds for ever, every few seconds while all goes well. Ends only by cancellation."""
        troubles = 0
        while True:
            pause, trouble = await self._round(troubles)
            self.served.facts.last_error = trouble
            troubles = troubles + 1 if trouble else 0
            await self._sleep(pause * (1 - _JITTER * self._chance()))

    async def step(self) -> datetime.datetime:
        """One round; returns when the next is due (UTC). Raises kube_calls.Failure, pem.Unreadable."""
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
        except kube_calls.Conflict as conflict:
            _log.debug("another replica was faster: %s", conflict)
            pause, trouble = _AFTER_CONFLICT_SECONDS, str(conflict)
        except (kube_calls.Failure, pem.Unreadable) as error:
            _log.warning("certificates are not kept up to date, the next try follows: %s", error)
            pause, trouble = _SHORTEST_SECONDS, str(error)
        except Exception as error:
            _log.exception("certificates are not kept up to date because of a bug; the next try follows")
            pause, trouble = _SHORTEST_SECONDS, repr(error)
        self.served.look(self._clock())
        return min(pause * 2 ** min(troubles, 10), _LONGEST_SECONDS), trouble

    async def _write(self, decision: rotation.Decision, secret: kube_objects.Secret | None) -> None:
        where = self._settings
        version = None if secret is None else secret.resource_version
        await self._api.write_secret(where.namespace, where.secret, decision.contents, version, where.labels)
        _log.info("Secret %s/%s: %s (%s)", where.namespace, where.secret, decision.action.value, decision.reason)

    def _settled(self, secret: kube_objects.Secret | None, now: datetime.datetime) -> bytes:
        if self._settings.webhooks:
            return self._publisher.settled(now)
        return b"" if secret is None else secret.data.get(rotation.BUNDLE, b"")

    def _serve(self, contents: Mapping[str, bytes], bundle: bytes, now: datetime.datetime) -> None:
        is_published = bool(self._settings.webhooks)
        trusted = self._publisher.trusted() if is_published else bundle
        settled = self._publisher.settled(now) if is_published else bundle
        pair = pem.Pair(contents[rotation.LEAF], contents[rotation.LEAF_KEY])
        if self.served.offer(pair, trusted, settled, now):
            _log.info("serving a certificate valid until %s", self.served.facts.not_after)
