"""The batched lane: from the head and body of a predict request to a call, and from its outcome to an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Sequence
from typing import cast

from aiohttp import hdrs, web
from multidict import MultiMapping, istr

from carpool.runtime import driver
from carpool.scheduling import ledger, limits, messages
from carpool_sidecar import config, errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import interface
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses
from carpool_sidecar.server.general import body_reader

# As istr a name is looked up without being lowered first.
_REQUEST_ID, _TIMEOUT = istr("X-Request-ID"), istr("carpool-timeout-ms")
_FORWARDED_FOR = istr("X-Forwarded-For")
_TRACEPARENT, _TRACESTATE = istr("traceparent"), istr("tracestate")

_JSON = "application/json"

# Bytes a second below which a caller does not read but hold our memory.
_SLOWEST_READER = 64 * 1024
# Seconds that a caller may read nothing when memory is short.
_SHORT_PATIENCE = 2.0
_MAX_TIMEOUT_MS = 86_400_000
_MAX_DIGITS = 12


class PredictLane:
    """Makes calls from requests and waits for their outcomes.

    `bounds` are the core's and read anew for each request, so live changes apply at once.
    """

    def __init__(
        self,
        chosen: config.Settings,
        bounds: limits.Limits,
        bodies: body_reader.Intake,
        calls_driver: driver.Driver,
        ways: routes.Routes,
    ) -> None:
        self.bounds = bounds
        self.bodies = bodies
        self.driver = calls_driver
        self.routes = ways
        self._v1_headers = tuple((istr(name), name.title()) for name in chosen.key_headers)
        # A v2 body's type is told by what is in it: JSON, or JSON and binary tensors.
        self._v2_headers = tuple((name, title) for name, title in self._v1_headers if title != hdrs.CONTENT_TYPE)
        self.dialect = responses.KServeDialect() if chosen.kserve_errors else responses.Dialect()
        self._v2_dialect = responses.Dialect()

    async def read(self, request: web.BaseRequest, match: routes.Match) -> bytes:
        """The decoded body, within all limits; raises `errors.CarpoolError`.

        Raises `errors.Unbatchable`, with the body unread, where the media type speaks against a predict request and
        it is known beforehand that the body cannot be looked at.
        """
        if not match.says_so and not self.bodies.can_read(request):
            raise errors.Unbatchable("media_type")
        return await self.bodies.read(request)

    def hold(self, body: bytes) -> ledger.Reservation:
        """Keep counting a body that `read` returned and no call took over."""
        return self.bodies.memory.reserve(len(body))

    async def route(self, headers: MultiMapping[str], match: routes.Match) -> calls.Route:
        """The way of a request, for which the predictor may have to be asked within the caller's own deadline.

        Raises as `routes.Routes.route` does, and `errors.DeadlineExceeded`. A deadline that is none is ignored here:
        `head` tells of it, and a request that is not batched goes on as it came.
        """
        timeout = None
        with contextlib.suppress(errors.BadRequest):
            timeout = _timeout(headers)
        try:
            async with asyncio.timeout(timeout):
                return await self.routes.learn(match)
        except TimeoutError:
            raise errors.DeadlineExceeded from None

    async def outcome(
        self, request: web.BaseRequest, body: bytes, match: routes.Match, route: calls.Route, spent: float = 0.0
    ) -> calls.Outcome:
        """Predictions, or why there are none, for one request. `spent` as for `head`.

        Raises `errors.CarpoolError` for a body that never made it into the queue, and `errors.Unbatchable` if it is
        valid but has to travel alone, or is what its media type says and no predict request at all. Cancelling this
        takes the request out of the queue.
        """
        head = self.head(request.raw_path, request.headers, match, route, spent)
        try:
            payload = self.payload(head, body)
        except errors.BadRequest:
            if match.says_so:
                raise
            raise errors.Unbatchable("media_type") from None
        call = _Waiting(head, payload, len(body))
        call.replier = self
        call.transport = request.transport
        call.waiter = asyncio.get_running_loop().create_future()
        self.driver.submit(call)
        try:
            return await call.waiter
        except asyncio.CancelledError:
            self.driver.cancel(call)
            raise

    def answer(self, answers_: Sequence[messages.Answer], list_name: bytes) -> None:
        """Part of `driver.Replier`."""
        for call, pieces in answers_:
            waiting = cast(calls.Call, call)
            _resolve(waiting, calls.Answered(list_name, pieces, waiting.response_format))

    def refuse(self, call: calls.Call, error: errors.CarpoolError) -> None:
        """Part of `driver.Replier`."""
        _resolve(call, error)

    def time_to_read(self, size: int) -> float:
        """Seconds a caller gets to take an answer of so many bytes off our hands; fewer when memory is short."""
        patience = self.bounds.timeout
        if not self.bodies.has_room(self.bodies.max_buffered_bytes // 2):
            patience = min(patience, _SHORT_PATIENCE)
        return patience + size / _SLOWEST_READER

    def head(
        self, target: str, headers: MultiMapping[str], match: routes.Match, route: calls.Route, spent: float = 0.0
    ) -> calls.Head:
        """What counts of a request's target and headers, as received.

        `spent` are the seconds of the caller's own time that are over. Raises `errors.BadRequest`, and
        `errors.DeadlineExceeded` if that was all of it.
        """
        timeout = _timeout(headers)
        if timeout is not None and spent:
            timeout -= spent
            if timeout <= 0:
                raise errors.DeadlineExceeded
        return calls.Head(
            route,
            routes.origin_form(target),
            self._key_headers(headers, match),
            timeout,
            _value(headers, _REQUEST_ID),
            _value(headers, _TRACEPARENT),
            _value(headers, _TRACESTATE),
            None if match.is_v1 else _json_size(headers.get(routes.JSON_SIZE)),
            headers.get(_FORWARDED_FOR),
        )

    def payload(self, head: calls.Head, body: bytes) -> interface.Payload:
        """The rows of a decoded body; raises `errors.BadRequest`, `errors.PayloadTooLarge` or `errors.Unbatchable`."""
        return head.route.codec.parse(body, self.bounds.max_queue_instances, head.json_size)

    def _key_headers(self, headers: MultiMapping[str], match: routes.Match) -> calls.Headers:
        if not match.is_v1:
            return _select(headers, self._v2_headers)
        found = _select(headers, self._v1_headers)
        if match.says_so:
            return found
        # The body turned out to be JSON, or this request will not be in a batch.
        return tuple((name, _JSON if name == hdrs.CONTENT_TYPE else value) for name, value in found)

    def tell(self, outcome: calls.Outcome, is_v1: bool = True) -> responses.Response:
        """The answer to an outcome."""
        dialect = self.dialect if is_v1 else self._v2_dialect
        if isinstance(outcome, calls.Answered):
            return dialect.predictions(outcome)
        return dialect.failure(outcome)

    def tell_early(self, error: errors.CarpoolError, is_v1: bool = True) -> responses.Response:
        """The answer to a request that never became a call."""
        return (self.dialect if is_v1 else self._v2_dialect).error(error)


class _Waiting(calls.Call):
    """A call whose outcome a coroutine waits for."""

    __slots__ = ("transport", "waiter")
    transport: asyncio.Transport | None
    waiter: asyncio.Future[calls.Outcome]

    @property
    def origin(self) -> Hashable:
        """Part of `calls.Call`."""
        address: Hashable = None if self.transport is None else self.transport.get_extra_info("peername")
        return address


def _resolve(call: calls.Call, outcome: calls.Outcome) -> None:
    waiter = cast(_Waiting, call).waiter
    # Between its cancellation and the caller's clean-up a waiter may still be answered.
    if not waiter.done():
        waiter.set_result(outcome)


def _select(headers: MultiMapping[str], names: Sequence[tuple[str, str]]) -> calls.Headers:
    return tuple((title, value) for name, title in names if (value := _value(headers, name)) is not None)


def _value(headers: MultiMapping[str], name: str) -> str | None:
    """A header that is to be forwarded; several lines of one name are one value (RFC 9110, 5.3)."""
    if name not in headers:
        return None
    value = ", ".join(headers.getall(name))
    headers_.check_utf8(name, value)
    return value


def _json_size(text: str | None) -> int | None:
    if text is None or (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return None if text is None else int(text)
    raise errors.BadRequest(f"{routes.JSON_SIZE} must be a whole number of bytes; got {text[:40]!r}")


def has_deadline(headers: MultiMapping[str]) -> bool:
    """Whether a request says how long its caller waits."""
    return _TIMEOUT in headers


def _timeout(headers: MultiMapping[str]) -> float | None:
    text = headers.get(_TIMEOUT)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _MAX_TIMEOUT_MS:
        return int(text[:10]) / 1000
    raise errors.BadRequest(f"carpool-timeout-ms must be a whole number from 1 to {_MAX_TIMEOUT_MS}; got {text[:40]!r}")
