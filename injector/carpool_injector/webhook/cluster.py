"""What the cluster can do, asked now and then: nodes come and go, and clusters are upgraded meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import logs

log = logging.getLogger("carpool.injector")

_AGAIN_AFTER = 300.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts while nothing is known
_SKEW = 3  # minor versions a kubelet may be behind its API server (kubernetes.io, version skew policy)


class Source(Protocol):
    """Who knows versions; `kube.Kube` is one. Both raise anything when the answer cannot be had."""

    async def server_version(self) -> model.Version:
        """The API server's."""

    async def kubelet_versions(self) -> Sequence[model.Version]:
        """Those of all nodes."""


class Cluster:
    """The capabilities as last read. Start `follow` in a task."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # All mutable state: the last answer, and whether it was told that nodes cannot be read.
        self._found: model.Capabilities | None = None
        self._told = False

    def capabilities(self) -> model.Capabilities:
        """What the cluster can do; raises review.Unanswerable while that is not known."""
        if self._found is None:
            raise review.Unanswerable(self.missing())
        return self._found

    def missing(self) -> str:
        """What readiness has to wait for; "" once the versions are known."""
        return "" if self._found is not None else "the cluster's version is not known yet: can the API be reached?"

    async def follow(self) -> None:
        """Keeps the capabilities right, until cancelled; the last known ones stay while they cannot be read."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._look()
                pause = _AGAIN_AFTER
            except Exception as error:
                pause = min(2 * pause, _LONGEST_PAUSE)
                facts = logs.facts(error=f"{type(error).__name__}: {error}"[:300], again_in_seconds=pause)
                log.warning("the cluster's version could not be read", extra=facts)
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        server = await self._source.server_version()
        found = model.Capabilities.of(server, await self._oldest_kubelet(server))
        if found != self._found:
            log.info("the cluster is known", extra=logs.facts(server=server, native_sidecars=found.native_sidecars))
        self._found = found

    async def _oldest_kubelet(self, server: model.Version) -> model.Version | None:
        """None while there are no nodes. The oldest that may be, where nodes cannot be read."""
        try:
            return min(await self._source.kubelet_versions(), default=None)
        except Exception as error:
            if not self._told:
                log.warning("the nodes cannot be read; the oldest allowed are assumed: %s", error)
                self._told = True
            return server[0], server[1] - _SKEW
