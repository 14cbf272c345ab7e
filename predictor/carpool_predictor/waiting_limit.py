"""The bound on what may wait for one worker, so that a slow model fills its callers' patience and not the memory."""

from __future__ import annotations

from types import TracebackType

from carpool_predictor import errors


class Room:
    """Space for so many calls, and so many bytes of their bodies, between arrival and answer."""

    def __init__(self, calls: int, size: int) -> None:
        # Changed by `Claim` only.
        self.calls = calls
        self.size = size

    def claim(self) -> Claim:
        """Space for one more call, as a context manager that gives it back.

        Raises `errors.TooMuchWaiting` if there is none.
        """
        if self.calls <= 0:
            raise errors.TooMuchWaiting
        return Claim(self)


class Claim:
    """One call's share of a `Room`, growing while its body arrives."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: Room) -> None:
        room.calls -= 1
        self._room = room
        self._size = 0

    def grow(self, size: int) -> None:
        """Take `size` more bytes. Raises `errors.TooMuchWaiting` if there are not so many."""
        if size > self._room.size:
            raise errors.TooMuchWaiting
        self._room.size -= size
        self._size += size

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.calls += 1
        self._room.size += self._size
