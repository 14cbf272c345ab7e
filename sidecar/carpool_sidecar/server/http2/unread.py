"""Answers that clients have not taken yet: counted as memory, and bounded.

A client decides by its windows when its answers leave, and nothing makes it read. What waits for it counts together
with the bodies of requests, so that a full memory refuses new work; and a client that reads too slowly loses what
waits, sooner when memory is short.
"""

from __future__ import annotations

from typing import Protocol

LARGE = 64 * 1024
"""Bytes after which it is worth telling that memory may be given back."""

_ALWAYS = 1024 * 1024
"""Bytes that may wait for any client, however little memory is left."""

_MUCH = 8 * 1024 * 1024
"""Bytes that wait for a client before its streams are asked for no more; see `Unread.is_much`."""

_SHORT_PATIENCE = 2.0
"""Seconds that a client may read nothing when memory is short."""


class Memory(Protocol):
    """The memory for bodies, shared with whoever else keeps some."""

    buffered_bytes: int
    max_buffered_bytes: int

    def on_large_body(self) -> None:
        """A large body or answer came, or is gone."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be held."""
        ...


class Unlimited:
    """A memory that counts and never ends."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.max_buffered_bytes = 2**62

    def on_large_body(self) -> None:
        """Nothing is to be given back."""

    def has_room(self, size: int) -> bool:
        """Yes."""
        return True


class Unread:
    """What waits for one client, in bytes. `slowest` is how many it has to take in a second."""

    __slots__ = ("_memory", "_slowest", "size")

    def __init__(self, memory: Memory, slowest: int) -> None:
        self._memory = memory
        self._slowest = slowest
        self.size = 0

    def keep(self, size: int) -> None:
        """So much more waits."""
        self.size += size
        self._memory.buffered_bytes += size

    def release(self, size: int) -> None:
        """So much does not wait any more."""
        self.size -= size
        self._memory.buffered_bytes -= size
        if size > LARGE:
            self._memory.on_large_body()

    @property
    def is_too_much(self) -> bool:
        """Whether no more may wait for this client: the memory is full, and it has its part in that."""
        return self.size > _ALWAYS and not self._memory.has_room(0)

    @property
    def is_much(self) -> bool:
        """Whether whoever can wait should bring no more for this client, on none of its streams."""
        return self.size >= _MUCH

    @property
    def is_little_again(self) -> bool:
        """Whether they may go on."""
        return self.size <= _MUCH // 2

    @property
    def is_memory_short(self) -> bool:
        """Whether slow clients are a burden to others."""
        memory = self._memory
        return not memory.has_room(memory.max_buffered_bytes // 2)

    def is_slow(self, seconds: float, taken: int, patience: float) -> bool:
        """Whether a client that took so many bytes in so many seconds, in which there were more to take, is too slow.

        `patience` are the seconds that it has anyway, if there is memory enough.
        """
        if self.is_memory_short:
            patience = min(patience, _SHORT_PATIENCE)
        return seconds > patience + taken / self._slowest

    def is_stopped(self, seconds: float, patience: float) -> bool:
        """Whether a client for whom it has been too much for so long, at a stretch, is too slow."""
        return self.is_slow(seconds - _MUCH / self._slowest, 0, patience)
