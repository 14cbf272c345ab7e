"""Request bodies that are in memory already, on their way to the predictor."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import abc, payload

# Larger writes go out in slices, so that a slow predictor pushes back before all of it sits in the socket's buffer.
_SLICE = 256 * 1024

# Pieces that are smaller than this on average are joined first: a copy is cheaper than that many writes.
_WORTH_A_WRITE = 16 * 1024


class PiecewiseBody(payload.Payload):
    """Buffers that are written one after the other: no copy of large ones, and no warning of aiohttp's about them."""

    _autoclose = True

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        size = sum(map(len, pieces))
        if size < _WORTH_A_WRITE * len(pieces):
            pieces = (b"".join(pieces),)
        # The type applies where the request names none.
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces
        self._size = size

    async def write(self, writer: abc.AbstractStreamWriter) -> None:
        for piece in self._pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE):
                await writer.write(view[start : start + _SLICE])

    async def write_with_length(self, writer: abc.AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)
