"""What the Secret and the caBundles are to hold: rotation as a function of contents and time. Pure.

Every replica asks the same question about the same Secret; the first one to write wins, the others find it done. A new
CA is introduced in two steps: first it joins the bundle while the leaf stays; the leaf follows once the API servers
have had the new bundle for a while. The first step discards the old CA's key, so nothing more is signed with it, and
one leaf's life later it can leave the bundle.

A caBundle only loses CAs whose every certificate has expired: a replica that knows less than another, or a new Secret,
takes no CA away under a certificate that is still served.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cryptography import x509

from carpool_injector.certificates import pki

LEAF, LEAF_KEY, BUNDLE, AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
KEYS = (LEAF, LEAF_KEY, BUNDLE, AUTHORITY_KEY)

AUTHORITY_AGE = datetime.timedelta(days=365)
# How long API servers get to learn a published bundle before a leaf may rely on it: they watch, seconds would do.
SETTLE = datetime.timedelta(minutes=5)
# After that long nothing an earlier CA signed can still be valid; a day for clocks that differ.
RETIRE = pki.LEAF_LIFE + datetime.timedelta(days=1)
# A certificate from a replica whose clock is this much ahead is as good as one of now; else two clocks would fight.
_SKEW = datetime.timedelta(hours=1)


class Action(enum.Enum):
    KEEP = "keep"
    CREATE = "create"
    REPAIR = "repair"
    NEW_LEAF = "new leaf"
    NEW_AUTHORITY = "new CA"
    DROP_AUTHORITY = "drop old CA"


@dataclass(frozen=True)
class Decision:
    """What to write: `contents` is the whole Secret afterwards (unknown keys stay), the very input for KEEP."""

    action: Action
    contents: Mapping[str, bytes] = field(repr=False)  # private keys
    reason: str


class _State(NamedTuple):
    """A readable Secret. `authority` is the CA whose key it has: only that one can sign the next leaf."""

    bundle: list[x509.Certificate]
    authority: pki.Pair
    pair: pki.Pair


def decide(
    contents: Mapping[str, bytes] | None, now: datetime.datetime, names: Sequence[str], settled: bytes
) -> Decision:
    """The next single step for a Secret with these `contents` (None: there is no Secret), for a server called `names`.

    `settled` are the CAs (PEM, or b"") that API servers have trusted for SETTLE. Ask again after each step: a Secret
    that needs several (say, after a year of standing still) gets them one by one, and then KEEP.
    """
    if not contents or not any(contents.get(key) for key in KEYS):
        return _start_over(Action.CREATE, contents or {}, now, names, "there are no certificates yet")
    try:
        state = _read(contents, now)
    except pki.Unreadable as error:
        return _start_over(Action.REPAIR, contents, now, names, str(error))
    if reason := _why_new_leaf(state, now, names, settled):
        return Decision(Action.NEW_LEAF, _with_leaf(contents, state.authority, names, now), reason)
    signer = state.authority.first
    if now >= authority_due(signer):
        fresh = _with_authority(contents, state.bundle, pki.issue_authority(now))
        return Decision(Action.NEW_AUTHORITY, fresh, f"the CA is from {pki.issued_at(signer):%Y-%m-%d}")
    leaf = state.pair.first
    rest = [c for c in state.bundle if pki.is_signed_by(leaf, c) or not may_leave(c, signer, now)]
    if len(rest) < len(state.bundle):
        kept = {**contents, BUNDLE: pki.write_certificates(rest)}
        return Decision(Action.DROP_AUTHORITY, kept, "nothing that the old CA signed is still valid")
    return Decision(Action.KEEP, contents, "all is well")


def leaf_due(leaf: x509.Certificate) -> datetime.datetime:
    """When a leaf is to be replaced: after two thirds of its life."""
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return leaf.not_valid_before_utc + life * 2 / 3


def authority_due(certificate: x509.Certificate) -> datetime.datetime:
    """When a CA is to be replaced: yearly, in any case while the leaves it signs end before it does."""
    yearly = pki.issued_at(certificate) + AUTHORITY_AGE
    return min(yearly, certificate.not_valid_after_utc - 2 * pki.LEAF_LIFE)


def may_leave(certificate: x509.Certificate, newest: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether a CA can go from a bundle in which `newest` is its successor: all it ever signed has expired by `now`."""
    is_older = certificate.not_valid_before_utc < newest.not_valid_before_utc
    return certificate.not_valid_after_utc <= now or (is_older and now >= pki.issued_at(newest) + RETIRE)


def _read(contents: Mapping[str, bytes], now: datetime.datetime) -> _State:
    """The Secret's state. Raises pki.Unreadable when no CA in it can sign: missing, mismatched or out of date."""
    bundle = pki.read_certificates(contents.get(BUNDLE, b""))
    key = contents.get(AUTHORITY_KEY, b"")
    pki.read_signing_key(key)
    pairs = (pki.Pair(pki.write_certificates([certificate]), key) for certificate in bundle)
    authority = next((pair for pair in pairs if pki.why_no_pair(pair) is None), None)
    if authority is None:
        raise pki.Unreadable(f"{AUTHORITY_KEY} belongs to no certificate in {BUNDLE}")
    begin, end = authority.first.not_valid_before_utc, authority.first.not_valid_after_utc
    if not begin - _SKEW <= now < end:
        raise pki.Unreadable(f"the CA is valid only from {begin:%Y-%m-%d} to {end:%Y-%m-%d}")
    return _State(bundle, authority, _leaf_in(contents))


def _leaf_in(contents: Mapping[str, bytes]) -> pki.Pair:
    return pki.Pair(contents.get(LEAF, b""), contents.get(LEAF_KEY, b""))


def _why_new_leaf(state: _State, now: datetime.datetime, names: Sequence[str], settled: bytes) -> str | None:
    if reason := _why_unusable(state.pair, state.bundle, now, names):
        return reason
    leaf, signer = state.pair.first, state.authority.first
    if pki.is_signed_by(leaf, signer):
        return "two thirds of the certificate's life are over" if now >= leaf_due(leaf) else None
    # An old leaf that works is better than a new one that some API server has no CA for, however old it is.
    is_settled = bool(settled) and signer in pki.read_certificates(settled)
    return "the API servers know the new CA by now" if is_settled else None


def _why_unusable(
    pair: pki.Pair, bundle: Iterable[x509.Certificate], now: datetime.datetime, names: Sequence[str]
) -> str | None:
    if reason := pki.why_no_pair(pair):
        return reason
    missing = set(names) - set(pki.names_of(pair.first))
    if missing:
        return f"the certificate is not for {', '.join(sorted(missing))}"
    begin = pair.first.not_valid_before_utc
    moment = begin if now < begin <= now + _SKEW else now
    return pki.why_untrusted(pair.certificate, pki.write_certificates(bundle), names[0], moment)


def _start_over(
    action: Action, contents: Mapping[str, bytes], now: datetime.datetime, names: Sequence[str], reason: str
) -> Decision:
    """A new CA where there is no usable one; an old leaf that still works stays until the new CA is known."""
    try:
        kept = [c for c in pki.read_certificates(contents.get(BUNDLE, b"")) if now < c.not_valid_after_utc]
    except pki.Unreadable:
        kept = []
    authority = pki.issue_authority(now)
    fresh = _with_authority(contents, kept, authority)
    if _why_unusable(_leaf_in(contents), kept, now, names):
        fresh = _with_leaf(fresh, authority, names, now)
    return Decision(action, fresh, reason)


def _with_authority(
    contents: Mapping[str, bytes], kept: Iterable[x509.Certificate], authority: pki.Pair
) -> Mapping[str, bytes]:
    return {**contents, BUNDLE: pki.write_certificates(kept) + authority.certificate, AUTHORITY_KEY: authority.key}


def _with_leaf(
    contents: Mapping[str, bytes], signer: pki.Pair, names: Sequence[str], now: datetime.datetime
) -> Mapping[str, bytes]:
    leaf = pki.issue_leaf(signer, names, now)
    return {**contents, LEAF: leaf.certificate, LEAF_KEY: leaf.key}


# A caBundle that grows without end would some day be too large to store; rotation itself needs two.
_MOST_AUTHORITIES = 10


def trusted_by_all(configurations: Iterable[Mapping[str, Any]]) -> bytes:
    """The CAs (PEM, or b"") that are in the caBundle of every entry; b"" when there is no entry."""
    bundles = [bundle for configuration in configurations for bundle in _bundles(configuration)]
    if not bundles:
        return b""
    common = [c for c in bundles[0] if all(c in other for other in bundles[1:])]
    return pki.write_certificates(common)


def with_bundle(configuration: Mapping[str, Any], bundle: bytes, now: datetime.datetime) -> bytes | None:
    """The caBundle (PEM) that the entries of `configuration` are to have, or None when all have it already.

    That is `bundle` and what the entries had besides and may still be needed (`rotation.may_leave`).
    """
    own = pki.read_certificates(bundle)
    newest = max(own, key=_began)
    bundles = list(_bundles(configuration))
    others: list[x509.Certificate] = []
    for certificate in (c for entry in bundles for c in entry):
        if certificate not in (*own, *others) and not may_leave(certificate, newest, now):
            others.append(certificate)
    others = sorted(others, key=_began, reverse=True)[: max(0, _MOST_AUTHORITIES - len(own))]
    wanted = sorted([*own, *others], key=_began)
    return None if all(set(entry) == set(wanted) for entry in bundles) else pki.write_certificates(wanted)


def _began(certificate: x509.Certificate) -> datetime.datetime:
    return certificate.not_valid_before_utc


class Sightings:
    """Since when each CA has been trusted by all API servers, as far as this process knows."""

    # _since: first sighting of each CA without a gap since.

    def __init__(self) -> None:
        self._since: dict[x509.Certificate, datetime.datetime] = {}

    def settled(self, trusted: bytes, now: datetime.datetime) -> bytes:
        """Notes what is trusted now, and returns the part of it (PEM, or b"") that has been for rotation.SETTLE."""
        present = pki.read_certificates(trusted) if trusted else []
        self._since = {certificate: self._since.get(certificate, now) for certificate in present}
        return pki.write_certificates(c for c, since in self._since.items() if now - since >= SETTLE)


def _bundles(configuration: Mapping[str, Any]) -> Iterator[list[x509.Certificate]]:
    """The CAs in each entry's caBundle; [] where it is absent or unreadable, which for the API server is the same."""
    for entry in configuration.get("webhooks") or ():
        try:
            bundle = base64.b64decode(entry.get("clientConfig", {}).get("caBundle") or "", validate=True)
            yield pki.read_certificates(bundle)
        except (binascii.Error, pki.Unreadable):
            yield []
