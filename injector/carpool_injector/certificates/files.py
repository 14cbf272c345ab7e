"""Certificates that somebody else makes, mounted as files: by cert-manager, or from an existing Secret.

The kubelet swaps the files of a mounted Secret by a symbolic link, so their contents are read, not their dates; and a
read may fall into the swap, so a certificate and a key that do not match are no reason to give up those in service.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from carpool_injector.certificates import certificate_controller, pki, serving_certificate

POLL_SECONDS = 10.0

_log = logging.getLogger("carpool.injector.certificates")


class Contents(NamedTuple):
    """What the directory holds; `bundle` is ca.crt, None when there is none."""

    pair: pki.Pair
    bundle: bytes | None


class CertificateFiles:
    """`run` it for as long as the server runs; read `served.info`."""

    def __init__(
        self,
        directory: Path,
        served: serving_certificate.ServingCertificate,
        *,
        clock: Callable[[], datetime.datetime] = certificate_controller.utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.served = served
        self._directory = directory
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> None:
        """Reads the files every POLL_SECONDS, for ever. Ends only by cancellation."""
        while True:
            trouble = self._round()
            if trouble and trouble != self.served.info.last_error:
                _log.warning("the certificate in service stays: %s", trouble)
            self.served.info.last_error = trouble
            await self._sleep(POLL_SECONDS)

    def step(self) -> None:
        """One look at the files. Raises OSError, pki.Unreadable."""
        contents = read(self._directory)
        if self.served.offer(contents.pair, contents.bundle, contents.bundle, self._clock()):
            _log.info("serving the certificate from %s, valid until %s", self._directory, self.served.info.not_after)

    def _round(self) -> str | None:
        """One look and what went wrong."""
        try:
            self.step()
        except (OSError, pki.Unreadable) as error:
            self.served.look(self._clock())
            return f"{self._directory}: {error}"
        except Exception as error:
            _log.exception("the certificate files could not be looked at because of a bug; the next look follows")
            self.served.look(self._clock())
            return repr(error)
        return None


def read(directory: Path) -> Contents:
    """tls.crt, tls.key and, if it is there, ca.crt. Raises OSError, and pki.Unreadable when they do not fit."""
    pair = pki.Pair((directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes())
    if reason := pki.why_no_pair(pair):
        raise pki.Unreadable(f"tls.crt and tls.key: {reason}")
    authority = directory / "ca.crt"
    bundle = authority.read_bytes() if authority.is_file() else b""
    if bundle.strip():
        pki.read_certificates(bundle)
        return Contents(pair, bundle)
    return Contents(pair, None)
