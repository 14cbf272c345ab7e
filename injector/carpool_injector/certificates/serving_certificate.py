"""The certificate in service: the server's TLS context, which pair it holds, when another may take its place, and who
brings one, round after round.

A server must be able to shake hands before there is any certificate to trust (the kubelet asks for liveness over TLS
while the API server is away), so it begins with a stand-in certificate that no client is asked to trust.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime
import logging
import os
import random
import ssl
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

from carpool_injector import rounds
from carpool_injector.api import calls
from carpool_injector.certificates import pki

_log = logging.getLogger("carpool.injector.certificates")

_AEAD_WITH_FORWARD_SECRECY = "ECDHE+AESGCM:ECDHE+CHACHA20"  # for TLS 1.2; 1.3 has nothing else


def make_context(minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, client_ca: str | None = None) -> ssl.SSLContext:
    """A server's context without a certificate yet: TLS from `minimum` (1.2 or 1.3) on, HTTP/1.1 only.

    With `client_ca` (PEM) clients may show a certificate, and one of another CA ends the handshake. Clients without one
    are let in as well, because the kubelet's probes have none: ask `why_unwelcome` where it matters.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum
    context.set_ciphers(_AEAD_WITH_FORWARD_SECRECY)
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=client_ca)
    return context


def load_pair(context: ssl.SSLContext, pair: pki.Pair) -> None:
    """Serves `pair` from the next handshake on; open connections keep theirs.

    Raises pki.Unreadable, and then `context` is as before. To be called in the event loop's thread: a handshake in
    another one could find the new certificate with the old key.
    """
    with _file_of(pair.certificate + b"\n" + pair.key) as path:
        try:
            # Tried on another context first: a failed load leaves the certificate in place without its key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError) as error:
            raise pki.Unreadable(f"OpenSSL does not take the certificate and key: {error}") from None


def why_unwelcome(peer: dict[str, Any] | None, allowed: Collection[str]) -> str | None:
    """Why a client that showed `peer` (as of `SSLObject.getpeercert`; verified) may not call; None when it may.

    `allowed` are common names or DNS names; when it is empty, any certificate of the client CA will do.
    """
    if not peer:
        return "the client showed no certificate, but one signed by the client CA is required"
    shown = {value for part in peer.get("subject", ()) for key, value in part if key == "commonName"}
    shown |= {value for kind, value in peer.get("subjectAltName", ()) if kind == "DNS"}
    if not allowed or shown & set(allowed):
        return None
    return f"the client's certificate is for {', '.join(sorted(shown)) or 'nobody'}; allowed: {', '.join(allowed)}"


@contextlib.contextmanager
def _file_of(secret: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(secret)
        file.flush()
        yield file.name


class ServingCertificate:
    """The pair that a TLS context serves, and what is known about it. Its `Supplier` changes it, all others only read.

    `unverified`: why a client that trusts what the API server has been told refuses it, None when it does not; the
    readiness question. `not_after`: its end (UTC), None while there is only a stand-in. `last_error`: the last round's
    trouble, in words for a log or a probe. `reloads`: how often another pair was taken, the first included.
    """

    # _pair: what the context serves; None while that is the stand-in.
    # _trusted: the bundle told last, None when nobody can know it.

    def __init__(self, tls: ssl.SSLContext, names: Sequence[str], now: datetime.datetime) -> None:
        """Loads the stand-in. `names` are the server's DNS names, first the one that API servers verify."""
        self.names = tuple(names)
        self.unverified: str | None = "there is no certificate yet"
        self.not_after: datetime.datetime | None = None
        self.last_error: str | None = None
        self.reloads = 0
        self._tls = tls
        self._pair: pki.Pair | None = None
        self._trusted: bytes | None = None
        load_pair(tls, pki.issue_leaf(pki.issue_authority(now), self.names, now))

    def offer(self, pair: pki.Pair, trusted: bytes | None, settled: bytes | None, now: datetime.datetime) -> bool:
        """Takes `pair` into service unless that could hurt; True when it was taken.

        `trusted` is the bundle (PEM) that every API server is told, `settled` what they have been told for a while;
        None where nobody can know. A pair that works is never given up for one that may not. Raises pki.Unreadable.
        """
        self._trusted = trusted
        is_taken = pair != self._pair and self._is_better(pair, settled, now)
        if is_taken:
            load_pair(self._tls, pair)
            self._pair = pair
            self.reloads += 1
            self.not_after = pair.first.not_valid_after_utc
        self.look(now)
        return is_taken

    def look(self, now: datetime.datetime) -> None:
        """Brings `unverified` up to date when only time has passed."""
        if self._pair is not None:
            self.unverified = self._why_broken(self._pair, self._trusted, now)

    def _is_better(self, pair: pki.Pair, settled: bytes | None, now: datetime.datetime) -> bool:
        if self._pair is None:
            return True
        works = self._why_broken(self._pair, self._trusted, now) is None
        return self._why_broken(pair, settled if works else self._trusted, now) is None

    def _why_broken(self, pair: pki.Pair, bundle: bytes | None, now: datetime.datetime) -> str | None:
        if bundle == b"":
            return "no CA of it is in all webhook configurations yet"
        if bundle is not None:
            return pki.why_untrusted(pair.certificate, bundle, self.names[0], now)
        # Whoever signs and publishes for us (cert-manager) is not asked; the dates are all there is to see.
        leaf = pair.first
        if leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
            return None
        return f"valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} to {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"


def utc_now() -> datetime.datetime:
    """The wall clock: certificates live in calendar time."""
    return datetime.datetime.now(datetime.UTC)


_FIRST_SECONDS = 0.2
# Part of each pause that is left to chance, so that replicas started together drift apart.
_JITTER = 0.2


class Supplier(abc.ABC):
    """Brings certificates to `served`, round after round. `run` it for as long as the server runs."""

    longest_seconds: ClassVar[float]
    """Between rounds while nothing works."""

    def __init__(
        self,
        served: ServingCertificate,
        *,
        clock: Callable[[], datetime.datetime] = utc_now,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.served = served
        self._clock = clock
        self._chance = chance

    @abc.abstractmethod
    async def step(self) -> float:
        """One round, with `served.last_error` after it; the seconds until the next. Raises Failure, pki.Unreadable."""

    async def run(self) -> NoReturn:
        """Rounds for ever, sooner or later after trouble. Ends only by cancellation."""
        longest = self.longest_seconds
        await rounds.repeat(self.step, self._failed, first=_FIRST_SECONDS, longest=longest, sleep=self._drift)

    def _failed(self, error: Exception, _: float) -> None:
        is_expected = isinstance(error, (calls.Failure, pki.Unreadable))
        trouble = str(error) if is_expected else repr(error)
        if not is_expected:
            _log.error("the certificate in service stays, because of a bug; the next try follows", exc_info=error)
        elif not isinstance(error, calls.Conflict) and trouble != self.served.last_error:  # another replica was faster
            _log.warning("the certificate in service stays, the next try follows: %s", trouble)
        self.served.last_error = trouble
        self.served.look(self._clock())

    async def _drift(self, seconds: float) -> None:
        await asyncio.sleep(seconds * (1 - _JITTER * self._chance()))
