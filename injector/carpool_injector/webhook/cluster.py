"""What the webhook knows of the cluster: its namespaces, and what its API server and nodes can do.

Namespaces are a cache that a watch feeds, with a direct read for what the watch has not told yet: a pod can be created
a moment after its namespace, so a miss is read, and never remembered as "no such namespace". While the watch is broken
the last known state is served: labels of namespaces change seldom, and reviews cannot wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from carpool.program import logs
from carpool_injector import rounds
from carpool_injector.api import kube
from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import metrics

log = logging.getLogger("carpool.injector")

_AGAIN_AFTER = 300.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts that fail
_READS_AT_ONCE = 16  # of namespaces, however many reviews ask
_SKEW = 3  # minor versions a kubelet may be behind its API server (kubernetes.io, version skew policy)


class ClusterVersion:
    """The capabilities as last read. Start `follow` in a task."""

    def __init__(self, api: kube.Kube) -> None:
        self._api = api
        # All mutable state: the last answer, and whether the log says already that nodes cannot be read.
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
        await rounds.repeat(self._look, _failed, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)

    async def _look(self) -> float:
        server = await self._api.server_version()
        found = model.Capabilities.of(server, await self._oldest_kubelet(server))
        if found != self._found:
            log.info("the cluster is known", extra=logs.facts(server=server, native_sidecars=found.native_sidecars))
        self._found = found
        return _AGAIN_AFTER

    async def _oldest_kubelet(self, server: model.Version) -> model.Version | None:
        """None while there are no nodes. The oldest that may be, where nodes cannot be read."""
        try:
            return min(await self._api.kubelet_versions(), default=None)
        except Exception as error:
            if not self._told:
                log.warning("the nodes cannot be read; the oldest allowed are assumed: %s", error)
                self._told = True
            return server[0], server[1] - _SKEW


def _failed(error: Exception, again_in_seconds: float) -> None:
    facts = logs.facts(error=f"{type(error).__name__}: {error}"[:300], again_in_seconds=again_in_seconds)
    log.warning("the cluster's version could not be read", extra=facts)


class Namespaces:
    """The cache. Start `follow` in a task; `get` works from the beginning, if slowly."""

    def __init__(self, api: kube.Kube, counts: metrics.Metrics, read_timeout: float = 2.0) -> None:
        self._api = api
        self._counts = counts
        self._read_timeout = read_timeout
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        # All mutable state: what the watch told, and whether it told all.
        self._known: dict[str, model.Namespace] = {}
        self._synced = False
        counts.namespaces_synced.set_function(lambda: float(self._synced))

    def missing(self) -> str:
        """What readiness has to wait for; "" once all namespaces are known."""
        return "" if self._synced else "the namespaces are not known yet: may the injector list and watch them?"

    def known(self) -> Mapping[str, model.Namespace]:
        """Those that are known by now, by name; not to be kept."""
        return self._known

    async def get(self, name: str) -> model.Namespace:
        """The namespace of this name; raises review.Unanswerable when it is not known and cannot be read in time."""
        known = self._known.get(name)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(self._read_timeout), self._reads:
                found = await self._api.read_namespace(name)
        except Exception as error:
            self._counts.namespace_reads.labels("failed").inc()
            late = f"no answer within {self._read_timeout:g} s"
            reason = late if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            raise review.Unanswerable(f"namespace {name[:100]!r} could not be read: {reason:.300}") from error
        self._counts.namespace_reads.labels("read").inc()
        return found

    async def follow(self) -> None:
        """Keeps the cache right, until cancelled."""
        async for told in self._api.watch_namespaces():
            if isinstance(told, dict):
                self._known, self._synced = told, True
                continue
            name, namespace = told
            self._known.pop(name, None)
            if namespace is not None:
                self._known[name] = namespace
