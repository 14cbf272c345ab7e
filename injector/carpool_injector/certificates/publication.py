"""Whom the API server is told to trust: the caBundle of every entry in the webhook configurations.

Pure, for configurations as raw JSON. A bundle is only ever added to, or rid of what has outlived all it signed: a
replica that knows less than another, or a Secret made anew, takes no CA away under a certificate that is still served.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography import x509

from carpool_injector.certificates import pem, rotation

# A caBundle that grows without end would some day be too large to store; rotation itself needs two.
_MOST_AUTHORITIES = 10


def trusted_by_all(configurations: Iterable[Mapping[str, Any]]) -> bytes:
    """The CAs (PEM, or b"") that are in the caBundle of every entry; b"" when there is no entry."""
    bundles = [bundle for configuration in configurations for bundle in _bundles(configuration)]
    if not bundles:
        return b""
    common = [c for c in bundles[0] if all(c in other for other in bundles[1:])]
    return pem.write_certificates(common)


def with_bundle(configuration: Mapping[str, Any], bundle: bytes, now: datetime.datetime) -> bytes | None:
    """The caBundle (PEM) that the entries of `configuration` are to have, or None when all have it already.

    That is `bundle` and what the entries had besides and may still be needed (`rotation.may_leave`).
    """
    own = pem.read_certificates(bundle)
    newest = max(own, key=_began)
    bundles = _bundles(configuration)
    others: list[x509.Certificate] = []
    for certificate in (c for entry in bundles for c in entry):
        if certificate not in (*own, *others) and not rotation.may_leave(certificate, newest, now):
            others.append(certificate)
    others = sorted(others, key=_began, reverse=True)[: max(0, _MOST_AUTHORITIES - len(own))]
    wanted = sorted([*own, *others], key=_began)
    return None if all(set(entry) == set(wanted) for entry in bundles) else pem.write_certificates(wanted)


def _began(certificate: x509.Certificate) -> datetime.datetime:
    return certificate.not_valid_before_utc


class Sightings:
    """Since when each CA has been trusted by all API servers, as far as this process knows."""

    # _since: first sighting of each CA without a gap since.

    def __init__(self) -> None:
        self._since: dict[x509.Certificate, datetime.datetime] = {}

    def settled(self, trusted: bytes, now: datetime.datetime) -> bytes:
        """Notes what is trusted now, and returns the part of it (PEM, or b"") that has been for rotation.SETTLE."""
        present = pem.read_certificates(trusted) if trusted else []
        self._since = {certificate: self._since.get(certificate, now) for certificate in present}
        return pem.write_certificates(c for c, since in self._since.items() if now - since >= rotation.SETTLE)


def _bundles(configuration: Mapping[str, Any]) -> list[list[x509.Certificate]]:
    return [_decoded(entry.get("clientConfig", {}).get("caBundle")) for entry in configuration.get("webhooks") or ()]


def _decoded(bundle: str | None) -> list[x509.Certificate]:
    """The CAs in a caBundle; [] when it is absent or unreadable, which for the API server comes to the same."""
    try:
        return pem.read_certificates(base64.b64decode(bundle or "", validate=True))
    except (binascii.Error, pem.Unreadable):
        return []
