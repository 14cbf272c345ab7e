"""Work that is done again and again for as long as the program runs, and again soon where it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

_MOST_DOUBLINGS = 10


async def repeat(
    step: Callable[[], Awaitable[float]],
    failed: Callable[[Exception, float], object],
    *,
    first: float,
    longest: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Does `step` for ever; it returns the seconds until it is due again. Ends only by cancellation.

    What it raises is handed to `failed`, with the seconds until the next try: `first`, and twice as many after each
    failure in a row, `longest` at the most.
    """
    failures = 0
    while True:
        try:
            pause = await step()
            failures = 0
        except Exception as error:
            pause = min(first * 2 ** min(failures, _MOST_DOUBLINGS), longest)
            failures += 1
            failed(error, pause)
        await sleep(pause)
