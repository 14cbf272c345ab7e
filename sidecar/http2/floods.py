"""How often a client may do what is cheap for it and not for us."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """So many in a row, and one more for every `interval` seconds since."""

    __slots__ = ("_clock", "_interval", "_left", "_most", "_since")

    def __init__(self, most: int, interval: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._interval = interval
        self._clock = clock
        self._left = float(most)
        self._since = clock()

    def take(self) -> bool:
        """One more; False if that is one too many."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._since) / self._interval) - 1
        self._since = now
        return self._left >= 0
