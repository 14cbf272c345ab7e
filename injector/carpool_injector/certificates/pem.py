"""PEM in and out: certificates and private keys as a Secret, a caBundle and OpenSSL hold them.

Pure. What cannot be read is told by one exception of ours, so that nobody above has to know cryptography's many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import types

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


class Unreadable(ValueError):
    """PEM that holds no certificate or no usable private key; the message says which."""


def fingerprint(certificate: x509.Certificate) -> bytes:
    """What tells two certificates apart (SHA-256 of the DER)."""
    return certificate.fingerprint(hashes.SHA256())


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
    return None if _encoded(certificate) == _encoded(key) else "the private key belongs to another certificate"


def _encoded(key: object) -> bytes:
    encode = key.public_bytes  # type: ignore[attr-defined]  # every public key that a certificate can hold has it
    encoded: bytes = encode(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return encoded
