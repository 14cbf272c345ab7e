"""How long to pause before starting a dead worker again: not at all patient at first, then more and more."""

from __future__ import annotations


class Backoff:
    """Pauses that double from `first` to `most` seconds, and start over after `healthy` seconds of service."""

    def __init__(self, first: float = 0.1, most: float = 10.0, healthy: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._healthy = healthy
        self._next = first

    def after(self, served: float) -> float:
        """The pause after a worker that was ready for `served` seconds."""
        if served >= self._healthy:
            self._next = self._first
        pause, self._next = self._next, min(self._most, self._next * 2)
        return pause
