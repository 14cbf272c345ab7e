"""How many clients may be connected at once, whichever protocol they speak."""

from __future__ import annotations

import resource
from collections.abc import Callable

_MOST = 10_000
# What the sidecar needs for itself: ports, the way to the predictor, probes.
_OWN_FILES = 64


def usual() -> int:
    """The limit where none was chosen: half of the open files, as a request passed through takes a second, at most
    10,000."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST
    return max(1, min(_MOST, (files - _OWN_FILES) // 2))


class ConnectionLimit:
    """Counts clients that connect and leave. `open` is how many there are; `on_refused` is called for each too many."""

    def __init__(self, most: int, on_refused: Callable[[], None]) -> None:
        self.open = 0
        self._most = most
        self._on_refused = on_refused

    def enter(self) -> bool:
        """A client connected: whether it may stay. If so, `leave` has to be called when it is gone."""
        if self.open >= self._most:
            self._on_refused()
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """The counterpart of `enter`."""
        self.open -= 1
