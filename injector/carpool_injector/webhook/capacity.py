"""How much may be at work at once: reviews, and bytes of their bodies.

Bodies are held whole, and anyone in the cluster's network can send them: without a bound, a hundred connections could
hold more memory than the pod has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Room:
    """Counts what is taken. Nobody waits here: who finds no room is told so at once."""

    def __init__(self, reviews: int, held_bytes: int) -> None:
        self._reviews = reviews
        self._bytes = held_bytes
        # All mutable state: what is taken now.
        self.taken = 0
        self.taken_bytes = 0

    @contextlib.contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Holds room for a review of so many bytes; raises `Full` if there is none."""
        if self.taken >= self._reviews:
            raise Full(f"{self.taken} reviews are at work already, and more are not taken at once")
        if self.taken_bytes + size > self._bytes:
            raise Full(f"{self.taken_bytes} bytes of reviews are held already; {size} more do not fit")
        self.taken += 1
        self.taken_bytes += size
        try:
            yield
        finally:
            self.taken -= 1
            self.taken_bytes -= size


class Full(Exception):
    """There is no room now; the text says of what."""
