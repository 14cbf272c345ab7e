"""One message passed through for one answer, which takes half the time of a call of any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sidecar.http2 import streams
from sidecar.rpc import arrivals, framing, metadata, relay, replies, statuses


class Alone(relay.Passage):
    """A call of a unary method whose message is there."""

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

    def begin(self, channel: Any, path: str, sent: metadata.Metadata, timeout: float | None) -> Any:
        """Part of `relay.Passage`."""
        return channel.unary_unary(path)(self._message, metadata=sent, timeout=timeout)

    async def exchange(self, call: Any) -> None:
        """Part of `relay.Passage`."""
        answer = framing.frame((await call,))
        head = replies.head(self._content_type) + metadata.write(await call.initial_metadata() or ())
        last = replies.OK + metadata.write(await call.trailing_metadata() or ())
        if not self._is_over:
            self._stream.answer(head, answer, last)
            self._finish(statuses.OK)
