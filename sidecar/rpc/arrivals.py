"""The messages of one call on their way in, counted as memory and kept within its limits."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar import errors
from sidecar.rpc import framing, parts


class Arrival:
    """Unframes the data of one stream. `held` bytes of it count in `room` until they are released."""

    __slots__ = ("_room", "_unframer", "held")

    def __init__(self, room: parts.Room, encoding: bytes | None) -> None:
        self._room = room
        self._unframer = framing.Unframer(room.max_body_bytes, encoding)
        self.held = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The messages that are complete now.

        Raises `errors.Overloaded`, `errors.PayloadTooLarge` and `statuses.Fault`; the stream is of no use after that.
        """
        if not self._room.has_room(len(data)):
            raise errors.MemoryFull
        before = self._unframer.held
        messages = self._unframer.feed(data)
        self._count(self._unframer.held - before + sum(map(len, messages)))
        return messages

    @property
    def is_incomplete(self) -> bool:
        """Whether a message has begun to arrive that is not all here."""
        return self._unframer.held > 0

    def end(self) -> None:
        """No more data; raises `statuses.Fault` in the middle of a message."""
        self._unframer.end()

    def release(self, size: int) -> None:
        """A message of so many bytes is dealt with; does nothing after `release_all`."""
        self._count(-min(size, self.held))

    def release_all(self) -> None:
        """Nothing of it is kept any more."""
        self._count(-self.held)

    def _count(self, size: int) -> None:
        self.held += size
        self._room.buffered_bytes += size
