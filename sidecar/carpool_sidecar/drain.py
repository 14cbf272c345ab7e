"""From SIGTERM to exit: announce, stay open for a while, refuse, finish what was accepted, leave.

Kubernetes sends SIGTERM and removes the pod from its endpoints at the same time; requests keep coming until every
proxy has heard of it. So readiness turns first, and for a quiet period everything is still served. How long proxies
take depends on how busy the cluster is; that requests still come after the quiet period tells that one has not heard.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from carpool.scheduling import ledger
from carpool_sidecar import errors
from carpool_sidecar.batching import driver

log = logging.getLogger("carpool.sidecar.drain")

# After the quiet period the pod counts as forgotten once no request has come for so long.
_FORGOTTEN_SECONDS = 2.0
# Clients who answer are gone after one, and the others are not waited for.
_TURNING_AWAY_SECONDS = 2.0
# However long the quiet period was asked for, so much of the time is left to answer what was accepted in it.
_ANSWERING_SECONDS = 2.0


class Phase(enum.Enum):
    """Where the process is in its life; only ever moves forward."""

    SERVING = "serving"
    QUIET = "quiet"  # shutting down is announced, requests are still served
    REFUSING = "refusing"  # nothing new is taken, what was accepted is being answered
    DRAINED = "drained"


class Lifecycle:
    """Knows the phase and the number of requests in the house, and leads the way out."""

    def __init__(self, requests: ledger.Ledger | None = None) -> None:
        self.phase = Phase.SERVING
        self.draining = False
        """Whether shutdown began: readiness is off."""
        self.ledger = ledger.Ledger() if requests is None else requests
        """Counts the requests that are being handled."""
        self._latest = -math.inf  # when a request last came in the quiet period, by the loop's clock
        self._hurry = asyncio.Event()
        self._begun = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        """Raises `errors.Draining` once new work is refused."""
        if self.phase in (Phase.REFUSING, Phase.DRAINED):
            raise errors.Draining
        if self.phase is Phase.QUIET:
            self._latest = asyncio.get_running_loop().time()

    @property
    def active(self) -> int:
        """Requests being handled now."""
        return self.ledger.active

    def enter(self) -> None:
        """A request is being handled; call `leave` when it is not any more."""
        self.ledger.active += 1

    def leave(self) -> None:
        """The counterpart of `enter`."""
        self.ledger.active -= 1
        if not self.ledger.active:
            self.ledger.on_idle()

    def hurry(self) -> None:
        """Skip what is left of the quiet period."""
        self._hurry.set()

    async def drain(
        self,
        calls_driver: driver.Driver,
        quiet_period: float,
        longest: float,
        turn_away: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Go through the quiet period (seconds), then refuse; return when all requests have been dealt with.

        While requests keep coming the quiet period lasts longer, up to `longest` seconds, half of the time that there
        is for all of this; one of 0 does not. It is cut short where it would leave no time to turn callers away and
        to answer. Before anything is refused, `turn_away` sees to it that callers who can be told so go elsewhere,
        within `longest` and two seconds at most. The end includes streams and upgraded connections, which end when
        their callers please. A second call joins the first, or returns at once when that is over. Raises
        `TimeoutError` if it was abandoned, and what `turn_away` raises or a bug did.
        """
        if self._draining is None:
            self._draining = asyncio.create_task(
                self._drain(calls_driver, quiet_period, longest, turn_away), name="drain"
            )
            self._begun.set()
        await asyncio.wait([self._draining])
        if self._draining.cancelled():
            raise TimeoutError
        self._draining.result()

    async def until_drained(self, patience: float) -> None:
        """Return when the way out is over, one way or the other, or after `patience` seconds in which none began."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._begun.wait()
        if self._draining is not None:
            await asyncio.wait([self._draining])

    async def abandon(self) -> None:
        """Stop waiting: the time is up."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait([self._draining])

    async def _drain(
        self,
        calls_driver: driver.Driver,
        quiet_period: float,
        longest: float,
        turn_away: Callable[[], Awaitable[None]] | None,
    ) -> None:
        at_the_latest = asyncio.get_running_loop().time() + longest
        time_to_turn_away = min(_TURNING_AWAY_SECONDS, longest / 2) if turn_away is not None else 0.0
        time_to_answer = min(_ANSWERING_SECONDS, longest / 2)
        quiet_period = min(quiet_period, 2 * longest - time_to_turn_away - time_to_answer)
        self.phase = Phase.QUIET
        self.draining = True
        log.info("draining: not ready any more, still serving for at least %g s", quiet_period)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), quiet_period)
        if quiet_period:
            await self._until_forgotten(at_the_latest - time_to_turn_away)
        if turn_away is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(time_to_turn_away):
                    await turn_away()
        self.phase = Phase.REFUSING
        log.info("draining: refusing new requests, %d still to answer", self.active)
        await calls_driver.drain()
        await self._until_nobody_is_active()
        self.phase = Phase.DRAINED
        log.info("drained: everything accepted has been answered")

    async def _until_forgotten(self, at_the_latest: float) -> None:
        loop = asyncio.get_running_loop()
        is_told = False
        while not self._hurry.is_set():
            left = min(self._latest + _FORGOTTEN_SECONDS, at_the_latest) - loop.time()
            if left <= 0:
                return
            if not is_told:
                is_told = True
                log.info("draining: requests still come, serving for up to %.3g s more", at_the_latest - loop.time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), left)

    async def _until_nobody_is_active(self) -> None:
        while self.ledger.active:
            nobody = asyncio.Event()
            self.ledger.on_idle = nobody.set
            await nobody.wait()
