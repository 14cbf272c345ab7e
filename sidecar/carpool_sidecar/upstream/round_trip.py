"""How long a round trip to the predictor takes when there is nothing to compute.

The adaptive policy sends the next batch so much before the predictor runs dry. It learns this from batches as well;
measuring it once makes small and quiet systems good from their first batches on.
"""

from __future__ import annotations

import contextlib
import time

import aiohttp
import yarl

from carpool_sidecar.upstream import readiness

_TRIES = 5
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


async def measure(base: yarl.URL) -> float | None:
    """The shortest of a few requests for `/` in seconds, whatever their status; None if there was no answer.

    The first pays for the connection and does not count.
    """
    shortest = None
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with aiohttp.ClientSession(timeout=_TIMEOUT, headers={"User-Agent": readiness.USER_AGENT}) as session:
            for number in range(_TRIES + 1):
                started = time.perf_counter()
                async with session.get(base / "", allow_redirects=False) as response:
                    await response.read()
                if number:
                    shortest = min(shortest or float("inf"), time.perf_counter() - started)
    return shortest
