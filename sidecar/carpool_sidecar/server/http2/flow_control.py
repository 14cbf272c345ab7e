"""Flow control of what a client sends (RFC 9113, sections 5.2 and 6.9)."""

from __future__ import annotations


class Incoming:
    """What a client may still send on a stream or connection, and what it will be granted anew."""

    __slots__ = ("_least_grant", "_owed", "_room")

    def __init__(self, size: int) -> None:
        self._room = size
        self._owed = 0
        self._least_grant = max(1, size // 2)

    def take(self, count: int) -> bool:
        """`count` bytes have come; False if the client had no right to send them."""
        self._room -= count
        return self._room >= 0

    def give_back(self, count: int) -> int:
        """`count` bytes are dealt with. Returns the increment to announce: 0 until half of the window is due."""
        self._owed += count
        if self._owed < self._least_grant:
            return 0
        grant, self._owed = self._owed, 0
        self._room += grant
        return grant
