"""Failures of our own while a call was handled: never silent."""

from __future__ import annotations

import logging
from collections.abc import Callable

from carpool.program import logs
from carpool_sidecar.server.grpc import parts

log = logging.getLogger("carpool.sidecar.server")

Report = Callable[[Exception], None]
"""Gets what was caught and should not have happened; it does not raise."""


class Bugs:
    """Logs them with their traceback, and counts them."""

    def __init__(self, counters: parts.Counters, where: str = "rpc") -> None:
        self._where = where
        self._count = counters.internal_errors.labels(where)

    def report(self, error: Exception) -> None:
        """This was caught."""
        log.error("a call failed for a reason that is a bug", exc_info=error, extra=logs.facts(where=self._where))
        self._count.inc()
