"""Batches over gRPC to the predictor beside us."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc.aio

from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import metadata
from carpool_sidecar.upstream import grpc_channel, grpc_questions

log = logging.getLogger("carpool.sidecar.upstream")

Outcome = interface.UpstreamResponse | errors.UpstreamError

# Left out where they cannot be metadata; no request fails for these.
_DISPENSABLE = frozenset(("x-request-id", "traceparent", "tracestate"))


class Exchange:
    """A message that was posted."""

    # State: _reply until there is an outcome, or nobody wants it.
    __slots__ = ("_reply", "task")

    def __init__(self, reply: Callable[[Outcome], None]) -> None:
        self._reply: Callable[[Outcome], None] | None = reply
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Break it off, without a reply; does nothing once there was one."""
        if self._reply is not None and self.task is not None:
            self._reply = None
            self.task.cancel()

    def settle(self, outcome: Outcome) -> None:
        """Hand over the outcome."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(outcome)


class GrpcPredictor:
    """Calls the predictor's methods with messages that are bytes already.

    `address` is its host and port, `connect_timeout` is in seconds; an answer of more than `max_message_bytes` is
    refused. `on_bug` is called when a call fails by a bug, which is in the log. To be made and used from
    within a running event loop.
    """

    # State: the channel; the exchanges that are out.
    def __init__(
        self,
        address: str,
        connect_timeout: float,
        max_message_bytes: int,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_bug = on_bug
        self.channel = grpc_channel.open_channel(address, connect_timeout, max_message_bytes)
        self._out: set[Exchange] = set()
        self._methods: dict[str, Any] = {}

    def post(
        self,
        target: str,
        headers: calls.Headers,
        body: calls.Pieces,
        timeout: float,
        reply: Callable[[Outcome], None],
    ) -> Exchange:
        """Call the method `target` with one message, and `headers` as its metadata. The exchange is for `cancel`.

        `reply` is called once, after this has returned, from the event loop: with the answer's message,
        `errors.UpstreamRpcStatus` for any status but OK, or another `errors.UpstreamError` if the predictor cannot be
        reached, breaks off, or takes more than `timeout` seconds. Raises `errors.BadRequest` for headers that cannot
        be metadata.
        """
        sent = _metadata(headers)
        exchange = Exchange(reply)
        running = self._run(exchange, self._method(target), b"".join(body), sent, timeout)
        exchange.task = asyncio.get_running_loop().create_task(running, name="call the predictor")
        self._out.add(exchange)
        exchange.task.add_done_callback(lambda _: self._over(exchange))
        return exchange

    async def model_info(self, name: models.ModelName) -> models.ModelInfo:
        """What the predictor tells of a model; raises `errors.UpstreamError`."""
        return await grpc_questions.model_info(self.channel, name)

    async def is_ready(self) -> bool:
        """Whether the predictor takes requests."""
        return await grpc_questions.is_ready(self.channel)

    async def model_ready(self, name: models.ModelName) -> bool:
        """Whether a model takes requests now; no, too, if there is no such model. Raises `errors.UpstreamError`."""
        return await grpc_questions.model_ready(self.channel, name)

    async def models(self) -> list[str]:
        """Names of the models that are ready, by Triton's repository index; raises `errors.UpstreamError`."""
        return await grpc_questions.ready_models(self.channel)

    async def close(self) -> None:
        """Close the connections; exchanges that are out fail."""
        out = list(self._out)
        for exchange in out:
            exchange.settle(errors.UpstreamClosed())
            if exchange.task is not None:
                exchange.task.cancel()
        await asyncio.gather(*[exchange.task for exchange in out if exchange.task], return_exceptions=True)
        await self.channel.close()

    def _over(self, exchange: Exchange) -> None:
        self._out.discard(exchange)
        exchange.task = None  # it keeps the exception that ended it, whose frames keep the message and the exchange

    def _method(self, target: str) -> Any:
        method = self._methods.get(target)
        if method is None:  # there is one, or two
            method = self._methods[target] = self.channel.unary_unary(target)
        return method

    async def _run(
        self, exchange: Exchange, method: Any, message: bytes, sent: metadata.Metadata, timeout: float
    ) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        try:
            outcome: Outcome = interface.UpstreamResponse(await method(message, timeout=timeout, metadata=sent), {})
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and clock() >= deadline - 0.005
            outcome = errors.UpstreamTimeout() if is_late else grpc_channel.failure(error, self.channel)
        except Exception:
            self._on_bug()
            log.exception("a call to the predictor failed for a reason that is a bug")
            outcome = errors.UpstreamBroken("the predictor could not be called")
        exchange.settle(outcome)


def _metadata(headers: calls.Headers) -> metadata.Metadata:
    fields = [(name.lower(), value.encode()) for name, value in headers]
    return metadata.read(
        [(name.encode(), value) for name, value in fields if name not in _DISPENSABLE or metadata.is_text(value)]
    )
