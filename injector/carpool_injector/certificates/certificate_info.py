"""What metrics and readiness may know about the certificates, whoever keeps them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass


@dataclass
class Facts:
    """Kept up to date by `keeper.Keeper` or `files.Files`; everybody else only reads."""

    # Why a client that trusts what the API server has been told refuses the served certificate; None when it does not.
    unverified: str | None = "there is no certificate yet"
    # End of the served certificate (UTC); None while there is only a stand-in that nobody is asked to trust.
    not_after: datetime.datetime | None = None
    # The last round's trouble, in words for a log or a probe; None after a round without.
    last_error: str | None = None
    # How often another certificate was taken into service, the first included.
    reloads: int = 0

    @property
    def is_verified(self) -> bool:
        """The readiness question: would the API server's call get through?"""
        return self.unverified is None
