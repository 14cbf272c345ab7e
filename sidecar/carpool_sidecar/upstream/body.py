"""A request body that is in memory already, on its way through aiohttp's client."""

from __future__ import annotations

from aiohttp import abc, payload

# Larger writes go out in slices, so that a slow predictor pushes back before all of it sits in the socket's buffer.
_SLICE = 256 * 1024


class KnownBody(payload.Payload):
    """Bytes that are written without a copy of large ones, and without aiohttp's warning about those."""

    _autoclose = True

    def __init__(self, body: bytes) -> None:
        # The type applies where the request names none.
        super().__init__(body, content_type="application/json")
        self._body = body
        self._size = len(body)

    async def write(self, writer: abc.AbstractStreamWriter) -> None:
        view = memoryview(self._body)
        for start in range(0, len(view), _SLICE):
            await writer.write(view[start : start + _SLICE])

    async def write_with_length(self, writer: abc.AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)
