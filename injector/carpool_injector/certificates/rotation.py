"""What is to become of the Secret with the certificates: the rules of rotation, as a function of contents and time.

Pure. Every replica asks the same question about the same Secret; whoever writes first wins, the others find the answer
done. A new CA is spread in two steps: first it joins the bundle, while the leaf stays; the leaf follows once the API
servers have had the new bundle for a while. The key of the old CA is given up in the first step: from then on nothing
more is signed with it, and one leaf's life later it can leave the bundle.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography import x509

from carpool_injector.certificates import authority, pem, trust

LEAF, LEAF_KEY, BUNDLE, AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
KEYS = (LEAF, LEAF_KEY, BUNDLE, AUTHORITY_KEY)

AUTHORITY_AGE = datetime.timedelta(days=365)
# How long API servers get to learn a published bundle before a leaf may rely on it: they watch, seconds would do.
SETTLE = datetime.timedelta(minutes=5)
# After that long nothing an earlier CA signed can still be valid; a day for clocks that differ.
RETIRE = authority.LEAF_LIFE + datetime.timedelta(days=1)
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
    look_again: datetime.datetime


@dataclass(frozen=True)
class _State:
    """A readable Secret. `signer` is the CA that `ca.key` belongs to; only it can sign the next leaf."""

    bundle: list[x509.Certificate]
    signer: x509.Certificate
    signer_key: bytes = field(repr=False)
    pair: pem.Pair

    @property
    def authority(self) -> pem.Pair:
        return pem.Pair(pem.write_certificates([self.signer]), self.signer_key)


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
    except pem.Unreadable as error:
        return _start_over(Action.REPAIR, contents, now, names, str(error))
    if reason := _why_new_leaf(state, now, names, settled):
        return Decision(Action.NEW_LEAF, _with_leaf(contents, state.authority, names, now), reason, now)
    if now >= authority_due(state.signer):
        reason = f"the CA is from {authority.issued_at(state.signer):%Y-%m-%d}"
        return Decision(Action.NEW_AUTHORITY, _with_authority(contents, state.bundle, now), reason, now)
    if rest := _without_outdated(state, now):
        kept = {**contents, BUNDLE: pem.write_certificates(rest)}
        return Decision(Action.DROP_AUTHORITY, kept, "nothing that the old CA signed is still valid", now)
    return Decision(Action.KEEP, contents, "all is well", _next_moment(state, now))


def leaf_due(leaf: x509.Certificate) -> datetime.datetime:
    """When a leaf is to be replaced: after two thirds of its life."""
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return leaf.not_valid_before_utc + life * 2 / 3


def authority_due(certificate: x509.Certificate) -> datetime.datetime:
    """When a CA is to be replaced: yearly, in any case while the leaves it signs end before it does."""
    yearly = authority.issued_at(certificate) + AUTHORITY_AGE
    return min(yearly, certificate.not_valid_after_utc - 2 * authority.LEAF_LIFE)


def may_leave(certificate: x509.Certificate, newest: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether a CA can go from a bundle in which `newest` is its successor: all it ever signed has expired by `now`."""
    is_older = certificate.not_valid_before_utc < newest.not_valid_before_utc
    return certificate.not_valid_after_utc <= now or (is_older and now >= authority.issued_at(newest) + RETIRE)


def _read(contents: Mapping[str, bytes], now: datetime.datetime) -> _State:
    """The Secret's state. Raises pem.Unreadable when no CA in it can sign: missing, mismatched or out of date."""
    bundle = pem.read_certificates(contents.get(BUNDLE, b""))
    key = contents.get(AUTHORITY_KEY, b"")
    authority.read_signing_key(key)
    for certificate in bundle:
        if pem.why_no_pair(pem.Pair(pem.write_certificates([certificate]), key)) is None:
            if not certificate.not_valid_before_utc - _SKEW <= now < certificate.not_valid_after_utc:
                span = f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}"
                raise pem.Unreadable(f"the CA is valid only from {span}")
            pair = pem.Pair(contents.get(LEAF, b""), contents.get(LEAF_KEY, b""))
            return _State(bundle, certificate, key, pair)
    raise pem.Unreadable(f"{AUTHORITY_KEY} belongs to no certificate in {BUNDLE}")


def _why_new_leaf(state: _State, now: datetime.datetime, names: Sequence[str], settled: bytes) -> str | None:
    if reason := _why_unusable(state.pair, state.bundle, now, names):
        return reason
    leaf = state.pair.first
    if trust.is_signed_by(leaf, state.signer):
        return "two thirds of the certificate's life are over" if now >= leaf_due(leaf) else None
    # An old leaf that works is better than a new one that some API server has no CA for, however old it is.
    is_settled = bool(settled) and state.signer in pem.read_certificates(settled)
    return "the API servers know the new CA by now" if is_settled else None


def _why_unusable(
    pair: pem.Pair, bundle: Iterable[x509.Certificate], now: datetime.datetime, names: Sequence[str]
) -> str | None:
    if reason := pem.why_no_pair(pair):
        return reason
    missing = set(names) - set(trust.names_of(pair.first))
    if missing:
        return f"the certificate is not for {', '.join(sorted(missing))}"
    begin = pair.first.not_valid_before_utc
    moment = begin if now < begin <= now + _SKEW else now
    return trust.why_untrusted(pair.certificate, pem.write_certificates(bundle), names[0], moment)


def _without_outdated(state: _State, now: datetime.datetime) -> list[x509.Certificate]:
    """The CAs still needed, the signer among them; [] when that is all of them."""
    leaf = state.pair.first
    rest = [c for c in state.bundle if trust.is_signed_by(leaf, c) or not may_leave(c, state.signer, now)]
    return rest if len(rest) < len(state.bundle) else []


def _next_moment(state: _State, now: datetime.datetime) -> datetime.datetime:
    moments = [authority_due(state.signer), *(c.not_valid_after_utc for c in state.bundle)]
    if trust.is_signed_by(state.pair.first, state.signer):
        moments.append(leaf_due(state.pair.first))
    else:
        moments.append(now + SETTLE)
    if len(state.bundle) > 1:
        moments.append(authority.issued_at(state.signer) + RETIRE)
    return min((moment for moment in moments if moment > now), default=now + SETTLE)


def _start_over(
    action: Action, contents: Mapping[str, bytes], now: datetime.datetime, names: Sequence[str], reason: str
) -> Decision:
    """A new CA where there is no usable one; an old leaf that still works stays until the new CA is known."""
    try:
        kept = [c for c in pem.read_certificates(contents.get(BUNDLE, b"")) if now < c.not_valid_after_utc]
    except pem.Unreadable:
        kept = []
    fresh = _with_authority(contents, kept, now)
    pair = pem.Pair(contents.get(LEAF, b""), contents.get(LEAF_KEY, b""))
    if _why_unusable(pair, kept, now, names):
        fresh = _with_leaf(fresh, _read(fresh, now).authority, names, now)
    return Decision(action, fresh, reason, now)


def _with_authority(
    contents: Mapping[str, bytes], kept: Iterable[x509.Certificate], now: datetime.datetime
) -> Mapping[str, bytes]:
    fresh = authority.issue_authority(now)
    return {**contents, BUNDLE: pem.write_certificates(kept) + fresh.certificate, AUTHORITY_KEY: fresh.key}


def _with_leaf(
    contents: Mapping[str, bytes], signer: pem.Pair, names: Sequence[str], now: datetime.datetime
) -> Mapping[str, bytes]:
    leaf = authority.issue_leaf(signer, names, now)
    return {**contents, LEAF: leaf.certificate, LEAF_KEY: leaf.key}
