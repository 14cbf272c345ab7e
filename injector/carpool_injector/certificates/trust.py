"""Would a client that trusts a bundle accept a server's certificate? Pure: the time is handed in.

Asked before a certificate is served and before readiness is told, with the eyes of the API server: Go's crypto/x509,
which looks at signatures, dates, names and purposes and does not mind the finer points of the public web's rules.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509 import oid, verification

from carpool_injector.certificates import pem

_PURPOSES = (oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)


def is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer` signed `certificate`, dates and purposes aside."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names a server certificate is for; () when it has none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def why_untrusted(chain: bytes, bundle: bytes, host: str, now: datetime.datetime) -> str | None:
    """Why a client that trusts `bundle` (PEM) would refuse the server certificate `chain` (PEM, leaf first) for `host`.

    None when it would accept it at `now` (UTC). A server certificate that is itself in the bundle counts as trusted.
    """
    try:
        leaf, *intermediates = pem.read_certificates(chain)
        trusted = pem.read_certificates(bundle)
    except pem.Unreadable as error:
        return str(error)
    policy = verification.PolicyBuilder().time(now).extension_policies(ca_policy=_AUTHORITIES, ee_policy=_SERVERS)
    try:
        verifier = policy.store(verification.Store(trusted)).build_server_verifier(x509.DNSName(host))
        verifier.verify(leaf, intermediates)
    except (verification.VerificationError, ValueError) as error:
        return f"a client with this CA bundle refuses the certificate for {host}: {error}"
    return None


def _require_purpose(_policy: object, _certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
    if usage is not None and not any(purpose in usage for purpose in _PURPOSES):
        raise ValueError("it is not meant for servers (extended key usage)")


_AGNOSTIC = verification.Criticality.AGNOSTIC
_AUTHORITIES = verification.ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, _AGNOSTIC, None)
_SERVERS = (
    verification.ExtensionPolicy.permit_all()
    .require_present(x509.SubjectAlternativeName, _AGNOSTIC, None)
    .may_be_present(x509.ExtendedKeyUsage, _AGNOSTIC, _require_purpose)
)
