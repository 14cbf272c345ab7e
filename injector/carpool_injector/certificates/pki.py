"""Certificates and keys as PEM: read, issued, and verified as the API server verifies them.

Pure: the time is handed in, nothing is read or written. One certificate authority (CA) signs one server certificate
(the leaf) and nothing else. PEM bytes at the boundary, because that is what a Secret, a caBundle and OpenSSL hold.
Profile: RFC 5280; ECDSA P-256 with SHA-256. What cannot be read raises `Unreadable`, so that no other module has to
know the exceptions of the cryptography library.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, types
from cryptography.x509 import oid, verification

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


class Unreadable(ValueError):
    """PEM that holds no certificate or no usable private key; the message says which."""


class Pair(NamedTuple):
    """A certificate (PEM; a leaf may be followed by its intermediates) and its private key (PEM, unencrypted)."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Without the key: what has a repr ends up in a log some day."""
        return f"Pair({len(self.certificate)} bytes of certificates, key not shown)"

    @property
    def first(self) -> x509.Certificate:
        """The first certificate. Raises Unreadable."""
        return read_certificates(self.certificate)[0]


def read_certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates in `pem`, in order, at least one. Raises Unreadable."""
    try:
        found = x509.load_pem_x509_certificates(pem)
        for certificate in found:
            _ = certificate.extensions  # parsed on first use; what is broken is to be found here
    except _UNREADABLE as error:
        raise Unreadable(f"no readable certificates (PEM): {error}") from None
    return found


def write_certificates(certificates: Iterable[x509.Certificate]) -> bytes:
    """The certificates as PEM, one after the other."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def read_key(pem: bytes) -> types.PrivateKeyTypes:
    """The private key of any kind in `pem`. Raises Unreadable, also when it is encrypted."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except _UNREADABLE as error:
        raise Unreadable(f"no readable unencrypted private key (PEM): {error}") from None


def why_no_pair(pair: Pair) -> str | None:
    """What is wrong with the pair (a part is unreadable, the key is another certificate's); None when all is well."""
    try:
        certificate, key = pair.first.public_key(), read_key(pair.key).public_key()
    except Unreadable as error:
        return str(error)
    return None if certificate == key else "the private key belongs to another certificate"


AUTHORITY_LIFE = datetime.timedelta(days=3650)
LEAF_LIFE = datetime.timedelta(days=30)
# Clocks of API server and pod differ; a certificate "from the future" is refused.
BACKDATE = datetime.timedelta(minutes=10)
ORGANIZATION = "carpool.dev"

_MOST_OF_A_COMMON_NAME = 64  # RFC 5280, ub-common-name
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names of a Service, first the one by which API servers call webhooks."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}", f"{service}.{namespace}.svc.cluster.local")


def issue_authority(now: datetime.datetime) -> Pair:
    """A new self-signed CA that may sign leaves only, valid for AUTHORITY_LIFE from `now` (UTC).

    Its name is its own: two CAs of one name in a bundle would leave it to each TLS library which one it tries.
    """
    serial = x509.random_serial_number()
    extensions = {
        x509.BasicConstraints(ca=True, path_length=0): True,
        _usage("key_cert_sign", "crl_sign"): True,
    }
    return _issue(f"carpool-injector CA {serial:x}", serial, None, extensions, now, AUTHORITY_LIFE)


def issue_leaf(authority: Pair, names: Sequence[str], now: datetime.datetime) -> Pair:
    """A new server certificate for the DNS `names` (at least one), signed by `authority`, valid for LEAF_LIFE.

    Raises pki.Unreadable when the authority is not a certificate with an elliptic-curve key.
    """
    extensions = {
        x509.BasicConstraints(ca=False, path_length=None): True,
        _usage("digital_signature"): True,
        x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.SERVER_AUTH]): False,
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]): False,
    }
    return _issue(names[0], x509.random_serial_number(), authority, extensions, now, LEAF_LIFE)


def read_signing_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    """The key of a CA of ours. Raises pki.Unreadable, also when it is a key of another kind."""
    found = read_key(key)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise Unreadable("the CA's key is not an elliptic-curve key")
    return found


def issued_at(certificate: x509.Certificate) -> datetime.datetime:
    """When one of our own certificates was made (UTC): its notBefore is backdated."""
    return certificate.not_valid_before_utc + BACKDATE


def _issue(
    common_name: str,
    serial: int,
    authority: Pair | None,
    extensions: Mapping[x509.ExtensionType, bool],
    now: datetime.datetime,
    life: datetime.timedelta,
) -> Pair:
    """A certificate with a new key, signed by `authority` (None: by itself). Extensions: whether each is critical."""
    key = ec.generate_private_key(ec.SECP256R1())
    organization = x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, ORGANIZATION)
    name = x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name[:_MOST_OF_A_COMMON_NAME])
    subject = x509.Name([organization, name])
    issuer, issuer_key = (authority.first.subject, read_signing_key(authority.key)) if authority else (subject, key)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), serial, now - BACKDATE, now + life)
    # Both identifiers: OpenSSL's strict mode, Python's default from 3.13 on, refuses chains without them.
    identifiers = {
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()): False,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()): False,
    }
    for extension, critical in {**extensions, **identifiers}.items():
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(write_certificates([certificate]), private)


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


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
        leaf, *intermediates = read_certificates(chain)
        trusted = read_certificates(bundle)
    except Unreadable as error:
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
