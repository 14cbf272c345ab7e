"""A certificate authority for each cluster, deleted with the cluster's folder, and kubeconfigs."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A clock that is a little behind must not call a new certificate "not yet valid".
BACKDATED = datetime.timedelta(minutes=5)
LIFETIME = datetime.timedelta(days=7)
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Issued(NamedTuple):
    """Where a certificate and its private key lie, as PEM files."""

    certificate: Path
    key: Path


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Makes a private key (ECDSA, P-256) and writes it as a PEM file that only its owner may read."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*form))
    return key


def write_public_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(key.public_key().public_bytes(*form))


def subject(common_name: str, groups: Iterable[str] = ()) -> x509.Name:
    """A name as Kubernetes reads it: the common name is the user, each organisation a group."""
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Authority:
    """Issues certificates into a folder, valid for a week: longer than any run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = subject("throw-away cluster CA")
        self._key = write_key(folder / "ca.key")
        self.bundle = folder / "ca.crt"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self._name, self._key.public_key()).add_extension(constraints, critical=True)
        self._write(self.bundle, builder.add_extension(SIGNS_CERTIFICATES, critical=True))

    def issue(self, file: str, common_name: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()) -> Issued:
        """Issues a certificate for a client, and for a server under each of `hosts` (DNS names, IP addresses)."""
        issued = Issued(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = self._builder(subject(common_name, groups), write_key(issued.key).public_key())
        builder = builder.add_extension(usages, critical=False)
        if names := [general_name(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(issued.certificate, builder)
        return issued

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder(issuer_name=self._name, subject_name=name, public_key=key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def render(server: str, bundle: Path, identity: Issued) -> str:
    """A kubeconfig (JSON, which is YAML) for the owner of `identity`; valid while the files that it names exist."""
    user = {"client-certificate": str(identity.certificate), "client-key": str(identity.key)}
    context = {"cluster": "e2e", "user": "e2e", "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(bundle)}}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": context}],
        "current-context": "e2e",
    }
    return json.dumps(document, indent=2) + "\n"
