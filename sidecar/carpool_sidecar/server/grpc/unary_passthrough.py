"""One message passed through for one answer, which takes half the time of a call of any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carpool_sidecar.protocols.v2_grpc import metadata, statuses
from carpool_sidecar.server.grpc import arrivals, framing, passthrough, replies
from carpool_sidecar.server.http2 import streams


class Alone(passthrough.Passage):
    """A call of a unary method whose message is there."""

    # State beside the base's: whether its answer is among those that are read whole.

    def __init__(
        self,
        stream: streams.Stream,
        content_type: bytes,
        arrival: arrivals.Arrival,
        ended: Callable[[int | None], None],
        message: bytes,
    ) -> None:
        super().__init__(stream, content_type, arrival, ended)
        self._message = message
        self._is_whole = True
        self._is_counted = False

    def begin(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> Any:
        """Part of `relay.Passage`.

        An answer that is read whole at once cannot be kept waiting, so only a caller who reads gets some that way.
        """
        message, self._message = self._message, b""
        self._is_counted = not self._stream.is_blocked and self.gate.try_whole()
        kind = channel.unary_unary if self._is_counted else channel.unary_stream
        return kind(path)(message, metadata=sent, timeout=timeout)

    async def exchange(self, call: Any) -> None:
        """Part of `relay.Passage`."""
        if not self._is_counted:
            await self._receive(call)
            return
        answer = framing.frame((await call,))
        head = replies.head(self._content_type) + metadata.write(await call.initial_metadata() or ())
        last = replies.OK + metadata.write(await call.trailing_metadata() or ())
        if not self._is_over:
            self._stream.answer(head, answer, last)
            self._finish(statuses.OK)

    def over(self, ended: object) -> None:
        """See `relay.Passage`."""
        if self._is_counted:
            self.gate.end_whole()
        super().over(ended)
