"""Issues certificates. Pure: the time is handed in, nothing is read or written.

One certificate authority (CA) signs one server certificate (the leaf) and nothing else. Everything is PEM bytes at the
boundary, because that is what a Secret, a caBundle and OpenSSL hold. Profile: RFC 5280; ECDSA P-256 with SHA-256.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

from carpool_injector.certificates import pem

AUTHORITY_LIFE = datetime.timedelta(days=3650)
LEAF_LIFE = datetime.timedelta(days=30)
# Clocks of API server and pod differ; a certificate "from the future" is refused.
BACKDATE = datetime.timedelta(minutes=10)
ORGANIZATION = "carpool.dev"

_MOST_OF_A_COMMON_NAME = 64  # RFC 5280, ub-common-name


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names of a Service, first the one by which API servers call webhooks."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}", f"{service}.{namespace}.svc.cluster.local")


def issue_authority(now: datetime.datetime) -> pem.Pair:
    """A new self-signed CA that may sign leaves only, valid for AUTHORITY_LIFE from `now` (UTC).

    Its name is its own: two CAs of one name in a bundle would leave it to each TLS library which one it tries.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"carpool-injector CA {serial:x}")
    builder = _builder(name, name, key, serial, now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(of_authority=True), critical=True)
    return _signed(builder, key, key)


def issue_leaf(authority: pem.Pair, names: Sequence[str], now: datetime.datetime) -> pem.Pair:
    """A new server certificate for the DNS `names` (at least one), signed by `authority`, valid for LEAF_LIFE.

    Raises pem.Unreadable when the authority is not a certificate with an elliptic-curve key.
    """
    issuer, issuer_key = authority.first, read_signing_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(names[0]), issuer.subject, key, x509.random_serial_number(), now, LEAF_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(of_authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
    return _signed(builder, key, issuer_key)


def read_signing_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    """The key of a CA of ours. Raises pem.Unreadable, also when it is a key of another kind."""
    found = pem.read_key(key)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise pem.Unreadable("the CA's key is not an elliptic-curve key")
    return found


def issued_at(certificate: x509.Certificate) -> datetime.datetime:
    """When one of our own certificates was made (UTC): its notBefore is backdated."""
    return certificate.not_valid_before_utc + BACKDATE


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name[:_MOST_OF_A_COMMON_NAME]),
        ]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    serial: int,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=serial,
        not_valid_before=now - BACKDATE,
        not_valid_after=now + life,
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> pem.Pair:
    # Both identifiers: OpenSSL's strict mode, Python's default from 3.13 on, refuses chains without them.
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(own, critical=False).add_extension(above, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.Pair(pem.write_certificates([certificate]), private)


def _usage(*, of_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not of_authority,
        key_cert_sign=of_authority,
        crl_sign=of_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
