"""The connection to a predictor that speaks gRPC, and what its failures mean."""

from __future__ import annotations

import re
from typing import Any

import grpc
import grpc.aio

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import statuses

_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 1000

# gRPC has one status for all this; only its words tell what happened. They begin with these.
_UNREACHABLE = re.compile(r"failed to connect to all addr|DNS resolution failed|connections to all backends failing")
_CLOSED = re.compile(
    r"Stream removed|Socket closed|Connection reset|End of TCP stream|Broken pipe|Cancelling all calls"
)


def open_channel(address: str, connect_timeout: float, max_message_bytes: int) -> Any:
    """A channel to a predictor beside us; from within a running event loop.

    `connect_timeout` is in seconds. A predictor that comes back after it was away is found within a second.
    """
    options = (
        ("grpc.enable_http_proxy", 0),  # the predictor is in this pod, whatever http_proxy says
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),  # what callers may send was checked when it came in
        ("grpc.max_receive_message_length", min(max_message_bytes, 2**31 - 1)),
        ("grpc.max_metadata_size", 64 * 1024),
        ("grpc.http2.bdp_probe", 0),  # a window for what was not asked for may stay as small as it is
        ("grpc.initial_reconnect_backoff_ms", _FIRST_PAUSE_MS),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_PAUSE_MS),
        ("grpc.min_reconnect_backoff_ms", round(connect_timeout * 1000)),  # how long connecting may take
        ("grpc.enable_retries", 0),  # trying again is decided elsewhere
        ("grpc.primary_user_agent", "carpool"),
    )
    return grpc.aio.insecure_channel(address, options=options)


def failure(error: Any, channel: Any) -> errors.UpstreamError:
    """What an `AioRpcError` of this channel means; the caller's own deadline is for the caller to recognize."""
    number, words = error.code().value[0], error.details() or ""
    if number == statuses.UNAVAILABLE:
        if _UNREACHABLE.match(words):
            return errors.UpstreamUnreachable(f"the predictor cannot be reached: {words}")
        # A predictor that says so itself leaves the connection as it is.
        if _CLOSED.match(words) or channel.get_state() is not grpc.ChannelConnectivity.READY:
            return errors.UpstreamClosed()
    if number == statuses.RESOURCE_EXHAUSTED and "CLIENT: Received message larger than max" in words:
        return errors.UpstreamBroken(f"the predictor's answer is too large: {words}")
    return statuses.failure(number, words, tuple(error.trailing_metadata() or ()))
