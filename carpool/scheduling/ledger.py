"""What is held in memory, and how many requests are being handled: one count for everybody who keeps something.

Whoever keeps bytes of requests or answers makes a reservation, changes its size as they come and go, and releases it.
Only reservations write the counts, and the scheduler, for which every open request holds its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from carpool import errors
from carpool.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Ledger:
    """`held` is how many bytes are held, `active` how many requests are being handled.

    New work is refused once `limit` bytes are held; what was let in may go beyond it. A reservation that shrinks by
    more than `large` bytes at once calls `on_large`, and `on_idle` is called when `active` falls to 0.
    """

    __slots__ = ("active", "held", "large", "limit", "on_idle", "on_large")

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.held = 0
        self.active = 0
        self.large = math.inf
        self.on_large: Callable[[], None] | None = None
        self.on_idle: Callable[[], None] | None = None

    def has_room(self, size: float) -> bool:
        """Whether so many bytes more may be held."""
        return self.held + size <= self.limit

    def check_room(self, size: float) -> None:
        """Raises `errors.MemoryFull` unless there is room for so many bytes more."""
        if self.held + size > self.limit:
            raise errors.MemoryFull

    def reserve(self, size: int = 0, requests: int = 0) -> Reservation:
        """Hold so many bytes, and handle so many requests, until the reservation is released. Never refuses."""
        return Reservation(self, size, requests)


@mypyc_attr(allow_interpreted_subclasses=True)
class Reservation:
    """Bytes and requests of one holder, in a ledger. It may be used again after its release.

    As a context manager it is released at the end. Classes may inherit from it, to spare an object for each request.
    """

    __slots__ = ("_ledger", "_requests", "_size")

    def __init__(self, ledger: Ledger, size: int = 0, requests: int = 0) -> None:
        self._ledger = ledger
        self._size = size
        self._requests = requests
        ledger.held += size
        ledger.active += requests

    @property
    def size(self) -> int:
        """Bytes reserved now."""
        return self._size

    @property
    def requests(self) -> int:
        """Requests counted now."""
        return self._requests

    def add(self, size: int, requests: int = 0) -> None:
        """Hold so many bytes more, and count so many requests more; fewer, where these are negative."""
        ledger = self._ledger
        self._size += size
        self._requests += requests
        ledger.held += size
        ledger.active += requests
        if -size > ledger.large and ledger.on_large is not None:
            ledger.on_large()
        if requests < 0 and not ledger.active and ledger.on_idle is not None:
            ledger.on_idle()

    def resize(self, size: int) -> None:
        """Hold exactly so many bytes from now on."""
        self.add(size - self._size)

    def release(self) -> None:
        """Give all of it back; does nothing when that has happened."""
        self.add(-self._size, -self._requests)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
