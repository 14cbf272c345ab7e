"""The body of a plain predict request that comes in parts."""

from __future__ import annotations

from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import v1

_LITTLE = 4 * 1024  # bytes: smaller parts cost more each than to be put together
_PUT_TOGETHER = 16 * 1024


class PartialBody:
    """A body on its way: the bytes of its head, the parts that are here, and how many bytes are missing.

    `scan` looks through the parts of a large one as they come; at once it would take too long. Little parts are put
    together, so that a client who sends a few bytes at a time gets no object for each of them.
    """

    # State: _parts, and _little, what came behind them and is to be put together.
    __slots__ = ("_little", "_parts", "head", "missing", "received", "scan", "started", "text")

    def __init__(self, text: bytes, head: calls.Head, length: int, started: float, scan: v1.RequestScan | None) -> None:
        self.text = text
        self.head = head
        self._parts: list[bytes] = []
        self._little = bytearray()
        self.received = 0
        self.missing = length
        self.started = started
        self.scan = scan

    def add(self, part: bytes) -> None:
        """More of it came."""
        little = self._little
        if len(part) >= _LITTLE:
            if little:
                self._put_together()
            self._parts.append(part)
        elif part:
            little += part
            if len(little) >= _PUT_TOGETHER:
                self._put_together()
        self.received += len(part)
        self.missing -= len(part)
        if self.scan is not None and part:
            self.scan.feed(part)

    def take(self) -> list[bytes]:
        """All that is here, in parts none of which is empty; they are the caller's."""
        if self._little:
            self._put_together()
        parts, self._parts = self._parts, []
        return parts

    def _put_together(self) -> None:
        self._parts.append(bytes(self._little))
        self._little = bytearray()
