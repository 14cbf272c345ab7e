"""Shutdown without a lost request: announce it, serve for a while, refuse, answer what was accepted, exit.

Kubernetes sends SIGTERM and removes the pod from its endpoints at the same time, and requests keep coming until every
proxy knows. So readiness turns off first, and for a quiet period everything is still served. How long proxies take
depends on how busy the cluster is: requests that still come after the quiet period tell that one does not know yet.

While endpoints still name the pod, a connection that is closed is opened again, to this pod as likely as to another:
all of them at once, at the worst moment. But one that is kept open ties its client to this pod for good. So answers
close their connections at the end of the quiet period, when a client that connects anew gets elsewhere.
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

log = logging.getLogger("carpool.sidecar.drain")

# After the quiet period all proxies count as told once no request has come for so long.
_SILENCE_SECONDS = 2.0
# The end of the quiet period, in which answers close their connections; half of it if it is shorter than twice that.
_PARTING_SECONDS = 2.0
# Clients that confirm need one second; clients that do not are not waited for.
_TURNING_AWAY_SECONDS = 2.0
# However long a quiet period is asked for, so much of the time is left to answer what was accepted in it.
_ANSWERING_SECONDS = 2.0


class Phase(enum.Enum):
    """How far the shutdown is. It only moves forward."""

    SERVING = "serving"
    QUIET = "quiet"  # the shutdown is announced, requests are still served
    REFUSING = "refusing"  # new requests are refused, accepted ones are being answered
    DRAINED = "drained"


class Lifecycle:
    """Knows the phase and the number of requests being handled, and carries out the shutdown."""

    # State: phase, draining and parting; _latest; _skip and _begun, set once; _draining, the task of the shutdown.
    def __init__(self, requests: ledger.Ledger) -> None:
        self.phase = Phase.SERVING
        self.draining = False
        """Whether the shutdown has begun: readiness is off."""
        self.parting = False
        """Whether connections are closed behind their answers."""
        self.ledger = requests
        """Counts the requests that are being handled."""
        self._latest = -math.inf  # when a request last came in the quiet period, by the loop's clock
        self._skip = asyncio.Event()
        self._begun = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        """Raises `errors.Draining` once new work is refused."""
        if not self.admits():
            raise errors.Draining

    def admits(self) -> bool:
        """Whether a request that comes now is served; to be asked once for each, as the quiet period waits for them."""
        phase = self.phase
        if phase is Phase.SERVING:
            return True
        if phase is not Phase.QUIET:
            return False
        self._latest = asyncio.get_running_loop().time()
        return True

    @property
    def active(self) -> int:
        """Requests being handled now."""
        return self.ledger.active

    def skip_quiet_period(self) -> None:
        """End the quiet period now, or leave it out."""
        self._skip.set()

    async def drain(
        self,
        answer_accepted: Callable[[], Awaitable[None]],
        quiet_period: float,
        longest: float,
        turn_away: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serve for the quiet period (seconds), then refuse requests; return when all have been dealt with.

        Bounds (`longest` is half of the time for the whole shutdown):

        - in the last two seconds of the quiet period, or its second half if it is short, connections are closed behind
          answers, and so they are from then on
        - the quiet period lasts longer while requests keep coming: until `longest` less the time to turn clients away;
          one of 0 is not extended
        - it is never longer than twice `longest`, less the times to turn clients away and to answer
        - `turn_away` gets two seconds, or half of `longest` if that is less
        - at least two seconds are left to answer, or half of `longest` if that is less

        Before anything is refused, `turn_away` tells clients that can be told to go elsewhere. `answer_accepted`
        returns once everything accepted for batching has been answered. Streams and upgraded connections are waited
        for as well; they end when their callers end them.

        A second call joins the first, or returns at once when that is over. Raises `TimeoutError` if the shutdown was
        abandoned, and what `turn_away` or `answer_accepted` raises.
        """
        if self._draining is None:
            shutdown = self._drain(answer_accepted, quiet_period, longest, turn_away)
            self._draining = asyncio.create_task(shutdown, name="drain")
            self._begun.set()
        await asyncio.wait([self._draining])
        if self._draining.cancelled():
            raise TimeoutError
        self._draining.result()

    async def until_drained(self, patience: float) -> None:
        """Return when the shutdown is over, whatever its end, or if none begins within `patience` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._begun.wait()
        if self._draining is not None:
            await asyncio.wait([self._draining])

    async def abandon(self) -> None:
        """End the shutdown now: its time is up."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait([self._draining])

    async def _drain(
        self,
        answer_accepted: Callable[[], Awaitable[None]],
        quiet_period: float,
        longest: float,
        turn_away: Callable[[], Awaitable[None]] | None,
    ) -> None:
        latest_end = asyncio.get_running_loop().time() + longest
        time_to_turn_away = min(_TURNING_AWAY_SECONDS, longest / 2) if turn_away is not None else 0.0
        time_to_answer = min(_ANSWERING_SECONDS, longest / 2)
        quiet_period = min(quiet_period, 2 * longest - time_to_turn_away - time_to_answer)
        self.phase = Phase.QUIET
        self.draining = True
        log.info("draining: not ready any more, still serving for at least %g s", quiet_period)
        parting_time = min(_PARTING_SECONDS, quiet_period / 2)
        for seconds in (quiet_period - parting_time, parting_time):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._skip.wait(), seconds)
            self.parting = True
        if quiet_period:
            await self._until_silence(latest_end - time_to_turn_away)
        if turn_away is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(time_to_turn_away):
                    await turn_away()
        self.phase = Phase.REFUSING
        log.info("draining: refusing new requests, %d still to answer", self.active)
        await answer_accepted()
        await self._until_nobody_is_active()
        self.phase = Phase.DRAINED
        log.info("drained: everything accepted has been answered")

    async def _until_silence(self, latest_end: float) -> None:
        loop = asyncio.get_running_loop()
        is_logged = False
        while not self._skip.is_set():
            left = min(self._latest + _SILENCE_SECONDS, latest_end) - loop.time()
            if left <= 0:
                return
            if not is_logged:
                is_logged = True
                log.info("draining: requests still come, serving for up to %.3g s more", latest_end - loop.time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._skip.wait(), left)

    async def _until_nobody_is_active(self) -> None:
        while self.ledger.active:
            nobody = asyncio.Event()
            self.ledger.on_idle = nobody.set
            await nobody.wait()
