"""Real TLS on loopback: what clients of a server see while its certificates change under it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

from carpool_injector.certificates import pki, serving_certificate

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ("localhost", "carpool-injector.carpool-system.svc")


@pytest.fixture(scope="module")
def old():
    return pki.issue_authority(NOW)


@pytest.fixture(scope="module")
def new():
    return pki.issue_authority(NOW)


@contextlib.asynccontextmanager
async def serving(tls):
    """A server on loopback; yields its port. It answers with what it sees of the client."""

    async def answer(request):
        peer = request.transport.get_extra_info("peercert")
        return web.json_response(
            {"peer": peer, "why_unwelcome": serving_certificate.why_unwelcome(peer, ["kube-apiserver"])}
        )

    app = web.Application()
    app.router.add_route("*", "/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def client_of(bundle: bytes, pair: pki.Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cadata=bundle.decode())
    if pair is not None:
        serving_certificate.load_pair(made, pair)
    return made


def issue_client(name: str, ca: pki.Pair) -> pki.Pair:
    """A client's certificate with this common name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, name)])
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(
        ca.first.subject, subject, key.public_key(), x509.random_serial_number(), NOW - day, NOW + day
    ).add_extension(x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    certificate = builder.sign(pki.read_key(ca.key), hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pki.Pair(pki.write_certificates([certificate]), private)


async def serial_seen(port: int, trusted: ssl.SSLContext) -> tuple[int, str, str | None]:
    """The serial number of the certificate a new connection gets, TLS version, ALPN protocol."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
    seen = writer.get_extra_info("ssl_object")
    found = (int(seen.getpeercert()["serialNumber"], 16), seen.version(), seen.selected_alpn_protocol())
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return found


@pytest.mark.both_loops
async def test_new_connections_get_the_new_certificate_open_ones_stay_and_nothing_restarts(old, new):
    tls = serving_certificate.make_context()
    first, second = pki.issue_leaf(old, NAMES, NOW), pki.issue_leaf(new, NAMES, NOW)
    serving_certificate.load_pair(tls, first)
    both = client_of(old.certificate + new.certificate)
    async with serving(tls) as port, aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=both)) as session:
        url = f"https://localhost:{port}/"
        async with session.get(url) as response:
            assert response.status == 200
        assert (await serial_seen(port, both))[0] == first.first.serial_number
        serving_certificate.load_pair(tls, second)
        assert (await serial_seen(port, both))[0] == second.first.serial_number
        async with session.get(url) as response:
            assert response.status == 200
        assert (await serial_seen(port, client_of(new.certificate)))[0] == second.first.serial_number
        with pytest.raises(ssl.SSLCertVerificationError):
            await serial_seen(port, client_of(old.certificate))


async def test_handshakes_succeed_throughout_a_hundred_reloads(old):
    tls = serving_certificate.make_context()
    serving_certificate.load_pair(tls, pki.issue_leaf(old, NAMES, NOW))
    trusted = client_of(old.certificate)
    async with serving(tls) as port:
        seen = []
        for _ in range(20):
            handshakes = [asyncio.ensure_future(serial_seen(port, trusted)) for _ in range(3)]
            for _ in range(5):
                serving_certificate.load_pair(tls, pki.issue_leaf(old, NAMES, NOW))
                await asyncio.sleep(0)
            seen += await asyncio.gather(*handshakes)
        assert len(seen) == 60
        assert len({serial for serial, _, _ in seen}) > 10


async def test_tls_1_2_is_refused_unless_it_is_asked_for(old):
    trusted = client_of(old.certificate)
    trusted.maximum_version = ssl.TLSVersion.TLSv1_2
    strict, lenient = serving_certificate.make_context(), serving_certificate.make_context(ssl.TLSVersion.TLSv1_2)
    for tls in (strict, lenient):
        serving_certificate.load_pair(tls, pki.issue_leaf(old, NAMES, NOW))
    async with serving(strict) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await serial_seen(port, trusted)
        assert (await serial_seen(port, client_of(old.certificate)))[1] == "TLSv1.3"
    async with serving(lenient) as port:
        assert (await serial_seen(port, trusted))[1] == "TLSv1.2"
        trusted.set_ciphers("AES128-SHA256:AES256-SHA256")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await serial_seen(port, trusted)


async def test_only_http_1_1_is_offered(old):
    tls = serving_certificate.make_context()
    serving_certificate.load_pair(tls, pki.issue_leaf(old, NAMES, NOW))
    trusted = client_of(old.certificate)
    trusted.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(tls) as port:
        assert (await serial_seen(port, trusted))[2] == "http/1.1"


async def test_a_failed_reload_leaves_the_certificate_in_service(old):
    tls = serving_certificate.make_context()
    good, other = pki.issue_leaf(old, NAMES, NOW), pki.issue_leaf(old, NAMES, NOW)
    serving_certificate.load_pair(tls, good)
    async with serving(tls) as port:
        for bad in (
            pki.Pair(other.certificate, good.key),
            pki.Pair(b"junk", b"junk"),
            pki.Pair(other.certificate, b""),
        ):
            with pytest.raises(pki.Unreadable, match="OpenSSL does not take"):
                serving_certificate.load_pair(tls, bad)
            assert (await serial_seen(port, client_of(old.certificate)))[0] == good.first.serial_number


async def test_clients_may_be_asked_for_certificates_and_probes_get_by_without(old, new):
    tls = serving_certificate.make_context(client_ca=new.certificate.decode())
    serving_certificate.load_pair(tls, pki.issue_leaf(old, NAMES, NOW))

    async def ask(pair):
        connector = aiohttp.TCPConnector(ssl=client_of(old.certificate, pair))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"https://localhost:{port}/") as got,
        ):
            return await got.json()

    async with serving(tls) as port:
        assert "showed no certificate" in (await ask(None))["why_unwelcome"]
        assert (await ask(issue_client("kube-apiserver", new)))["why_unwelcome"] is None
        assert "is for somebody; allowed: kube-apiserver" in (await ask(issue_client("somebody", new)))["why_unwelcome"]
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await ask(issue_client("kube-apiserver", old))


def test_who_is_welcome_is_told_by_name():
    peer = {
        "subject": ((("commonName", "kube-apiserver"),),),
        "subjectAltName": (("DNS", "api.internal"), ("IP", "::1")),
    }
    assert serving_certificate.why_unwelcome(peer, []) is None
    assert serving_certificate.why_unwelcome(peer, ["kube-apiserver"]) is None
    assert serving_certificate.why_unwelcome(peer, ["api.internal"]) is None
    told = serving_certificate.why_unwelcome(peer, ["aggregator", "::1"])
    assert told == "the client's certificate is for api.internal, kube-apiserver; allowed: aggregator, ::1"
    assert (
        serving_certificate.why_unwelcome({"subject": ()}, ["a"])
        == "the client's certificate is for nobody; allowed: a"
    )
    assert "showed no certificate" in serving_certificate.why_unwelcome(None, [])


def test_private_keys_touch_no_disk_and_leave_no_file_open(old, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    serving_certificate.load_pair(serving_certificate.make_context(), pki.issue_leaf(old, NAMES, NOW))
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
