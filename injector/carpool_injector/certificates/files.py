"""Certificates that somebody else makes, mounted as files: by cert-manager, or from an existing Secret.

The kubelet swaps the files of a mounted Secret by a symbolic link, so their contents are read, not their dates; and a
read may fall into the swap, so a certificate and a key that do not match are no reason to give up those in service.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from carpool_injector.certificates import pki, serving_certificate

POLL_SECONDS = 10.0

_log = logging.getLogger("carpool.injector.certificates")


class CertificateFiles(serving_certificate.Supplier):
    """Reads tls.crt, tls.key and, if it is there, ca.crt from a directory, every POLL_SECONDS."""

    longest_seconds = POLL_SECONDS

    def __init__(self, directory: Path, served: serving_certificate.ServingCertificate, **timing: Any) -> None:
        super().__init__(served, **timing)
        self._directory = directory

    async def step(self) -> float:
        """One look at the files. Raises pki.Unreadable when they are not there, or do not fit."""
        try:
            pair, bundle = self._read()
        except (OSError, pki.Unreadable) as error:
            raise pki.Unreadable(f"{self._directory}: {error}") from None
        if self.served.offer(pair, bundle, bundle, self._clock()):
            _log.info("serving the certificate from %s, valid until %s", self._directory, self.served.not_after)
        self.served.last_error = None
        return POLL_SECONDS

    def _read(self) -> tuple[pki.Pair, bytes | None]:
        pair = pki.Pair((self._directory / "tls.crt").read_bytes(), (self._directory / "tls.key").read_bytes())
        if reason := pki.why_no_pair(pair):
            raise pki.Unreadable(f"tls.crt and tls.key: {reason}")
        authority = self._directory / "ca.crt"
        bundle = authority.read_bytes() if authority.is_file() else b""
        if not bundle.strip():
            return pair, None
        pki.read_certificates(bundle)
        return pair, bundle
