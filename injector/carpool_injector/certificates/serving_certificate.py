"""The certificate in service: which it is, and when another may take its place.

A server must be able to shake hands before there is any certificate to trust (the kubelet asks for liveness over TLS
while the API server is away), so it begins with a stand-in that nobody is told to trust.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence

from carpool_injector.certificates import authority, certificate_info, context, pem, trust


class Served:
    """The pair that a TLS context serves, with what is known about it in `facts`."""

    # _pair: what the context serves; None while that is the stand-in.
    # _trusted: the bundle told last, None when nobody can know it.

    def __init__(self, tls: ssl.SSLContext, names: Sequence[str], now: datetime.datetime) -> None:
        """Loads the stand-in. `names` are the server's DNS names, first the one that API servers verify."""
        self.names = tuple(names)
        self.facts = certificate_info.Facts()
        self._tls = tls
        self._pair: pem.Pair | None = None
        self._trusted: bytes | None = None
        context.load(tls, authority.issue_leaf(authority.issue_authority(now), self.names, now))

    def offer(self, pair: pem.Pair, trusted: bytes | None, settled: bytes | None, now: datetime.datetime) -> bool:
        """Takes `pair` into service unless that could hurt, and brings the facts up to date; True when it was taken.

        `trusted` is the bundle (PEM) that every API server is told, `settled` what they have been told for a while;
        None where nobody can know. A pair that works is never given up for one that may not. Raises pem.Unreadable.
        """
        self._trusted = trusted
        is_taken = pair != self._pair and self._is_better(pair, settled, now)
        if is_taken:
            context.load(self._tls, pair)
            self._pair = pair
            self.facts.reloads += 1
            self.facts.not_after = pair.first.not_valid_after_utc
        self.look(now)
        return is_taken

    def look(self, now: datetime.datetime) -> None:
        """Brings `facts.unverified` up to date when only time has passed."""
        if self._pair is not None:
            self.facts.unverified = self._why_broken(self._pair, self._trusted, now)

    def _is_better(self, pair: pem.Pair, settled: bytes | None, now: datetime.datetime) -> bool:
        if self._pair is None:
            return True
        works = self._why_broken(self._pair, self._trusted, now) is None
        return self._why_broken(pair, settled if works else self._trusted, now) is None

    def _why_broken(self, pair: pem.Pair, bundle: bytes | None, now: datetime.datetime) -> str | None:
        if bundle == b"":
            return "no CA of it is in all webhook configurations yet"
        if bundle is not None:
            return trust.why_untrusted(pair.certificate, bundle, self.names[0], now)
        # Whoever signs and publishes for us (cert-manager) is not asked; the dates are all there is to see.
        leaf = pair.first
        if leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
            return None
        return f"valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} to {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
