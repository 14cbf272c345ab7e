"""What is known of namespaces: a cache that a watch feeds, with a direct read for what the watch has not told yet.

A pod can be created a moment after its namespace, so a miss is read, and never remembered as "no such namespace". While
the watch is broken the last known state is served: labels of namespaces change seldom, and reviews cannot wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import logs, metrics

log = logging.getLogger("carpool.injector")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts to watch
_READS_AT_ONCE = 16  # of the API server, however many reviews ask

Change = tuple[str, str, Mapping[str, str], Mapping[str, str]]


class Source(Protocol):
    """Where namespaces come from; `kube.Kube` is one."""

    def watch_namespaces(self) -> AsyncIterator[Change]:
        """Type, name, labels and annotations: first ADDED for each namespace there is, then SYNCED once, then changes
        (ADDED, MODIFIED, DELETED). Ends or raises when the connection does; starting again begins anew.
        """

    async def read_namespace(self, name: str) -> model.Namespace:
        """A namespace as it is now; raises anything when there is none or it cannot be read."""


class Namespaces:
    """The cache. Start `follow` in a task; `get` works from the beginning, if slowly."""

    def __init__(self, source: Source, counts: metrics.Metrics, read_timeout: float = 2.0) -> None:
        self._source = source
        self._counts = counts
        self._read_timeout = read_timeout
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        # All mutable state: what the watch told, and whether it told all.
        self._known: dict[str, model.Namespace] = {}
        self._synced = False
        counts.watch(counts.namespaces_synced, lambda: float(self._synced))

    def missing(self) -> str:
        """What readiness has to wait for; "" once all namespaces are known."""
        return "" if self._synced else "the namespaces are not known yet: may the injector list and watch them?"

    async def get(self, name: str) -> model.Namespace:
        """The namespace of this name; raises review.Unanswerable when it is not known and cannot be read in time."""
        known = self._known.get(name)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(self._read_timeout), self._reads:
                found = await self._source.read_namespace(name)
        except Exception as error:
            self._counts.namespace_reads.labels("failed").inc()
            late = f"no answer within {self._read_timeout:g} s"
            reason = late if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            raise review.Unanswerable(f"namespace {name[:100]!r} could not be read: {reason:.300}") from error
        self._counts.namespace_reads.labels("read").inc()
        return found

    async def follow(self) -> None:
        """Keeps the cache right, until cancelled; a watch that ends is begun again, later and later if it fails."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if await self._follow_once():
                    pause = _FIRST_PAUSE
            except Exception as error:
                facts = logs.facts(error=f"{type(error).__name__}: {error}"[:300], again_in_seconds=pause)
                log.warning("the watch of namespaces broke", extra=facts)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _follow_once(self) -> bool:
        """One watch, to its end; says whether it told of all namespaces."""
        seen: set[str] = set()
        complete = False
        async for change, name, labels, texts in self._source.watch_namespaces():
            if change in ("ADDED", "MODIFIED"):
                seen.add(name)
                self._known[name] = model.Namespace(name, labels, texts)
            elif change == "DELETED":
                self._known.pop(name, None)
            elif change == "SYNCED":
                complete = self._synced = True
                for gone in self._known.keys() - seen:  # deleted while nobody watched
                    del self._known[gone]
        return complete
