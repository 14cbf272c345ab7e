"""A request body of which the fast lane does not have all bytes yet."""

from __future__ import annotations

from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import incremental_scan


class Body:
    """A body on its way: the bytes of its head, the parts that are here, and how many bytes are missing.

    `scan` looks through the parts of a large one as they come; at once it would take too long.
    """

    __slots__ = ("head", "length", "missing", "parts", "scan", "started", "text")

    def __init__(
        self,
        text: bytes,
        head: calls.Head,
        length: int,
        start: bytes,
        started: float,
        scan: incremental_scan.IncrementalScan | None,
    ) -> None:
        self.text = text
        self.head = head
        self.length = length
        self.parts: list[bytes] = []
        self.missing = length
        self.started = started
        self.scan = scan
        if start:
            self.add(start)

    def add(self, part: bytes) -> None:
        """More of it came."""
        self.parts.append(part)
        self.missing -= len(part)
        if self.scan is not None:
            self.scan.feed(part)

    @property
    def received(self) -> int:
        """How many bytes came."""
        return self.length - self.missing
