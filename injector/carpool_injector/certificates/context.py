"""The server's TLS settings, and new certificates under them without a restart.

OpenSSL reads keys from files only, and a private key should not lie on a disk: it passes through memory that has a file
name (memfd, Linux), or where there is none through a file only we can read, removed at once.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Collection, Iterator
from typing import Any

from carpool_injector.certificates import pem

_AEAD_WITH_FORWARD_SECRECY = "ECDHE+AESGCM:ECDHE+CHACHA20"  # for TLS 1.2; 1.3 has nothing else


def make(minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, client_ca: str | None = None) -> ssl.SSLContext:
    """A server's context without a certificate yet: TLS from `minimum` (1.2 or 1.3) on, HTTP/1.1 only.

    With `client_ca` (PEM) clients may show a certificate, and one of another CA ends the handshake. Clients without one
    are let in as well, because the kubelet's probes have none: ask `why_unwelcome` where it matters.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = minimum
    context.set_ciphers(_AEAD_WITH_FORWARD_SECRECY)
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=client_ca)
    return context


def load(context: ssl.SSLContext, pair: pem.Pair) -> None:
    """Serves `pair` from the next handshake on; open connections keep theirs.

    Raises pem.Unreadable, and then `context` is as before. To be called in the event loop's thread: a handshake in
    another one could find the new certificate with the old key.
    """
    with _file_of(pair.certificate + b"\n" + pair.key) as path:
        try:
            # Tried on another context first: a failed load leaves the certificate in place without its key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError) as error:
            raise pem.Unreadable(f"OpenSSL does not take the certificate and key: {error}") from None


def why_unwelcome(peer: dict[str, Any] | None, allowed: Collection[str]) -> str | None:
    """Why a client that showed `peer` (as of `SSLObject.getpeercert`; verified) may not call; None when it may.

    `allowed` are common names or DNS names; when it is empty, any certificate of the client CA will do.
    """
    if not peer:
        return "the client showed no certificate, but one signed by the client CA is required"
    shown = {value for part in peer.get("subject", ()) for key, value in part if key == "commonName"}
    shown |= {value for kind, value in peer.get("subjectAltName", ()) if kind == "DNS"}
    if not allowed or shown & set(allowed):
        return None
    return f"the client's certificate is for {', '.join(sorted(shown)) or 'nobody'}; allowed: {', '.join(allowed)}"


@contextlib.contextmanager
def _file_of(secret: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(secret)
        file.flush()
        yield file.name
