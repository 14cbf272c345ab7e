"""A message that differs from an earlier one in the bytes of its tensors alone is recognised, not read.

Clients send the same request again and again with other numbers in it. What an earlier message said in front of its
tensors, byte for byte, says the same in the next one, so nothing but the tensors has to be cut out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

from carpool_sidecar import caches
from carpool_sidecar.protocols.v2_grpc import messages, tensors

_LARGEST: Final = 16 * 1024  # bytes of a message that is worth it: reading a larger one costs little beside its bytes
_LONGEST_BEGINNING: Final = 2 * 1024
_MOST_KNOWN: Final = 512 * 1024  # bytes of all outlines
_MOST_ALIKE: Final = 4  # outlines of one size

_NO_ENDS: Final[Mapping[int, Sequence[int]]] = {}

T = TypeVar("T")


class Outline:
    """One message without an id: what is in front of its raw tensors, and where they are."""

    __slots__ = ("_beginning", "_more", "_start", "_stop", "_template", "cost", "size")

    def __init__(
        self,
        beginning: bytes,
        size: int,
        places: Sequence[tuple[bytes, int, int]],
        template: messages.MessageTemplate,
    ) -> None:
        """`beginning` ends where the first tensor begins. `places` are what is in front of each tensor, its start and
        its stop; the message has `size` bytes."""
        self.size = size
        self._beginning = beginning
        _, self._start, self._stop = places[0]
        self._more = places[1:]
        self.cost = len(beginning) + sum([len(mark) for mark, _, _ in self._more])
        self._template = template

    def read(self, body: bytes) -> messages.Message | None:
        """The message that `body` is if it fits."""
        if len(body) != self.size or not body.startswith(self._beginning):
            return None
        raw: list[bytes | memoryview] = [body[self._start : self._stop]]
        for mark, start, stop in self._more:
            if not body.startswith(mark, start - len(mark)):
                return None
            raw.append(body[start:stop])
        return messages.Message(self._template, b"", raw, _NO_ENDS, False)


def outline(body: bytes, message: messages.Message) -> Outline | None:
    """The outline of a request that was read; None where none is worth it, or where tensors do not end the message."""
    sizes = message.template.sizes
    if message.is_listed or message.id or message.ends or not message.raw or len(body) > _LARGEST:
        return None
    places: list[tuple[bytes, int, int]] = []
    at = len(body)
    for data, size in zip(reversed(message.raw), reversed(sizes), strict=True):
        mark = tensors.start(messages.RAW_INPUT, len(data))
        start = at - len(data)
        if size != len(data) or body[start - len(mark) : at] != mark + bytes(data):
            return None
        places.append((mark, start, at))
        at = start - len(mark)
    places.reverse()
    if places[0][1] > _LONGEST_BEGINNING:
        return None
    return Outline(body[: places[0][1]], len(body), places, message.template)


class Outlines(Generic[T]):
    """Outlines of the latest messages, each with something that goes with it.

    Callers choose what they send, so there is a limit: what is full forgets everything.
    """

    # State: the outlines, by the size of their messages, those of one size newest first.
    def __init__(self) -> None:
        self._known: caches.Cache[int, tuple[tuple[Outline, T], ...]] = caches.Cache("v2_grpc_outlines", _MOST_KNOWN)

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def find(self, body: bytes) -> tuple[messages.Message, T] | None:
        """The message that `body` is, and what goes with the outline that it fits."""
        for outline, about in self._known.get(len(body), ()):
            message = outline.read(body)
            if message is not None:
                return message, about
        return None

    def put(self, body: bytes, found: Outline, about: T) -> None:
        """Remember the outline of a message."""
        before = [pair for pair in self._known.get(len(body), ()) if not pair[0].read(body)]
        alike = ((found, about), *before[: _MOST_ALIKE - 1])
        self._known.put(len(body), alike, sum([outline.cost + caches.ENTRY for outline, _ in alike]))
