"""What is issued, and what a client makes of it; no clock but the one handed in."""

from __future__ import annotations

import contextlib
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import oid

from carpool_injector.api import calls
from carpool_injector.certificates import pki, rotation, serving_certificate

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
NAMES = pki.service_names("carpool-injector", "carpool-system")
HOST = NAMES[0]


@pytest.fixture(scope="module")
def ca():
    return pki.issue_authority(NOW)


@pytest.fixture(scope="module")
def leaf(ca):
    return pki.issue_leaf(ca, NAMES, NOW)


def why_untrusted(chain, bundle, host=HOST, now=NOW):
    return pki.why_untrusted(chain, bundle, host, now)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """A TLS handshake in memory; returns the client's side. Raises ssl.SSLError."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(one, other, server_hostname=host), server.wrap_bio(other, one, server_side=True)]
    for _ in range(6):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return sides[0]


def issue_foreign(subject, issuer=None, issuer_key=None, *, is_ca, names=(), key=None, usage=None):
    """A certificate as somebody else might make it: RSA, no identifiers, no usage."""
    key = key or rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, subject)])
    above = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, issuer or subject)])
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(above, name, key.public_key(), x509.random_serial_number(), NOW - day, NOW + day)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
    if usage:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    certificate = builder.sign(issuer_key or key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return pki.Pair(pki.write_certificates([certificate]), private), key


def test_a_client_with_the_ca_accepts_the_leaf_for_all_names_of_the_service(ca, leaf):
    assert NAMES == (
        "carpool-injector.carpool-system.svc",
        "carpool-injector.carpool-system",
        "carpool-injector.carpool-system.svc.cluster.local",
    )
    assert [why_untrusted(leaf.certificate, ca.certificate, name) for name in NAMES] == [None, None, None]
    assert pki.names_of(leaf.first) == NAMES


def test_openssl_in_its_strict_mode_accepts_the_leaf():
    now = datetime.datetime.now(datetime.UTC)
    ca = pki.issue_authority(now)
    server = serving_certificate.make_context()
    serving_certificate.load_pair(server, pki.issue_leaf(ca, NAMES, now))
    client = ssl.create_default_context(cadata=ca.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(server, client, HOST).version() == "TLSv1.3"


def test_nobody_else_s_ca_name_or_day_will_do(ca, leaf):
    other = pki.issue_authority(NOW)
    assert "refuses" in why_untrusted(leaf.certificate, other.certificate)
    assert "no matching subjectAltName" in why_untrusted(leaf.certificate, ca.certificate, "another.carpool-system.svc")
    assert "not valid" in why_untrusted(leaf.certificate, ca.certificate, now=NOW + pki.LEAF_LIFE * 2)
    assert "no readable certificates" in why_untrusted(leaf.certificate, b"")
    assert "no readable certificates" in why_untrusted(b"-----BEGIN CERTIFICATE-----", ca.certificate)


def test_an_old_and_a_new_ca_in_one_bundle_each_have_their_say(ca, leaf):
    new = pki.issue_authority(NOW)
    new_leaf = pki.issue_leaf(new, NAMES, NOW)
    for bundle in (ca.certificate + new.certificate, new.certificate + ca.certificate):
        assert why_untrusted(leaf.certificate, bundle) is None
        assert why_untrusted(new_leaf.certificate, bundle) is None


def test_certificates_are_valid_before_they_are_made_for_clocks_that_run_behind(ca, leaf):
    behind = NOW - datetime.timedelta(minutes=9)
    assert why_untrusted(leaf.certificate, ca.certificate, now=behind) is None
    assert pki.issued_at(ca.first) == pki.issued_at(leaf.first) == NOW
    assert leaf.first.not_valid_after_utc - NOW == datetime.timedelta(days=30)
    assert ca.first.not_valid_after_utc - NOW == datetime.timedelta(days=3650)


def test_the_ca_can_sign_leaves_only_and_the_leaf_nothing(ca, leaf):
    constraints = ca.first.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    under_a_leaf = pki.issue_leaf(leaf, NAMES, NOW)
    chain = under_a_leaf.certificate + leaf.certificate
    assert "refuses" in why_untrusted(chain, ca.certificate)


def test_long_service_names_are_issued_too():
    names = pki.service_names("s" * 63, "n" * 63)
    ca = pki.issue_authority(NOW)
    assert why_untrusted(pki.issue_leaf(ca, names, NOW).certificate, ca.certificate, names[2]) is None


def test_other_people_s_plainer_certificates_are_judged_as_go_would():
    root, root_key = issue_foreign("root", is_ca=True)
    middle, middle_key = issue_foreign("middle", "root", root_key, is_ca=True)
    leaf, _ = issue_foreign("leaf", "middle", middle_key, is_ca=False, names=NAMES)
    assert why_untrusted(leaf.certificate + middle.certificate, root.certificate) is None
    assert "refuses" in why_untrusted(leaf.certificate, root.certificate)
    for_clients, _ = issue_foreign(
        "leaf", "root", root_key, is_ca=False, names=NAMES, usage=oid.ExtendedKeyUsageOID.CLIENT_AUTH
    )
    assert "not meant for servers" in why_untrusted(for_clients.certificate, root.certificate)
    nameless, _ = issue_foreign(HOST, "root", root_key, is_ca=False)
    assert "refuses" in why_untrusted(nameless.certificate, root.certificate)
    no_ca, no_ca_key = issue_foreign("root", is_ca=False)
    under_no_ca, _ = issue_foreign("leaf", "root", no_ca_key, is_ca=False, names=NAMES)
    assert "cA must be asserted" in why_untrusted(under_no_ca.certificate, no_ca.certificate)


def test_a_self_signed_server_certificate_that_is_its_own_bundle_is_accepted():
    alone, _ = issue_foreign(HOST, is_ca=False, names=NAMES)
    assert why_untrusted(alone.certificate, alone.certificate) is None


def test_a_pair_is_a_readable_certificate_with_its_own_readable_key(ca, leaf):
    assert pki.why_no_pair(leaf) is None
    assert pki.why_no_pair(issue_foreign("rsa", is_ca=True)[0]) is None
    assert "another certificate" in pki.why_no_pair(pki.Pair(leaf.certificate, ca.key))
    assert "no readable certificates" in pki.why_no_pair(pki.Pair(b"junk", leaf.key))
    assert "no readable unencrypted private key" in pki.why_no_pair(pki.Pair(leaf.certificate, b""))
    encrypted = pki.read_key(leaf.key).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    assert "no readable unencrypted private key" in pki.why_no_pair(pki.Pair(leaf.certificate, encrypted))


def test_a_key_of_another_kind_cannot_sign():
    foreign, _ = issue_foreign("rsa", is_ca=True)
    with pytest.raises(pki.Unreadable, match="not an elliptic-curve key"):
        pki.issue_leaf(foreign, NAMES, NOW)


def test_keys_are_p256():
    key = pki.read_key(pki.issue_authority(NOW).key)
    assert isinstance(key.curve, ec.SECP256R1)


def test_private_keys_are_in_no_repr(ca, leaf):
    decision = rotation.decide(None, NOW, NAMES, b"")
    shown = f"{leaf!r} {decision!r} {calls.Secret(dict(decision.contents), '7')!r}"
    assert "PRIVATE KEY" not in shown
    assert "Secret(ca.crt, ca.key, tls.crt, tls.key at version 7)" in shown
