"""A predictor that speaks gRPC: the channel to it, what its failures mean, batches, and questions about its models."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2

from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_grpc import metadata, statuses, tensors
from carpool_sidecar.upstream import grpc_channels, model_questions

log = logging.getLogger("carpool.sidecar.upstream")

Outcome = interface.UpstreamResponse | errors.UpstreamError

_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 1000

# gRPC has one status for all of this. Only its details tell what happened, and they begin like this.
_UNREACHABLE = re.compile(r"failed to connect to all addr|DNS resolution failed|connections to all backends failing")
_CLOSED = re.compile(
    r"Stream removed|Socket closed|Connection reset|End of TCP stream|Broken pipe|Cancelling all calls"
)

# Left out where they cannot be metadata; no request fails for these.
_DISPENSABLE = frozenset(("x-request-id", "traceparent", "tracestate"))

# How servers answer a question that they do not know, and a name: Triton's way is the last.
_NOT_OFFERED = (statuses.UNIMPLEMENTED, statuses.NOT_FOUND)
_NO_SUCH_MODEL = (statuses.NOT_FOUND, statuses.INVALID_ARGUMENT, statuses.UNAVAILABLE)


def open_channel(address: str, connect_timeout: float, max_message_bytes: int) -> Any:
    """A channel to a predictor in this pod; to be called within a running event loop.

    `connect_timeout` is in seconds. A predictor that comes back after it was away is found within a second.
    """
    options = (
        ("grpc.enable_http_proxy", 0),  # the predictor is in this pod, whatever http_proxy says
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),  # what callers may send was checked when it came in
        ("grpc.max_receive_message_length", min(max_message_bytes, 2**31 - 1)),
        ("grpc.max_metadata_size", 64 * 1024),
        ("grpc.http2.bdp_probe", 0),  # keeps small the window for messages that nobody has asked for
        ("grpc.initial_reconnect_backoff_ms", _FIRST_PAUSE_MS),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_PAUSE_MS),
        ("grpc.min_reconnect_backoff_ms", round(connect_timeout * 1000)),  # how long connecting may take
        ("grpc.enable_retries", 0),  # the scheduler decides what is sent again
        ("grpc.primary_user_agent", "carpool"),
    )
    return grpc_channels.open_channel(address, options)


def failure(error: Any, channel: Any) -> errors.UpstreamError:
    """What an `AioRpcError` of this channel means; the caller has to recognize its own deadline itself."""
    number, words = error.code().value[0], error.details() or ""
    if number == statuses.UNAVAILABLE:
        if _UNREACHABLE.match(words):
            return errors.UpstreamUnreachable(f"the predictor cannot be reached: {words}")
        # A predictor that answers UNAVAILABLE itself leaves the connection open.
        if _CLOSED.match(words) or channel.get_state() is not grpc.ChannelConnectivity.READY:
            return errors.UpstreamClosed()
    if number == statuses.RESOURCE_EXHAUSTED and "CLIENT: Received message larger than max" in words:
        return errors.UpstreamBroken(f"the predictor's answer is too large: {words}")
    return statuses.failure(number, words, tuple(error.trailing_metadata() or ()))


class PostedCall:
    """A message that was posted."""

    # State: _reply until there is an outcome, or nobody wants one.
    __slots__ = ("_reply", "task")

    def __init__(self, reply: Callable[[Outcome], None]) -> None:
        self._reply: Callable[[Outcome], None] | None = reply
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Break it off, without a reply; does nothing once there was one."""
        if self._reply is not None and self.task is not None:
            self._reply = None
            self.task.cancel()

    def finish(self, outcome: Outcome) -> None:
        """Hand over the outcome."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(outcome)


class GrpcPredictor:
    """Calls the predictor's methods with messages that are bytes already, and asks about its models.

    `address` is its host and port, `connect_timeout` is in seconds; an answer of more than `max_message_bytes` is
    refused. `on_bug` is called when a call fails because of a bug, which is in the log. To be made and used within a
    running event loop.
    """

    # State: the channel; the calls that are out; the methods that were called.
    def __init__(
        self,
        address: str,
        connect_timeout: float,
        max_message_bytes: int,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_bug = on_bug
        self.channel = open_channel(address, connect_timeout, max_message_bytes)
        self._out: set[PostedCall] = set()
        self._methods: dict[str, Any] = {}

    def post(
        self,
        target: str,
        headers: calls.Headers,
        body: calls.Pieces,
        timeout: float,
        reply: Callable[[Outcome], None],
    ) -> PostedCall:
        """Call the method `target` with one message, and `headers` as its metadata; returns what can be cancelled.

        `reply` is called once, after this has returned, from the event loop: with the answer's message,
        `errors.UpstreamRpcStatus` for any status but OK, or another `errors.UpstreamError` if the predictor cannot be
        reached, breaks off, or takes more than `timeout` seconds. Raises `errors.BadRequest` for headers that cannot
        be metadata.
        """
        method = self._methods.get(target)
        if method is None:  # there are one or two
            method = self._methods[target] = self.channel.unary_unary(target)
        posted = PostedCall(reply)
        running = self._run(posted, method, b"".join(body), _metadata(headers), timeout)
        posted.task = asyncio.get_running_loop().create_task(running, name="call the predictor")
        self._out.add(posted)
        posted.task.add_done_callback(lambda _: self._over(posted))
        return posted

    async def close(self) -> None:
        """Close the connections; calls that are out fail."""
        out = list(self._out)
        for posted in out:
            posted.finish(errors.UpstreamClosed())
            if posted.task is not None:
                posted.task.cancel()
        await asyncio.gather(*[posted.task for posted in out if posted.task], return_exceptions=True)
        await self.channel.close()

    def _over(self, posted: PostedCall) -> None:
        self._out.discard(posted)
        posted.task = None  # it keeps the exception that ended it, whose frames keep the message and the call

    async def _run(
        self, posted: PostedCall, method: Any, message: bytes, sent: metadata.Metadata, timeout: float
    ) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        try:
            outcome: Outcome = interface.UpstreamResponse(await method(message, timeout=timeout, metadata=sent), {})
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and clock() >= deadline - 0.005
            outcome = errors.UpstreamTimeout() if is_late else failure(error, self.channel)
        except Exception:
            self._on_bug()
            log.exception("a call to the predictor failed for a reason that is a bug")
            outcome = errors.UpstreamBroken("the predictor could not be called")
        posted.finish(outcome)

    # --- questions about models: Triton's ModelConfig and RepositoryIndex, and the v2 protocol's ----------------------

    async def model_info(self, name: models.ModelName) -> models.ModelInfo:
        """What the predictor tells of a model; raises `errors.UpstreamError`."""
        told = await self._ask("ModelMetadata", name=name.name, version=name.version)
        try:
            config = (await self._ask("ModelConfig", name=name.name, version=name.version)).config
        except errors.UpstreamRpcStatus as error:
            if error.code not in _NOT_OFFERED:
                raise
            return model_questions.model_info(_json(told))
        return model_questions.model_info(_json(told), _json(config))

    async def model_ready(self, name: models.ModelName) -> bool:
        """Whether a model takes requests now; False, too, if there is no such model. Raises `errors.UpstreamError`."""
        try:
            return bool((await self._ask("ModelReady", name=name.name, version=name.version)).ready)
        except errors.UpstreamRpcStatus as error:
            if error.code not in _NO_SUCH_MODEL:
                raise
            return False

    async def models(self) -> list[str]:
        """Names of the models that are ready, each once, by Triton's index; raises `errors.UpstreamError`."""
        index = await self._ask("RepositoryIndex", ready=True)
        return list(dict.fromkeys([each.name for each in index.models]))

    async def _ask(self, method: str, **words: Any) -> Any:
        request = getattr(service_pb2, f"{method}Request")(**words)
        ask = self.channel.unary_unary(tensors.SERVICE + method)
        try:
            answer = await ask(request.SerializeToString(), timeout=model_questions.TIMEOUT)
            return getattr(service_pb2, f"{method}Response").FromString(answer)
        except grpc.aio.AioRpcError as error:
            raise failure(error, self.channel) from None
        except protobuf.DecodeError:
            raise errors.UpstreamBroken(f"the predictor's answer to {method} is not a {method}Response") from None


def _json(message: Any) -> str:
    return str(
        json_format.MessageToJson(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None
        )
    )


def _metadata(headers: calls.Headers) -> metadata.Metadata:
    fields = [(name.lower(), value.encode()) for name, value in headers]
    return metadata.read(
        [(name.encode(), value) for name, value in fields if name not in _DISPENSABLE or metadata.is_text(value)]
    )
