"""How often a client may do what is cheap for it and not for us."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """So many in a row, one more for every `interval` seconds since, and as many as the client has earned."""

    # State: what is left of those in a row, and since when; how much of what was earned is used.
    __slots__ = ("_clock", "_interval", "_left", "_most", "_since", "_used")

    def __init__(self, most: int, interval: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._interval = interval
        self._clock = clock
        self._left = float(most)
        self._since = clock()
        self._used = 0

    def take(self, count: int = 1, earned: int = 0) -> bool:
        """So many more; False if that is too many. `earned` is all that the client has earned since it came."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._since) / self._interval)
        self._since = now
        if count <= self._left:
            self._left -= count
            return True
        self._used += count
        return self._used <= earned
